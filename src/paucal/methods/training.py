"""All training methods and extra losses by name, and functions that depend on a run's method and extra losses."""

from collections.abc import Mapping
from dataclasses import replace

import timm
import torch

from paucal.backbones.mimetic import init_mimetic
from paucal.backbones.spec import BackboneSpec
from paucal.methods import drloc, guided, supervised, token_labeling
from paucal.methods.contract import ExtraLoss, MethodOrLoss, RunImages, TrainingMethod, refuse_unused, unused_settings
from paucal.methods.training_settings import TrainSettings
from paucal.objectives import Objective
from paucal.objectives.supervised import ClassifierObjective
from paucal.recipes.recipe import Recipe, fill_in, require_init
from paucal.recipes.table import RECIPES
from paucal.rules.resolve import DataAndMachine, resolve
from paucal.rules.training import RULES
from paucal.settings.options import require_known
from paucal.types import UserError

METHODS: dict[str, TrainingMethod] = {
    entry.name: entry for entry in (supervised.METHOD, drloc.METHOD, *token_labeling.METHODS)
}
EXTRA_LOSSES: dict[str, ExtraLoss] = {
    entry.name: entry for entry in (drloc.DRLOC_LOSS, guided.LOCALITY_LOSS, guided.DISTILLATION_LOSS)
}
ENTRIES: tuple[MethodOrLoss, ...] = (*METHODS.values(), *EXTRA_LOSSES.values())
# timm's tags consist of words joined by "_", such as "augreg_in1k".
IMAGENET_WORD = "in1k"  # word in the tag of weights that were trained on ImageNet-1k
# Weights are excluded if their tag has one of these words, since they were trained on further images or texts,
# fine-tuned ("ft", "lc"), or trained without labels ("ijepa").
EXCLUDED_TAG_WORDS = {
    *("ft", "lc", "in12k", "in21k", "in22k", "jft", "ig1b", "yfcc100m", "m30m", "m38m", "6m", "laion2b", "laiona"),
    *("openai", "clip", "webli", "wsl", "ssl", "swsl", "ssld", "seer", "swag", "ns", "mim", "ijepa", "bamboo"),
}
TORCHVISION_TAG = "tv_in1k"  # preferred tag, since papers used torchvision's weights of ResNets


def method_of(settings: TrainSettings) -> TrainingMethod:
    """Return the method that `--method` names; raise a UserError for an unknown name."""
    return METHODS[require_known("method", settings.method, METHODS)]


def terms_of(settings: TrainSettings) -> tuple[str, ...]:
    """Return the names of a run's extra losses: those that belong to its method, and those of `--add`."""
    names = list(method_of(settings).terms)
    if settings.add is not None:
        names += [require_known("add", name, EXTRA_LOSSES) for name in settings.add]
    return tuple(dict.fromkeys(names))


def entries_of(settings: TrainSettings) -> list[MethodOrLoss]:
    """Return the method and the extra losses of a run."""
    return [method_of(settings), *(EXTRA_LOSSES[name] for name in terms_of(settings))]


def unused_settings_of(settings: TrainSettings) -> set[str]:
    """Return the names of the settings that belong only to methods and losses that a run does not use."""
    return set(unused_settings(entries_of(settings), ENTRIES))


def with_recipe(settings: TrainSettings, origins: Mapping[str, str]) -> tuple[TrainSettings, dict[str, str]]:
    """Fill in the settings that were not given with the values of `--recipe`; return the settings and their origins."""
    recipe = None if settings.recipe is None else RECIPES.get(settings.recipe)
    recipe_settings = {} if recipe is None else recipe.settings
    chosen_losses = [name for name in ("method", "add") if name in recipe_settings and name not in origins]
    losses = {name: recipe_settings[name] for name in chosen_losses}
    settings, origins = fill_in(
        settings, origins, RECIPES, settings.recipe, unused_settings_of(replace(settings, **losses))
    )
    if recipe is not None:
        settings, origins = _scale_schedule_to_epochs(settings, origins, recipe)
    if settings.recipe is not None and recipe is not None and recipe.imagenet_alone and settings.init == "timm":
        model_name = imagenet_alone(settings.model, settings.recipe)
        if model_name != settings.model:
            origins["model"] = f"recipe {settings.recipe}: weights from only ImageNet-1k"
            settings = replace(settings, model=model_name)
    return settings, origins


