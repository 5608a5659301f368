"""The table of region heads, and the options of a detector.

The module is light to import, since the help of settings lists the choices.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, Self, get_args, get_type_hints

from paucal.types import UserError

if TYPE_CHECKING:
    from torch import nn

BoxLoss = Literal["smooth-l1", "l1", "giou"]
ProposalLoss = Literal["smooth-l1", "l1"]
Matching = Literal["torchvision", "anchors", "regions"]
Pooling = Literal["sampled", "aligned"]
PyramidNorm = Literal["group", "batch", "none"]
MaskNorm = Literal["batch", "none"]
Maps = Literal["strides", "last-blocks"]
AnchorSides = Literal["one", "five"]
CascadeBoxes = Literal["shared", "per-class"]
CascadeAverage = Literal["probabilities", "logits"]
CONVOLUTIONS = 4
LARGEST, MAX_LAYERS = 100_000, 8
# Every stored detector has these. Options added later take their default if they are missing.
FIRST_OPTIONS = frozenset(
    ("channels", "head_dim", "finest", "anchor", "regions", "proposals", "cascade", "least_score", "most", "masks")
)


@dataclass(frozen=True)
class RegionHead:
    """The layers of a head, between the pooled cells of a region and its features.

    Attributes:
        build: Function that builds the layers from the channels and the side in cells of a region, and the number of
            features. It imports torch itself.
    """

    words: str
    build: "Callable[[int, int, int], nn.Module]"


def _two_layers(channels: int, cells: int, dim: int) -> "nn.Module":
    from torchvision.models.detection.faster_rcnn import TwoMLPHead

    return TwoMLPHead(channels * cells**2, dim)


def _four_convolutions(channels: int, cells: int, dim: int) -> "nn.Module":
    from torch import nn
    from torchvision.models.detection.faster_rcnn import FastRCNNConvFCHead

    return FastRCNNConvFCHead((channels, cells, cells), [channels] * CONVOLUTIONS, [dim], nn.BatchNorm2d)


HEADS: Mapping[str, RegionHead] = {
    "2fc": RegionHead("two fully connected layers", _two_layers),
    "4conv1fc": RegionHead("four convolutions with batch norms and one fully connected layer", _four_convolutions),
}


@dataclass(frozen=True)
class DetectorOptions:
    """The structure of a detector, its losses, and the limits on its predictions.

    Attributes:
        finest: Stride in pixels of the finest map.
        anchor: Side of the anchors over the stride of their map.
        regions: Regions per image that the heads learn from.
        proposals: Regions per image that are proposed in training; half as many for predictions.
        cascade: Whether three heads follow each other (Cascade R-CNN).
        masks: Whether the detector also predicts the pixels of each object (Mask R-CNN).
        head: Layers of a head, by their name in `HEADS`.
        cascade_boxes: Whether a head of the cascade corrects a box once, or once for each class.
        cascade_average: Quantity that the cascade averages over its heads: probabilities, or logits.
        box_loss: Loss of the heads' boxes: smooth L1, L1, or GIoU of the corrected boxes with weight 10.
        candidates: Regions of each map that are compared before proposals are chosen; 0 for as many as `proposals`.
        matching: Boxes that are assigned to an object in addition to those that overlap it enough. "torchvision": the
            anchor with the largest overlap, but assigned to the object that this anchor overlaps most. "anchors": the
            anchor with the largest overlap, if at least 0.3, assigned to this object. "regions": also the region with
            the largest overlap, if that is enough for a hit.
        pooling: How a region is read from a map: at 2x2 points of each of its cells, or exactly aligned, at
            more points for larger cells.
        maps: Maps of the backbone: one of each stride, or the two of torchvision's MobileNet detectors.
        anchor_sides: Sides of the anchors of a cell: one that grows with the stride, or 32 to 512 pixels on every map.
    """

    channels: int = 256
    head_dim: int = 1024
    finest: int = 4
    anchor: int = 8
    regions: int = 512
    proposals: int = 2000
    cascade: bool = False
    least_score: float = 0.05
    most: int = 100
    masks: bool = False
    head: str = "2fc"
    cascade_boxes: CascadeBoxes = "shared"
    cascade_average: CascadeAverage = "probabilities"
    box_loss: BoxLoss = "smooth-l1"
    proposal_loss: ProposalLoss = "smooth-l1"
    candidates: int = 0
    matching: Matching = "torchvision"
    pooling: Pooling = "sampled"
    pyramid_norm: PyramidNorm = "group"
    proposal_layers: int = 1
    mask_norm: MaskNorm = "none"
    maps: Maps = "strides"
    anchor_sides: AnchorSides = "one"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for a model's card."""
        return asdict(self)

    @classmethod
    def from_dict(cls, stored: Any) -> Self:
        """Read the result of `to_dict` of this version or an older one, from an untrusted file.

        Options that the older version did not have take their default, with which its detectors were trained.
        """
        if not isinstance(stored, dict):
            raise UserError("model.json has no options of its detector: restore it or train again.")
        defaults = {item.name: item.default for item in fields(cls)}
        if unknown := [name for name in stored if name not in defaults]:
            raise UserError(
                f"model.json gives a detector the option {str(unknown[0])[:80]!r}, which this version of paucal does "
                "not have: update paucal, or restore the file."
            )
        if missing := sorted(FIRST_OPTIONS - set(stored)):
            raise UserError(f"model.json lacks the option {missing[0]!r} of its detector: restore it or train again.")
        hints = get_type_hints(cls)
        for name, value in stored.items():
            choices = HEADS if name == "head" else get_args(hints[name])
            is_typed = type(value) is type(defaults[name])
            largest = MAX_LAYERS if name == "proposal_layers" else LARGEST
            if not is_typed or not (value in choices if choices else 0 <= value <= largest):
                raise UserError(f"model.json gives a detector {name} {value!r}: restore it or train again.")
        return cls(**stored)
