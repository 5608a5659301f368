"""All pre-training methods by name, and functions of the settings that depend on a run's method."""

from collections.abc import Mapping

from paucal.methods import diet, lejepa, self_distillation
from paucal.methods.contract import PretrainingMethod, refuse_unused
from paucal.methods.pretraining_settings import PretrainSettings
from paucal.recipes.esvit import RECIPES
from paucal.recipes.recipe import fill_in
from paucal.rules.pretraining import RULES
from paucal.rules.resolve import DataAndMachine, resolve, rules_by_name
from paucal.rules.training import COMPUTE_RULES, PROCESS_RULES
from paucal.settings.options import require_known
from paucal.types import UserError

METHODS: dict[str, PretrainingMethod] = {
    entry.name: entry for entry in (self_distillation.METHOD, *lejepa.METHODS, diet.METHOD)
}


def method_of(settings: PretrainSettings) -> PretrainingMethod:
    """Return the method that `--method` names; raise a UserError for an unknown name."""
    return METHODS[require_known("method", settings.method, METHODS)]


def with_recipe(settings: PretrainSettings, origins: Mapping[str, str]) -> tuple[PretrainSettings, dict[str, str]]:
    """Fill in the settings that were not given with the values of `--recipe`; return the settings and their origins."""
    left_out = method_of(settings).superseded(settings, origins)
    return fill_in(settings, origins, RECIPES, settings.recipe, left_out)


def check_used(settings: PretrainSettings, origins: Mapping[str, str]) -> None:
    """Raise a UserError for a setting that has no effect in the run, or that contradicts another setting."""
    method = method_of(settings)
    refuse_unused(settings, origins, [method], METHODS.values())
    method.check(settings)
    if settings.optimizer != "adamw" and settings.lr is None:
        raise UserError(
            f"--optimizer {settings.optimizer} has no published learning rate, and AdamW's learning rate is not "
            "suitable: give --lr, and also --weight-decay if AdamW's weight decay is too high."
        )


def resolve_pretraining(settings: PretrainSettings, facts: DataAndMachine) -> tuple[PretrainSettings, dict[str, str]]:
    """Choose a value by rule for every setting that is None; return the settings, and the reason for each choice."""
    shared_rules = {**rules_by_name(PROCESS_RULES), **RULES}
    return resolve(settings, facts, {**shared_rules, **method_of(settings).rules, **rules_by_name(COMPUTE_RULES)})
