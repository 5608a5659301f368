"""The model card of a detector, which is stored in `model.json`, and the loading of a run's trained detector."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeGuard

import torch

from paucal.backbones import BackboneSpec
from paucal.models.card import CARD_FORMAT, ModelCard
from paucal.models.preprocessing import MAX_SIDE
from paucal.models.saved import load_saved
from paucal.models.tasks import DETECTION
from paucal.runs import RunFolder
from paucal.tasks.detection.network.detector import Detector, build_detector
from paucal.tasks.detection.network.options import DetectorOptions
from paucal.types import UserError
from paucal.wording import counted


@dataclass(frozen=True)
class DetectorCard(ModelCard):
    """The model card of a detector: its architecture, classes and preprocessing.

    Attributes:
        options: Structure of the detector, and limits on its predictions.
        category_ids: Category id of each class in the annotation files.
        resize_to: Maximum shorter and maximum longer side of an input image, in pixels.
    """

    task: ClassVar[str] = DETECTION
    formats: ClassVar[tuple[int, ...]] = (CARD_FORMAT,)

    options: DetectorOptions = field(default_factory=DetectorOptions)
    category_ids: tuple[int, ...] = ()
    resize_to: tuple[int, int] = (800, 1333)

    def to_dict(self) -> dict[str, Any]:
        """Return the card as plain JSON values."""
        detector_values = {"options": self.options.to_dict(), "category_ids": list(self.category_ids)}
        return {**super().to_dict(), "task": self.task, **detector_values, "resize_to": list(self.resize_to)}

    @classmethod
    def _read_task_fields(cls, stored: Mapping[str, Any], spec: BackboneSpec) -> tuple[int, dict[str, Any]]:
        numbers, sides = stored["category_ids"], stored["resize_to"]
        if not _are_whole_numbers(numbers) or not numbers:
            raise UserError(
                "model.json must have an integer in 'category_ids' for each class of its detector: restore the file."
            )
        if not _are_whole_numbers(sides) or len(sides) != 2 or not all(8 <= side <= MAX_SIDE for side in sides):
            raise UserError(
                f"'resize_to' in model.json is {sides!r}, expected two sides from 8 to {MAX_SIDE}: restore the file."
            )
        if spec.num_classes:
            count = counted(spec.num_classes, "class", "classes")
            raise UserError(f"model.json gives the backbone of a detector {count}, expected none: restore the file.")
        return len(numbers), {
            "options": DetectorOptions.from_dict(stored.get("options")),
            "category_ids": tuple(numbers),
            "resize_to": (sides[0], sides[1]),
        }

    def build(self) -> Detector:
        """Build the detector with random weights from torch's global generator."""
        return build_detector(self.backbone, len(self.classes), self.options)


def _are_whole_numbers(values: Any) -> TypeGuard[list[int]]:
    return isinstance(values, list) and all(type(value) is int for value in values)


def load_detector(
    run: str | os.PathLike[str] | RunFolder, device: torch.device | str = "cpu"
) -> tuple[Detector, DetectorCard, torch.device]:
    """Load the detector of a run for predictions, and return the detector, its model card and its torch device."""
    with torch.random.fork_rng(devices=[]):
        detector, card, target = load_saved(run, DetectorCard, device)
    assert isinstance(detector, Detector)
    return detector, card, target
