"""Dense relative localization: an extra loss, and the method that adds it to the labels."""

from collections.abc import Sequence
from typing import Any

from paucal.backbones.features import FeatureBackbone
from paucal.backbones.spec import BackboneSpec
from paucal.methods.contract import ExtraLoss, TrainingMethod
from paucal.methods.drloc.options import check_options, given_options, in_effect
from paucal.methods.drloc.settings import DrLocSettings
from paucal.methods.supervised.entry import build_supervised
from paucal.objectives import DrLoc, Term, default_weight
from paucal.rules.backbone import backbone_shape
from paucal.rules.resolve import Choice, rules_by_name
from paucal.types import FeatureRequest

PAPER_PAIRS, PAPER_HIDDEN = 64, 512
PAPER = "the paper's value"


def drloc_weight(model: str | None) -> Choice:
    """The paper's weight for the backbone's family, or its safest weight."""
    return default_weight(model or "")


def drloc_pairs(
    model: str | None, model_args: Sequence[str] | None, img_size: Sequence[int] | None, drloc_sampling: str
) -> Choice:
    """The paper's number of pairs, fewer on a small grid; None for a permutation, which pairs all cells."""
    if drloc_sampling == "permutation":
        return None, ""
    rows, columns = backbone_shape(model, model_args, img_size).grid
    cells = rows * columns
    if 2 * cells >= PAPER_PAIRS:
        return PAPER_PAIRS, PAPER
    return 2 * cells, f"two for each of the {cells} cells; the paper has {PAPER_PAIRS} for 49 cells"


def drloc_hidden(model: str | None, model_args: Sequence[str] | None, img_size: Sequence[int] | None) -> Choice:
    """The paper's width, narrower for a narrow backbone."""
    dim = backbone_shape(model, model_args, img_size).dim
    if 2 * dim >= PAPER_HIDDEN:
        return PAPER_HIDDEN, PAPER
    return 2 * dim, f"twice the {dim} channels of the grid; the paper has {PAPER_HIDDEN} for 384 and more"


def _build(settings: Any, spec: BackboneSpec, backbone: FeatureBackbone) -> Term:
    # The sizes of the grids depend on the level alone, not on the rest of the options.
    shapes = backbone.shapes(FeatureRequest(in_effect(settings, "drloc_levels")))
    return DrLoc.from_preset(
        settings.drloc_preset,
        [dim for dim, _, _ in shapes],
        [(height, width) for _, height, width in shapes],
        model_name=spec.name,
        **given_options(settings),
    )


TERM = ExtraLoss(
    name="drloc",
    summary="predict the offset between two cells of the grid",
    settings=DrLocSettings,
    rules=rules_by_name((drloc_weight, drloc_pairs, drloc_hidden)),
    check=check_options,
    advice="with --method {method}: leave it out, or add the loss with --add drloc",
    build=_build,
)
METHOD = TrainingMethod(
    name="drloc",
    summary="cross-entropy with dense relative localization",
    terms=("drloc",),
    build=build_supervised,
    contrast=("supervised", "the same without the extra loss"),
)
