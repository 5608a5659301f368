"""Options of a detector, and the kinds of region heads.

This module does not import torch, since the command-line help imports the module to list choices and must be fast.
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
HEAD_CONVOLUTIONS = 4  # number of convolutions in the head "4conv1fc"
# Maximum of every numeric option except `proposal_layers`, and maximum of `proposal_layers`
MAX_OPTION, MAX_PROPOSAL_LAYERS = 100_000, 8
# Options that every detector's `model.json` contains. Options that were added later get their defaults if missing.
FIRST_OPTIONS = frozenset(
    ("channels", "head_dim", "finest", "anchor", "regions", "proposals", "cascade", "least_score", "most", "masks")
)


@dataclass(frozen=True)
class RegionHead:
    """A kind of region head: the layers that compute a feature vector from a pooled region."""

    words: str  # description for help texts
    # Imports torch and builds the layers from the channels and bins per side of a region, and the number of features.
    build: "Callable[[int, int, int], nn.Module]"


def _two_layers(channels: int, bins: int, dim: int) -> "nn.Module":
    from torchvision.models.detection.faster_rcnn import TwoMLPHead

    return TwoMLPHead(channels * bins**2, dim)


def _four_convolutions(channels: int, bins: int, dim: int) -> "nn.Module":
    from torch import nn
    from torchvision.models.detection.faster_rcnn import FastRCNNConvFCHead

    return FastRCNNConvFCHead((channels, bins, bins), [channels] * HEAD_CONVOLUTIONS, [dim], nn.BatchNorm2d)


HEADS: Mapping[str, RegionHead] = {
    "2fc": RegionHead("two fully connected layers", _two_layers),
    "4conv1fc": RegionHead("four convolutions with batch norms and one fully connected layer", _four_convolutions),
}


@dataclass(frozen=True)
class DetectorOptions:
    """The structure of a detector, its losses, and the limits on its predictions; see also `DetectorSettings`."""

    channels: int = 256  # number of channels of the feature pyramid
    head_dim: int = 1024  # number of features per region in a head
    finest: int = 4  # smallest stride of a feature map, in pixels
    anchor: int = 8  # side of an anchor, as a multiple of the stride of its feature map
    regions: int = 512  # number of sampled regions per image that train the heads
    proposals: int = 2000  # maximum number of proposals per image; in inference also at most half of `candidates`
    cascade: bool = False  # whether there are three heads in sequence (Cascade R-CNN)
    least_score: float = 0.05  # score that a prediction must exceed
    most: int = 100  # maximum number of predicted objects per image
    masks: bool = False  # whether a mask of each object is predicted too (Mask R-CNN)
    head: str = "2fc"  # layers of a head, as a key of `HEADS`
    # Whether a head of the cascade predicts one box correction per region or one per class.
    cascade_boxes: CascadeBoxes = "shared"
    cascade_average: CascadeAverage = "probabilities"  # quantity that the cascade averages over its heads
    box_loss: BoxLoss = "smooth-l1"  # box loss of the heads; the GIoU loss of the corrected boxes has weight 10
    proposal_loss: ProposalLoss = "smooth-l1"  # box loss of the proposal network
    # Number of highest-scoring regions per feature map from which non-maximum suppression chooses the proposals; half
    # as many in inference. 0 means as many as `proposals`.
    candidates: int = 0
    # Boxes that are assigned to an object in addition to the boxes with enough IoU. "torchvision": the anchor with the
    # largest IoU, which is assigned to the object that this anchor overlaps most, even if that is another object.
    # "anchors": the anchor with the largest IoU, if that IoU is at least 0.3. "regions": also the proposal with the
    # largest IoU, if that IoU reaches the threshold of the head.
    matching: Matching = "torchvision"
    # How a region is pooled from a feature map. "sampled": at 2 x 2 points per bin. "aligned": without the half-pixel
    # shift of the original RoIAlign, and at more points for larger regions.
    pooling: Pooling = "sampled"
    pyramid_norm: PyramidNorm = "group"
    proposal_layers: int = 1  # number of convolutions of the proposal network
    mask_norm: MaskNorm = "none"
    maps: Maps = "strides"  # feature maps of the backbone: "last-blocks" for the two of torchvision's MobileNet
    anchor_sides: AnchorSides = "one"  # "one" for `anchor` times the stride, "five" for 32 to 512 pixels on every map

    def to_dict(self) -> dict[str, Any]:
        """Return the options as JSON values, for `model.json`."""
        return asdict(self)

    @classmethod
    def from_dict(cls, stored: Any) -> Self:
        """Return the options that `to_dict` of this or an older version of paucal wrote; `stored` is not trusted.

        Options that the older version did not have get their defaults, since its detectors were trained with these.
        """
        if not isinstance(stored, dict):
            raise UserError("model.json has no options of its detector: restore the file or train again.")
        defaults = {item.name: item.default for item in fields(cls)}
        if unknown := [name for name in stored if name not in defaults]:
            raise UserError(
                f"model.json gives a detector the option {str(unknown[0])[:80]!r}, which this version of paucal does "
                "not have: update paucal, or restore the file."
            )
        if missing := sorted(FIRST_OPTIONS - set(stored)):
            raise UserError(
                f"model.json lacks the option {missing[0]!r} of its detector: restore the file or train again."
            )
        hints = get_type_hints(cls)
        for name, value in stored.items():
            choices = HEADS if name == "head" else get_args(hints[name])
            has_type = type(value) is type(defaults[name])
            maximum = MAX_PROPOSAL_LAYERS if name == "proposal_layers" else MAX_OPTION
            if not has_type or not (value in choices if choices else 0 <= value <= maximum):
                raise UserError(
                    f"model.json has the invalid detector option {name} = {value!r}: restore the file or train again."
                )
        return cls(**stored)