def _scale_schedule_to_epochs(
    settings: TrainSettings, origins: dict[str, str], recipe: Recipe
) -> tuple[TrainSettings, dict[str, str]]:
    """Scale the cosine schedule and the warm-up of a recipe if the run has another number of epochs.

    Otherwise a longer run would train at the lowest learning rate for many epochs, and a short run would end during the
    warm-up.
    """
    recipe_epochs, recipe_origin = recipe.for_model(settings.model).settings.get("epochs"), f"recipe {settings.recipe}"
    if recipe_epochs is None or settings.epochs in (None, recipe_epochs) or origins.get("epochs") == recipe_origin:
        return settings, origins
    if origins.get("schedule_epochs") == recipe_origin:
        settings = replace(settings, schedule_epochs=None)
        origins = {name: text for name, text in origins.items() if name != "schedule_epochs"}
    if origins.get("warmup_epochs") == recipe_origin and settings.warmup_epochs and settings.epochs < recipe_epochs:
        fraction = settings.warmup_epochs / recipe_epochs
        settings = replace(settings, warmup_epochs=round(fraction * settings.epochs, 3))
        origins = {
            **origins,
            "warmup_epochs": f"{recipe_origin}: its share of {settings.warmup_epochs / fraction:g} epochs",
        }
    return settings, origins


def paths_of_methods() -> frozenset[str]:
    """Return the names of all settings of methods and losses whose values are paths."""
    return frozenset(name for entry in ENTRIES for name in entry.paths)


def check_used(settings: TrainSettings, origins: Mapping[str, str]) -> None:
    """Raise a UserError for a setting that has no effect in the run, or that contradicts another setting."""
    refuse_unused(settings, origins, entries_of(settings), ENTRIES)
    require_init(RECIPES, settings.recipe, settings.init)
    if settings.attention_init != "model" and settings.init is not None:
        raise UserError(
            "--attention-init is for runs from random weights, but --init gives pretrained weights: give only one of "
            "the two."
        )
    for entry in entries_of(settings):
        entry.check(settings)


def resolve_training(settings: TrainSettings, facts: DataAndMachine) -> tuple[TrainSettings, dict[str, str]]:
    """Choose a value by rule for every setting that is None; return the settings, and the reason for each choice."""
    rules = dict(RULES)
    for entry in entries_of(settings):
        rules |= entry.rules
    return resolve(settings, facts, rules)


def build_objective(settings: TrainSettings, spec: BackboneSpec) -> Objective:
    """Build the objective that `--method` and `--add` name."""
    syncs_norms = settings.sync_bn and settings.processes > 1
    backbone = spec.build(drop_path_rate=settings.drop_path, sync_norms=syncs_norms)
    if settings.attention_init == "mimetic":
        init_mimetic(backbone.model, torch.Generator().manual_seed(settings.seed))
    terms = {name: EXTRA_LOSSES[name].build(settings, spec, backbone) for name in terms_of(settings)}
    return method_of(settings).build(settings, backbone, terms)


def adapt_terms_to_run(settings: TrainSettings, objective: Objective, run_images: RunImages) -> None:
    """Adapt the extra losses of an objective to the images of the run; see `ExtraLoss.adapt_to_run`."""
    if isinstance(objective, ClassifierObjective):
        for name, term in objective.named_terms().items():
            EXTRA_LOSSES[name].adapt_to_run(settings, term, run_images)


def imagenet_alone(model: str, recipe: str) -> str:
    """Return the name of a timm model with the tag of weights that were trained on the labels of ImageNet-1k only.

    The default weights of many models were trained on more images, such as ImageNet-21k for ViT-B/16. A name that
    already has a tag, or for which timm has no weights, is returned unchanged. `recipe` is the recipe's name in
    messages.
    """
    if "." in model or not timm.is_model(model):
        return model
    published = [name.partition(".")[2] for name in timm.list_models(f"{model}.*", pretrained=True)]
    config = timm.get_pretrained_cfg(model)
    default = config.tag if config is not None else None
    tag_words = {tag: set(tag.split("_")) for tag in published}
    matching_tags = [
        tag for tag, words in tag_words.items() if IMAGENET_WORD in words and not words & EXCLUDED_TAG_WORDS
    ]
    if not published or (default in matching_tags and TORCHVISION_TAG not in matching_tags):
        return model
    if not matching_tags:
        raise UserError(
            f"--recipe {recipe} needs weights trained on ImageNet-1k alone, but timm has no such weights for {model}. "
            f"Choose another --model, use other weights with --model {model}.{default or published[0]}, or give --init."
        )
    return f"{model}.{TORCHVISION_TAG if TORCHVISION_TAG in matching_tags else matching_tags[0]}"
