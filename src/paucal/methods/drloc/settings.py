"""The flags of dense relative localization."""

from dataclasses import dataclass
from typing import Literal

from paucal.settings.options import MAX_SIDE, option


@dataclass(frozen=True)
class DrLocSettings:
    """What may be told about DrLoc (Liu et al., NeurIPS 2021)."""

    drloc_preset: Literal["paper", "reference"] = option(
        "reading of the DrLoc loss: the paper's formula or the published program's", "paper", group="method"
    )
    drloc_weight: float | None = option("weight of the DrLoc loss", group="method", low=0)
    drloc_mode: Literal["l1", "signed", "ce", "reg"] | None = option("variant of the DrLoc loss", group="method")
    drloc_levels: Literal["last", "stages", "blocks"] | None = option(
        "grids the DrLoc loss reads: the last one, one per stage or one per block", group="method"
    )
    drloc_pairs: int | None = option("pairs of cells per image", group="method", low=1, high=1 << 16)
    drloc_hidden: int | None = option("width of the localization MLP", group="method", low=1, high=1 << 16)
    drloc_pool: Literal["none", "paper", "reference"] | int | None = option(
        "pooling of the grid before the DrLoc loss: a rule, or the side to pool to",
        group="method",
        low=1,
        high=MAX_SIDE,
    )
