"""The model card of a detector, which is stored in `model.json`, and the detectors that a run stores."""

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, TypeGuard

import torch
from torch import Tensor, nn

from paucal.backbones import BackboneSpec
from paucal.models.card import CARD_FORMAT, ModelCard
from paucal.models.preprocessing import MAX_SIDE
from paucal.models.tasks import DETECTION
from paucal.models.trained import load_saved
from paucal.runs import RunFolder
from paucal.runs.weights import read_weights, save_weights
from paucal.tasks.detection.network.detector import Detector, build_detector
from paucal.tasks.detection.network.options import DetectorOptions
from paucal.types import UserError
from paucal.wording import counted

# Files in a run folder: the record of the first detector, and the weights of its layers after the frozen backbone.
FIRST_RECORD, FIRST_WEIGHTS = "first_detector.json", "first_detector.safetensors"
BACKBONE_PREFIX = "stages.backbone."


@dataclass(frozen=True)
class DetectorCard(ModelCard):
    """The model card of a detector: its architecture, classes and preprocessing."""

    task: ClassVar[str] = DETECTION
    formats: ClassVar[tuple[int, ...]] = (CARD_FORMAT,)

    options: DetectorOptions = field(default_factory=DetectorOptions)
    category_ids: tuple[int, ...] = ()  # id of each class in the annotation files
    resize_to: tuple[int, int] = (800, 1333)  # maximum shorter and longer side of an input image, in pixels

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


@dataclass(frozen=True)
class FirstDetectorRecord:
    """Record of the first detector of a run, which is trained on the frozen backbone."""

    steps: int  # number of optimizer steps
    score: float | None  # AP on the validation images; None if there are no validation images
    ap50: float | None
    seconds: float  # seconds from the start of the command until this detector was saved

    def write(self, run: RunFolder) -> None:
        """Store the record in the run folder."""
        run.write_json(FIRST_RECORD, asdict(self))


def save_layers(run: RunFolder, detector: nn.Module) -> None:
    """Store all layers of a detector except its backbone."""
    save_weights(run.path / FIRST_WEIGHTS, _layers_after_backbone(detector))


def _layers_after_backbone(detector: nn.Module) -> dict[str, Tensor]:
    return {name: value for name, value in detector.state_dict().items() if not name.startswith(BACKBONE_PREFIX)}


def load_layers(run: RunFolder, detector: nn.Module) -> None:
    """Load into a detector the layers that `save_layers` has stored."""
    layers, path = read_weights(run.path / FIRST_WEIGHTS), str(run.path / FIRST_WEIGHTS)
    expected = {name: value.shape for name, value in _layers_after_backbone(detector).items()}
    if {name: value.shape for name, value in layers.items()} != expected:
        raise UserError(f"{path!r} does not fit the detector of this run: restore the file or train again.")
    detector.load_state_dict(layers, strict=False)


def read_first_detector(run: RunFolder | None) -> FirstDetectorRecord | None:
    """Read the record of a run's first detector; None if the run has no such record yet."""
    if run is None or not (run.path / FIRST_RECORD).is_file():
        return None
    record = run.read_json(FIRST_RECORD)
    try:
        ap, ap50 = (None if record[name] is None else float(record[name]) for name in ("score", "ap50"))
        return FirstDetectorRecord(int(record["steps"]), ap, ap50, float(record["seconds"]))
    except (KeyError, TypeError, ValueError) as problem:
        raise UserError(
            f"{str(run.path / FIRST_RECORD)!r} is damaged ({problem!r}): restore the file or train again."
        ) from problem
