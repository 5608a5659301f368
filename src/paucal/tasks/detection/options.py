"""What a detector is built of, and how it learns and answers; light, so that settings can name the choices."""

from collections.abc import Collection
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, get_args

from paucal.tasks.detection.heads import HEADS
from paucal.types import UserError

BoxLoss = Literal["smooth-l1", "l1", "giou"]
ProposalLoss = Literal["smooth-l1", "l1"]
Matching = Literal["torchvision", "anchors", "regions"]
Pooling = Literal["sampled", "aligned"]
PyramidNorm = Literal["group", "none"]
CascadeBoxes = Literal["shared", "per-class"]
CascadeAverage = Literal["probabilities", "logits"]
LARGEST = 100_000


def _added(default: Any, choices: Collection[str] = ()) -> Any:
    """Declare an option that older cards lack: they open with its default, which is what they were trained with."""
    return field(default=default, metadata={"added": True, "choices": choices})


@dataclass(frozen=True)
class DetectorOptions:
    """The structure of a detector, and how it learns and answers.

    A new option is declared with `_added`, so that stored detectors stay readable.

    Attributes:
        channels: Channels of the pyramid.
        head_dim: Width of the fully connected layers that judge a region.
        finest: Stride in pixels of the finest map.
        anchor: Side of the anchors over the stride of their map.
        regions: Regions per image that the heads learn from.
        proposals: Regions per image that are proposed in training; half as many for predictions.
        cascade: Whether three heads follow each other (Cascade R-CNN).
        least_score: Lowest score of a detection.
        most: Most detections per image.
        masks: Whether the detector also predicts the pixels of each object (Mask R-CNN).
        head: Layers that judge a region, by their name in `HEADS`.
        cascade_boxes: Whether a head of the cascade corrects a box once, or once for each class.
        cascade_average: What the cascade averages over its heads: probabilities, or logits.
        box_loss: Loss of the heads' boxes: smooth L1, L1, or GIoU of the corrected boxes with weight 10.
        proposal_loss: Loss of the proposals' boxes.
        candidates: Regions of each map that are compared before proposals are chosen; 0 for as many as `proposals`.
        matching: What learns an object beside the regions that overlap it enough. "torchvision": the anchor that
            overlaps it most learns the object that this anchor overlaps most. "anchors": the anchor that overlaps it
            most learns this object, from an overlap of 0.3. "regions": the region that overlaps it most does so too,
            from the overlap of a hit.
        pooling: How a region is read from a map: at 2x2 points of each of its cells, or exactly aligned at as many
            points as it covers.
        pyramid_norm: Norm after each convolution of the pyramid.
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
    head: str = _added("2fc", HEADS)
    cascade_boxes: CascadeBoxes = _added("shared", get_args(CascadeBoxes))
    cascade_average: CascadeAverage = _added("probabilities", get_args(CascadeAverage))
    box_loss: BoxLoss = _added("smooth-l1", get_args(BoxLoss))
    proposal_loss: ProposalLoss = _added("smooth-l1", get_args(ProposalLoss))
    candidates: int = _added(0)
    matching: Matching = _added("torchvision", get_args(Matching))
    pooling: Pooling = _added("sampled", get_args(Pooling))
    pyramid_norm: PyramidNorm = _added("group", get_args(PyramidNorm))

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for a model's card."""
        return asdict(self)

    @classmethod
    def from_dict(cls, stored: Any) -> "DetectorOptions":
        """Read what `to_dict` of this version or of an older one gave, from an untrusted file.

        Raises:
            UserError: An entry is missing, unknown, of another type or out of range.
        """
        known = {item.name: item for item in fields(cls)}
        required = {name for name, item in known.items() if not item.metadata.get("added")}
        if not isinstance(stored, dict) or not required <= set(stored) <= set(known):
            raise UserError("model.json describes no detector of this version of paucal: restore it or train again.")
        for name, value in stored.items():
            choices, kind = known[name].metadata.get("choices"), type(known[name].default)
            if type(value) is not kind or not (value in choices if choices else 0 <= value <= LARGEST):
                raise UserError(f"model.json gives a detector {name} {value!r}: restore it or train again.")
        return cls(**stored)
