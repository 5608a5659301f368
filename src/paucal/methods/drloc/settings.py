"""The flags of dense relative localization.

`--drloc-preset` or a rule sets flags that are not given. The allowed values are copied from
`objectives.drloc_options`, whose import takes seconds; a test checks that the two modules agree.
"""

from dataclasses import dataclass
from typing import Literal

from paucal.settings.options import MAX_EPOCHS, MAX_SIDE, option

_GROUP = "method"


@dataclass(frozen=True)
class DrLocFormulaSettings:
    """Options of the formula of the loss, and of the head that it needs."""

    drloc_preset: Literal["paper", "reference"] = option(
        "version of the DrLoc loss: the paper's formula or the published program's", "paper", group=_GROUP
    )
    drloc_mode: Literal["l1", "signed", "ce", "reg"] | None = option("variant of the DrLoc loss", group=_GROUP)
    drloc_scale: Literal["side", "side_minus_1", "none"] | None = option(
        "l1, signed: divisor of offsets: the grid's side, the largest offset, or none", group=_GROUP
    )
    drloc_shift: Literal["side_minus_1", "none"] | None = option(
        "signed: shift of offsets: the largest offset, so that no offset is negative, or none", group=_GROUP
    )
    drloc_coordinates: Literal["mean", "sum"] | None = option(
        "l1, signed: mean or sum of the losses of rows and columns", group=_GROUP
    )
    drloc_classes: Literal["signed", "paper", "absolute"] | None = option(
        "ce, reg: classes of an axis of k positions: the 2k-1 offsets that occur, the paper's 2k+1, or k distances",
        group=_GROUP,
    )
    drloc_extra_layer: Literal["linear", "none"] | None = option(
        "ce, reg: an additional layer before the last layer of the localization MLP", group=_GROUP
    )
    drloc_log_of: Literal["sigma", "variance"] | None = option(
        "reg: argument of the logarithm in the variance term", group=_GROUP
    )
    drloc_alpha: float | None = option("reg: factor of the variance term", group=_GROUP, low=0)
    drloc_hidden: int = option("width of the localization MLP", group=_GROUP, low=1, high=1 << 16)


@dataclass(frozen=True)
class DrLocGridSettings:
    """Options of the feature grids that the loss reads, and of the pairs of grid positions."""

    drloc_levels: Literal["last", "stages", "merged", "blocks"] | None = option(
        "feature grids for the DrLoc loss: the last grid, one grid per stage, the grids after Swin's merging layers, "
        "or one grid per block",
        group=_GROUP,
    )
    drloc_norm: Literal["after", "before"] | None = option(
        "read the last grid after the backbone's final norm or before it", group=_GROUP
    )
    drloc_pool: Literal["none", "paper", "reference"] | int | None = option(
        "pooling of the grid before the DrLoc loss: a rule, or the side to pool to", group=_GROUP, low=1, high=MAX_SIDE
    )
    drloc_sampling: Literal["random", "permutation"] = option(
        "pairs of grid positions: random pairs, or a random permutation that pairs every position",
        "random",
        group=_GROUP,
    )
    drloc_pairs: int | None = option(
        "number of random pairs of grid positions per image", group=_GROUP, low=1, high=1 << 16, chosen=True
    )


@dataclass(frozen=True)
class DrLocSettings(DrLocGridSettings, DrLocFormulaSettings):
    """Options of DrLoc (Liu et al., NeurIPS 2021)."""

    drloc_weight: float = option("weight of the DrLoc loss", group=_GROUP, low=0)
    drloc_schedule: Literal["constant", "ramp"] | None = option(
        "the weight over time: constant, or a ramp that rises from 0 and falls to 0", group=_GROUP
    )
    drloc_warmup_epochs: int | None = option("ramp: epochs of the rise", group=_GROUP, low=0, high=MAX_EPOCHS)
    drloc_horizon_epochs: int | None = option(
        "ramp: epoch at which the weight is 0 again; may be after the end of the run",
        group=_GROUP,
        low=1,
        high=MAX_EPOCHS,
    )
