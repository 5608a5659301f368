"""What `model.json` says of a detector."""

from dataclasses import dataclass, field, replace
from typing import Any, TypeGuard

import torch

from paucal.backbones import BackboneSpec
from paucal.models.card import ModelCard
from paucal.models.preprocessing import MAX_SIDE
from paucal.runs import RunFolder, read_weights
from paucal.transfer.detection.detector import Detector
from paucal.transfer.detection.options import DetectorOptions
from paucal.transfer.stages import stage_maps
from paucal.types import UserError

TASK = "detection"


@dataclass(frozen=True)
class DetectorCard(ModelCard):
    """How to build a detector, and what it gives.

    Attributes:
        options: of the detector.
        category_ids: the number of each class in the files it was trained on.
        resize_to: most pixels of an image's shorter and longer side.
    """

    options: DetectorOptions = field(default_factory=DetectorOptions)
    category_ids: tuple[int, ...] = ()
    resize_to: tuple[int, int] = (800, 1333)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        more = {"options": self.options.to_dict(), "category_ids": list(self.category_ids)}
        return {**super().to_dict(), "task": TASK, **more, "resize_to": list(self.resize_to)}

    @classmethod
    def from_dict(cls, value: dict[str, Any]) -> "DetectorCard":
        """Read what `to_dict` gave, from a file of anybody.

        Raises:
            UserError: it is no card of a detector of this version.
        """
        if value.get("task") != TASK:
            raise UserError("model.json is that of no detector: give a run of 'paucal detect'.")
        names, numbers, sides = value.get("classes"), value.get("category_ids"), value.get("resize_to")
        if not _all_of(names, str) or not _all_of(numbers, int) or not 0 < len(names) == len(numbers):
            raise UserError("model.json must name the classes of its detector with their numbers: restore it.")
        if not _all_of(sides, int) or len(sides) != 2 or not all(8 <= side <= MAX_SIDE for side in sides):
            raise UserError(f"model.json resizes images to {sides!r}, expected two sides up to {MAX_SIDE}: restore it.")
        plain = ModelCard.from_dict({**{k: v for k, v in value.items() if k != "task"}, "classes": []})
        return cls(
            plain.backbone,
            tuple(names),
            plain.preprocessing,
            options=DetectorOptions.from_dict(value.get("options")),
            category_ids=tuple(numbers),
            resize_to=(sides[0], sides[1]),
        )

    def build(self) -> Detector:
        """Build the detector with weights from the global random generator."""
        return build_detector(self.backbone, len(self.classes), self.options)


def _all_of(values: Any, kind: type) -> TypeGuard[list[Any]]:
    return isinstance(values, list) and all(type(value) is kind for value in values)


def build_detector(
    spec: BackboneSpec, classes: int, options: DetectorOptions, drop_path_rate: float | None = None
) -> Detector:
    """Build a detector on a backbone.

    Raises:
        UserError: the backbone cannot be built, or gives no maps of the strides that are needed.
    """
    stages = stage_maps(replace(spec, pretrained=False), drop_path_rate, options.finest)
    if not stages.strides:
        raise UserError(f"{spec.name} has no map of a stride from {options.finest} pixels up: choose another model.")
    return Detector(stages, classes, options)


def load_detector(run: RunFolder, device: torch.device) -> tuple[Detector, DetectorCard]:
    """Load the detector of a run, ready to detect.

    Raises:
        UserError: the run is that of another verb, has saved no model yet, or its files do not fit each other.
    """
    if run.last.exists() and not run.card.exists():
        raise UserError(f"{str(run.path)!r} was stopped before it saved a model: let it go on with --resume first.")
    card = DetectorCard.from_dict(run.read_json(run.card.name))
    with torch.random.fork_rng(devices=[]):
        detector = card.build()
    try:
        detector.load_state_dict(read_weights(run.weights))
    except RuntimeError as problem:
        reason = str(problem).split("\n")[1].strip() if "\n" in str(problem) else str(problem)
        raise UserError(f"{str(run.weights)!r} does not fit its model.json ({reason}).") from problem
    return detector.eval().to(device), card
