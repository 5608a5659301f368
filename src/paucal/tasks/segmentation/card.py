"""What `model.json` says of a segmentation model, and the model built from it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from paucal.backbones.layout import Size
from paucal.backbones.spec import BackboneSpec
from paucal.data.masks.coding import MaskCoding
from paucal.models.card import FORMAT, ModelCard
from paucal.models.preprocessing import MAX_SIDE
from paucal.models.tasks import SEGMENTATION
from paucal.tasks.segmentation.network import SegmentationNetwork, segmentation_network
from paucal.types import UserError

MOST_WIDTH = 4096


@dataclass(frozen=True)
class Head:
    """The head of a model.

    Attributes:
        width: channels within.
        dropout: share of channels dropped in training.
    """

    width: int
    dropout: float

    def __post_init__(self) -> None:
        if type(self.width) is not int or not 1 <= self.width <= MOST_WIDTH or not 0 <= float(self.dropout) < 1:
            raise UserError(
                f"model.json has a head of width {self.width!r} and dropout {self.dropout!r}, expected 1 to "
                f"{MOST_WIDTH} channels and a share below 1: restore it."
            )


@dataclass(frozen=True, kw_only=True)
class SegmentationCard(ModelCard):
    """The card of a model that gives every pixel a class.

    Attributes:
        head: of the network.
        coding: what the values of its training masks meant; predicted masks have the same.
        overlap: share of a window that the next one sees again.
        whole: Whether the network sees images as a whole, in the place of windows.
        resize_to: Shorter and longer side in pixels that images are brought to; None for their own size.
    """

    task: ClassVar[str] = SEGMENTATION
    formats: ClassVar[tuple[int, ...]] = (FORMAT,)

    head: Head
    coding: MaskCoding
    overlap: float = 1 / 3
    whole: bool = False
    resize_to: Size | None = None

    def build(self, drop_path_rate: float | None = None) -> SegmentationNetwork:
        """Build the network with fresh weights.

        Raises:
            UserError: the backbone cannot be built.
        """
        spec = replace(self.backbone, pretrained=False)
        return segmentation_network(spec, len(self.classes), self.head.width, self.head.dropout, drop_path_rate)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "task": self.task,
            "format": FORMAT,
            "backbone": self.backbone.to_dict(),
            "head": {"name": "upernet", "width": self.head.width, "dropout": self.head.dropout},
            "classes": list(self.classes),
            "masks": {
                "kind": self.coding.kind,
                "values": list(self.coding.values),
                "ignore": self.coding.ignore,
            },
            "overlap": self.overlap,
            "whole": self.whole,
            "resize_to": None if self.resize_to is None else list(self.resize_to),
            "preprocessing": self.preprocessing.to_dict(),
        }

    @classmethod
    def _own_values(cls, stored: Mapping[str, Any], spec: BackboneSpec) -> tuple[int, dict[str, Any]]:
        masks, overlap = stored["masks"], stored["overlap"]
        coding = MaskCoding(masks["kind"], tuple(masks["values"]), masks["ignore"])
        if not isinstance(overlap, float | int) or not 0 <= overlap <= 0.9:
            raise UserError(f"model.json has windows that overlap by {overlap!r}, expected 0 to 0.9: restore it.")
        whole, sides = stored.get("whole", False), stored.get("resize_to")  # which older cards lack
        if type(whole) is not bool or not (sides is None or _are_sides(sides)):
            raise UserError(
                f"model.json has whole {whole!r} and resize_to {sides!r}, expected true or false and two sides up to "
                f"{MAX_SIDE}: restore it."
            )
        return coding.count, {
            "head": Head(stored["head"]["width"], stored["head"]["dropout"]),
            "coding": coding,
            "overlap": float(overlap),
            "whole": whole,
            "resize_to": None if sides is None else tuple(sides),
        }


def _are_sides(value: Any) -> bool:
    """Tell whether a value of a file is two sides in pixels."""
    return isinstance(value, list) and len(value) == 2 and all(type(n) is int and 8 <= n <= MAX_SIDE for n in value)
