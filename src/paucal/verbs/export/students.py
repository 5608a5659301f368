"""Distil a run's model into a smaller model (student), if no file of the run's model is within the limits."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from paucal.backbones.spec import BackboneSpec
from paucal.methods.training_settings import TrainSettings
from paucal.models.card import ModelCard
from paucal.models.trained import TrainedModel
from paucal.models.weights.local import ready_weights
from paucal.models.weights.store import AddedWeights
from paucal.runner.console import Console
from paucal.runner.life import Stopped, begin
from paucal.runner.resuming import typed_settings
from paucal.runs import RunFolder
from paucal.tasks.classification.job import TrainingJob
from paucal.verbs.export.subjects import ExportableClassifier

SIDES = (224, 192, 160, 128, 96, 64)  # sides in pixels of the square inputs of students
UNTRAINED_STUDENT = "mobilenetv2_050"  # network with 0.7 M parameters that is trained from scratch
# Settings of the run that are passed to the training of the student, since they determine the images. The split is
# passed as a file.
IMAGE_SETTINGS = (
    *("data", "data_root", "image_column", "label_column", "label_separator", "channels", "classes", "on_bad_image"),
    *("resize", "hflip", "seed", "workers"),
)


@dataclass(frozen=True)
class Student:
    """A timm network into which a run's model can be distilled."""

    name: str
    side: int  # side of the square input in pixels
    pretrained: bool  # whether the network is initialised with pretrained weights on this machine

    def __str__(self) -> str:
        return f"{self.name} at {self.side} pixels"


class _ProgressConsole(Console):
    """Shows only progress bars; messages are only logged."""

    def say(self, text: str) -> None:
        """Log a line."""
        self.note(text)

    def show(self, renderable: Any) -> None:
        """Print nothing."""


def possible_students(teacher: ExportableClassifier) -> Iterator[Student]:
    """Yield students in order of preference, each network with decreasing input sizes.

    The smallest network with pretrained weights on this machine comes before a network without pretrained weights.
    """
    available = list(ready_weights("cpu"))
    teacher_spec, longer_side = teacher.card.backbone, max(teacher.card.backbone.image_size)
    if available:
        sizes = [entry.size / 1e6 if isinstance(entry, AddedWeights) else entry.megabytes for entry in available]
        name = available[sizes.index(min(sizes))].name
        is_same_model = name.partition(".")[0] == teacher_spec.name.partition(".")[0]
        yield from (Student(name, side, True) for side in SIDES if not (is_same_model and side >= longer_side))
    yield from (Student(UNTRAINED_STUDENT, side, False) for side in SIDES if side <= max(longer_side, SIDES[-1]))


def build_untrained(teacher: ExportableClassifier, student: Student) -> ExportableClassifier:
    """Return an untrained student, whose files have the same size and speed as the trained student's files."""
    teacher_card, size = teacher.card, (student.side, student.side)
    spec = BackboneSpec(student.name, len(teacher_card.classes), teacher_card.backbone.in_chans, size)
    with torch.random.fork_rng(devices=[]):
        network = spec.build().model.eval()
    card = ModelCard(spec, teacher_card.classes, replace(teacher_card.preprocessing, image_size=size))
    model = TrainedModel(network, card, torch.device("cpu"))
    subject = ExportableClassifier(teacher.run, teacher.console, teacher.mirror, model)
    subject.images = teacher.images  # so that the run's images are opened only once
    return subject


def train_student(teacher: ExportableClassifier, student: Student, time: str, folder: Path) -> ExportableClassifier:
    """Train a student for `time`, such as "15m", on the run's images, their labels and the teacher's probabilities."""
    run_settings = teacher.run.settings
    image_settings = {name: run_settings[name] for name in IMAGE_SETTINGS if run_settings.get(name) is not None}
    settings: dict[str, Any] = {
        **image_settings,
        "split": str(teacher.run.split),
        "model": student.name,
        "img_size": [student.side, student.side],
        "method": "supervised",
        "add": ["distillation"],
        "teacher": str(teacher.run.path),
        "distillation_targets": "probabilities",
        "time": time,
        "output": str(folder),
        **({} if student.pretrained else {"init": "none"}),
    }
    result = begin(
        TrainingJob(), typed_settings(settings, TrainSettings), dict.fromkeys(settings, "given"), _ProgressConsole()
    )
    if isinstance(result, Stopped):
        raise KeyboardInterrupt
    return ExportableClassifier(RunFolder(folder), teacher.console, teacher.mirror)
