"""Training methods by name: how each one's objective is put together from the settings."""

import difflib
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from paucal.backbones.features import FeatureBackbone
from paucal.backbones.mimetic import init_mimetic
from paucal.backbones.spec import BackboneSpec
from paucal.losses.token_labeling import TokenLabelingReading
from paucal.objectives import DrLoc, Objective, Supervised, Term, TokenLabeling, TokenLabelingOptions
from paucal.recipes.guiding import guidance
from paucal.recipes.rules_length import processes
from paucal.recipes.settings import TrainSettings
from paucal.recipes.tuning import fine_tuning
from paucal.types import FeatureRequest, UserError


@dataclass(frozen=True)
class Method:
    """A training method.

    Attributes:
        summary: one line for people.
        terms: names of the extra losses that the method itself has.
        build: makes the objective from the settings, the backbone's description and the extra losses' names.
    """

    summary: str
    terms: tuple[str, ...]
    build: Callable[[TrainSettings, BackboneSpec, tuple[str, ...]], Objective]


def build_objective(settings: TrainSettings, spec: BackboneSpec) -> Objective:
    """Build the objective that `--method` and `--add` name.

    Raises:
        UserError: a name is unknown, or the backbone cannot serve the method.
    """
    method = METHODS[_known("method", settings.method, METHODS)]
    added = [_known("add", name, TERMS) for name in settings.add or ()]
    names = tuple(dict.fromkeys((*method.terms, *added)))
    return method.build(settings, spec, names)


def check_names(settings: TrainSettings) -> None:
    """Raise a UserError for an unknown method or loss, before any work is done."""
    _known("method", settings.method, METHODS)
    for name in settings.add or ():
        _known("add", name, TERMS)


def _known(flag: str, name: str, table: dict) -> str:
    if name not in table:
        near = difflib.get_close_matches(name, table, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else "."
        raise UserError(f"--{flag}: {name!r} is unknown, expected one of {', '.join(table)}{hint}")
    return name


def _backbone(settings: TrainSettings, spec: BackboneSpec) -> FeatureBackbone:
    joint = settings.sync_bn and processes(settings) > 1
    backbone = spec.build(drop_path_rate=settings.drop_path, sync_norms=joint)
    if settings.attention_init == "mimetic":
        init_mimetic(backbone.model, torch.Generator().manual_seed(settings.seed))
    return backbone


def _supervised(settings: TrainSettings, spec: BackboneSpec, names: tuple[str, ...]) -> Objective:
    backbone = _backbone(settings, spec)
    terms = {name: TERMS[name](settings, spec, backbone) for name in names}
    return Supervised(backbone, terms, settings.label_smoothing, fine_tuning(settings))


def _token_labeling(settings: TrainSettings, spec: BackboneSpec, names: tuple[str, ...]) -> Objective:
    backbone = _backbone(settings, spec)
    terms = {name: TERMS[name](settings, spec, backbone) for name in names}
    reading = TokenLabelingReading.from_preset(settings.token_preset)
    if settings.token_weight is not None:
        reading = replace(reading, dense_weight=settings.token_weight)
    mixes = not settings.no_mix_token
    if settings.method == "relabel":
        reading, mixes = replace(reading, dense_weight=0.0), False
    options = TokenLabelingOptions(
        reading, mixes, settings.label_smoothing, settings.token_preset == "reference", settings.seed
    )
    return TokenLabeling(backbone, options, terms, fine_tuning(settings))


def _drloc(settings: TrainSettings, spec: BackboneSpec, backbone: FeatureBackbone) -> Term:
    given = {
        "weight": settings.drloc_weight,
        "mode": settings.drloc_mode,
        "levels": settings.drloc_levels,
        "n_pairs": settings.drloc_pairs,
        "hidden": settings.drloc_hidden,
        "pool": settings.drloc_pool,
    }
    overrides = {name: value for name, value in given.items() if value is not None} | {"seed": settings.seed}
    # The sizes of the grids depend on the level alone, not on the rest of the options.
    levels = settings.drloc_levels or "last"
    shapes = backbone.shapes(FeatureRequest(levels))
    return DrLoc.from_preset(
        settings.drloc_preset,
        [dim for dim, _, _ in shapes],
        [(height, width) for _, height, width in shapes],
        model_name=spec.name,
        **overrides,
    )


def _locality(settings: TrainSettings, spec: BackboneSpec, backbone: FeatureBackbone) -> Term:
    return guidance(settings, backbone)


TERMS: dict[str, Callable[[TrainSettings, BackboneSpec, FeatureBackbone], Term]] = {
    "drloc": _drloc,
    "locality": _locality,
}

METHODS: dict[str, Method] = {
    "supervised": Method("cross-entropy on the labels", (), _supervised),
    "drloc": Method("cross-entropy with dense relative localization", ("drloc",), _supervised),
    "token-labeling": Method("a teacher's label for every token, from --labels", (), _token_labeling),
    "relabel": Method("a teacher's label for the part of the image that is seen, from --labels", (), _token_labeling),
}
