"""The flags of dense relative localization.

`--drloc-preset` or a rule sets flags that are not given. The allowed values are copied from
`objectives.drloc_options`, whose import takes seconds; a test checks that the two modules agree.
"""

from dataclasses import dataclass
from typing import Literal

from paucal.settings.options import MAX_EPOCHS, MAX_SIDE, option


@dataclass(frozen=True)
class DrLocFormulaSettings:
    """Options of the formula of the loss, and of the head that it needs."""

    help_group = "method"
    drloc_preset: Literal["paper", "reference"] = option(
        "version of the DrLoc loss: the paper's formula or the published program's", "paper"
    )
    drloc_mode: Literal["l1", "signed", "ce", "reg"] | None = option("variant of the DrLoc loss")
    drloc_scale: Literal["side", "side_minus_1", "none"] | None = option(
        "l1, signed: divisor of offsets: the grid's side, the largest offset, or none"
    )
    drloc_shift: Literal["side_minus_1", "none"] | None = option(
        "signed: shift of offsets: the largest offset, so that no offset is negative, or none"
    )
    drloc_coordinates: Literal["mean", "sum"] | None = option(
        "l1, signed: mean or sum of the losses of rows and columns"
    )
    drloc_classes: Literal["signed", "paper", "absolute"] | None = option(
        "ce, reg: classes of an axis of k positions: the 2k-1 offsets that occur, the paper's 2k+1, or k distances"
    )
    drloc_extra_layer: Literal["linear", "none"] | None = option(
        "ce, reg: an additional layer before the last layer of the localization MLP"
    )
    drloc_log_of: Literal["sigma", "variance"] | None = option("reg: argument of the logarithm in the variance term")
    drloc_alpha: float | None = option("reg: factor of the variance term", low=0)
    drloc_hidden: int = option("width of the localization MLP", low=1, high=1 << 16)


@dataclass(frozen=True)
class DrLocGridSettings:
    """Options of the feature grids that the loss reads, and of the pairs of grid positions."""

    help_group = "method"
    drloc_levels: Literal["last", "stages", "merged", "blocks"] | None = option(
        "feature grids for the DrLoc loss: the last grid, one grid per stage, the grids after Swin's merging layers, "
        "or one grid per block"
    )
    drloc_norm: Literal["after", "before"] | None = option(
        "read the last grid after the backbone's final norm or before it"
    )
    drloc_pool: Literal["none", "paper", "reference"] | int | None = option(
        "pooling of the grid before the DrLoc loss: a rule, or the side to pool to", low=1, high=MAX_SIDE
    )
    drloc_sampling: Literal["random", "permutation"] = option(
        "pairs of grid positions: random pairs, or a random permutation that pairs every position", "random"
    )
    drloc_pairs: int | None = option(
        "number of random pairs of grid positions per image", low=1, high=1 << 16, chosen=True
    )


@dataclass(frozen=True)
class DrLocSettings(DrLocGridSettings, DrLocFormulaSettings):
    """Options of DrLoc (Liu et al., NeurIPS 2021)."""

    help_group = "method"
    drloc_weight: float = option("weight of the DrLoc loss", low=0)
    drloc_schedule: Literal["constant", "ramp"] | None = option(
        "the weight over time: constant, or a ramp that rises from 0 and falls to 0"
    )
    drloc_warmup_epochs: int | None = option("ramp: epochs of the rise", low=0, high=MAX_EPOCHS)
    drloc_horizon_epochs: int | None = option(
        "ramp: epoch at which the weight is 0 again; may be after the end of the run", low=1, high=MAX_EPOCHS
    )
