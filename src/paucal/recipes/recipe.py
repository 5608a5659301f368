"""What a named recipe is."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Recipe:
    """A named recipe.

    Attributes:
        summary: one line for people.
        source: where its values are from.
        cost: what a run takes.
        expected: what it has been reported to reach.
        settings: values by name; all others are chosen from the data.
        lr_per_512: learning rate for 512 images in a step, to which the rate is proportional; None for the usual rule.
    """

    summary: str
    source: str
    cost: str
    expected: str
    settings: Mapping[str, Any]
    lr_per_512: float | None = None
