"""All pre-training methods by name, and functions of the settings that depend on a run's method."""

from collections.abc import Mapping

from paucal.methods.contract import PretrainingMethod
from paucal.methods.diet import entry as diet
from paucal.methods.lejepa import entry as lejepa
from paucal.methods.pretraining_settings import PretrainSettings
from paucal.methods.self_distillation import entry as self_distillation
from paucal.methods.unused_settings import refuse_unused
from paucal.methods.visreg import entry as visreg
from paucal.recipes import esvit
from paucal.recipes.recipe import fill_in
from paucal.rules import crops, machine, resolve
from paucal.rules.facts import DataAndMachine
from paucal.settings.options import require_known
from paucal.types import UserError

METHODS: dict[str, PretrainingMethod] = {
    entry.name: entry for entry in (self_distillation.METHOD, lejepa.METHOD, visreg.METHOD, diet.METHOD)
}
RECIPES = esvit.RECIPES
SHARED_RULES = resolve.rules_by_name((*machine.PROCESS_RULES, *crops.RULES))
LAST_RULES = resolve.rules_by_name(machine.COMPUTE_RULES)  # applied after the rules of the method


def method_of(settings: PretrainSettings) -> PretrainingMethod:
    """Return the method that `--method` names; raise a UserError for an unknown name."""
    return METHODS[require_known("method", settings.method, METHODS)]


def with_recipe(settings: PretrainSettings, origins: Mapping[str, str]) -> tuple[PretrainSettings, dict[str, str]]:
    """Fill in the settings that were not given with the values of `--recipe`; return the settings and their origins.

    `origins` has the origin of each given setting. Raise a UserError for an unknown recipe.
    """
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
    return resolve.resolve(settings, facts, {**SHARED_RULES, **method_of(settings).rules, **LAST_RULES})
