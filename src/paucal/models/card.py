"""The model card, stored as `model.json`: architecture, classes and preprocessing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from torch import Tensor, nn

from paucal.backbones.spec import BackboneSpec
from paucal.backbones.stage_classifier import add_stage_classifier
from paucal.data.classes import plain_if_distinct
from paucal.models.preprocessing import Preprocessing, is_number
from paucal.models.tasks import CLASSIFICATION, TRAINING_COMMANDS
from paucal.types import UserError

# Multi-label models have a format of their own, since earlier versions of paucal would misread their cards.
CARD_FORMAT, MULTI_LABEL_FORMAT = 1, 2
MIN_TEMPERATURE, MAX_TEMPERATURE = 0.01, 100.0  # range of numbers by which logits may be divided


@dataclass(frozen=True)
class ModelCard:
    """The card of a classifier, or of a backbone without a classifier. Subclasses for other tasks add fields."""

    task: ClassVar[str] = CLASSIFICATION
    formats: ClassVar[tuple[int, ...]] = (CARD_FORMAT, MULTI_LABEL_FORMAT)

    backbone: BackboneSpec
    classes: tuple[str, ...]  # class names in the order of the logits
    preprocessing: Preprocessing
    temperature: float = 1.0  # number by which logits are divided before the softmax, see `evaluation.calibration`
    # (K,) lowest probability at which each class is predicted, for a multi-label model with one sigmoid per class; None
    # for a model with a softmax.
    thresholds: tuple[float, ...] | None = None
    reads_stages: bool = False  # whether the classifier also reads the pooled outputs of the last stages

    def __post_init__(self) -> None:
        if not is_number(self.temperature) or not MIN_TEMPERATURE <= self.temperature <= MAX_TEMPERATURE:
            raise UserError(
                f"a model card has temperature {self.temperature!r}, expected a number from {MIN_TEMPERATURE} to "
                f"{MAX_TEMPERATURE}: restore model.json."
            )
        if self.thresholds is not None:
            has_one_per_class = len(self.thresholds) == len(self.classes) and all(map(is_number, self.thresholds))
            if not has_one_per_class or not all(0 < threshold < 1 for threshold in self.thresholds):
                raise UserError(
                    "a model card must have one threshold between 0 and 1 for each class: restore model.json."
                )

    @property
    def is_multi_label(self) -> bool:
        """Whether the model can predict any number of labels for an image."""
        return self.thresholds is not None

    def probabilities(self, logits: Tensor) -> Tensor:
        """Return the (N, K) probabilities of (N, K) logits."""
        logits = logits.float() / self.temperature
        return logits.sigmoid() if self.is_multi_label else logits.softmax(1)

    def with_thresholds(self, thresholds: Sequence[float]) -> "ModelCard":
        """Return the card of the same network as a multi-label model with these thresholds."""
        return replace(self, thresholds=tuple(thresholds))

    def at_temperature(self, temperature: float) -> "ModelCard":
        """Return the card of the same model with another temperature."""
        return replace(self, temperature=temperature)

    def to_dict(self) -> dict[str, Any]:
        """Return the content of `model.json` as plain values."""
        return {
            "format": MULTI_LABEL_FORMAT if self.is_multi_label else CARD_FORMAT,
            "backbone": self.backbone.to_dict(),
            "classes": list(self.classes),
            "preprocessing": self.preprocessing.to_dict(),
            "temperature": self.temperature,
            **({} if self.thresholds is None else {"thresholds": list(self.thresholds)}),
            **({"reads_stages": True} if self.reads_stages else {}),
        }

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Self:
        """Read the output of `to_dict` from an untrusted file."""
        if (task := stored.get("task") or CLASSIFICATION) != cls.task:
            raise UserError(
                f"the model of this run is for {str(task)[:40]}, expected {cls.task}: give a run of "
                f"'paucal {TRAINING_COMMANDS[cls.task]}', or use this run with 'paucal predict'."
            )
        try:
            if stored["format"] not in cls.formats:
                readable = " and ".join(map(str, cls.formats))
                raise UserError(
                    f"model.json has format {stored['format']!r}, but this version of paucal reads {readable}: use the "
                    "version that wrote the file."
                )
            return cls._read(stored)
        except (KeyError, TypeError, AttributeError, ValueError) as problem:
            raise UserError(
                f"model.json is not a model card for {cls.task} ({problem}): restore the file or train again."
            ) from problem

    @classmethod
    def _read(cls, stored: Mapping[str, Any]) -> Self:
        spec, names = BackboneSpec.from_dict(stored["backbone"]), stored["classes"]
        count, task_values = cls._read_task_fields(stored, spec)
        # Check the number of classes first, since a malicious card could name so many that the model fills the memory.
        if not isinstance(names, list) or len(names) != count or not all(type(name) is str for name in names):
            raise UserError(f"model.json must name the {count} classes of its model: restore the file.")
        # Cards written by older versions may have class names that are now normalised, such as "1.0" instead of "1".
        classes = plain_if_distinct(names) if cls.task == CLASSIFICATION else tuple(names)
        preprocessing = Preprocessing.from_dict(stored["preprocessing"])
        sizes = preprocessing.image_size, "pixels", spec.image_size
        channels = preprocessing.channels, "channels", spec.in_chans
        for stated, unit, expected in (sizes, channels):
            if stated != expected:
                raise UserError(
                    f"model.json has preprocessing for {stated} {unit}, but a model for {expected}: restore the file."
                )
        return cls(backbone=spec, classes=classes, preprocessing=preprocessing, **task_values)

    @classmethod
    def _read_task_fields(cls, stored: Mapping[str, Any], spec: BackboneSpec) -> tuple[int, dict[str, Any]]:
        """Return the number of classes that a stored card must list, and the values of the fields of this task."""
        is_multi_label = stored["format"] == MULTI_LABEL_FORMAT
        return spec.num_classes, {
            "temperature": stored.get("temperature", 1.0),  # missing in older cards
            "thresholds": tuple(stored["thresholds"]) if is_multi_label else None,
            "reads_stages": stored.get("reads_stages", False) is True,
        }

    def build(self) -> nn.Module:
        """Build the model with random weights, drawn with the global random generator."""
        # The weights of the run are loaded later, so published weights are not needed.
        model = replace(self.backbone, pretrained=False).build().model
        return add_stage_classifier(model, self.backbone.image_size) if self.reads_stages else model
