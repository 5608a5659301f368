"""The content of a model's `model.json`: architecture, classes and preprocessing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from torch import Tensor, nn

from paucal.backbones.spec import BackboneSpec
from paucal.backbones.stage_classifier import add_stage_classifier
from paucal.data.classes import plain_if_distinct
from paucal.models.preprocessing import Preprocessing, is_number
from paucal.models.tasks import CLASSIFICATION, VERBS
from paucal.types import UserError

FORMAT = 1
FORMAT_OF_SEVERAL = 2  # for models that give several labels, which earlier versions of paucal would misread
COLDEST, HOTTEST = 0.01, 100.0  # temperatures of logits


@dataclass(frozen=True)
class ModelCard:
    """The `model.json` of a classifier, or of a backbone alone; the cards of other tasks add fields to it.

    Attributes:
        backbone: Description from which the model is built.
        classes: Names in the order of the logits.
        preprocessing: Preparation of images.
        temperature: Number by which logits are divided before the softmax, see `evaluation.calibration`.
        thresholds: (K,) lowest probabilities at which each class is predicted, for a model with one sigmoid per class,
            whose images may have several labels; None for a model with a softmax.
        reads_stages: Whether the classifier reads the last stages too, see `backbones.stage_classifier`.
    """

    task: ClassVar[str] = CLASSIFICATION
    formats: ClassVar[tuple[int, ...]] = (FORMAT, FORMAT_OF_SEVERAL)

    backbone: BackboneSpec
    classes: tuple[str, ...]
    preprocessing: Preprocessing
    temperature: float = 1.0
    thresholds: tuple[float, ...] | None = None
    reads_stages: bool = False

    def __post_init__(self) -> None:
        if not is_number(self.temperature) or not COLDEST <= self.temperature <= HOTTEST:
            raise UserError(
                f"a model card has temperature {self.temperature!r}, expected a number from {COLDEST} to {HOTTEST}."
            )
        if self.thresholds is not None:
            fits = len(self.thresholds) == len(self.classes) and all(map(is_number, self.thresholds))
            if not fits or not all(0 < threshold < 1 for threshold in self.thresholds):
                raise UserError("a model card has thresholds that are not one number between 0 and 1 for each class.")

    @property
    def several(self) -> bool:
        """Whether the model gives several labels."""
        return self.thresholds is not None

    def shares(self, logits: Tensor) -> Tensor:
        """Return the (N, K) probabilities of (N, K) logits."""
        logits = logits.float() / self.temperature
        return logits.sigmoid() if self.several else logits.softmax(1)

    def with_thresholds(self, thresholds: Sequence[float]) -> "ModelCard":
        """Return the card of the same model with one sigmoid per class and these thresholds."""
        return replace(self, thresholds=tuple(thresholds))

    def at_temperature(self, temperature: float) -> "ModelCard":
        """Return the card of the same model with another temperature."""
        return replace(self, temperature=temperature)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "format": FORMAT_OF_SEVERAL if self.several else FORMAT,
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
                f"'paucal {VERBS[cls.task]}'; 'paucal predict' uses it."
            )
        try:
            if stored["format"] not in cls.formats:
                readable = " and ".join(map(str, cls.formats))
                raise UserError(f"model.json has format {stored['format']!r}, this version of paucal reads {readable}.")
            return cls._read(stored)
        except (KeyError, TypeError, AttributeError, ValueError) as problem:
            raise UserError(
                f"model.json is not a model card for {cls.task} ({problem}): restore it or train again."
            ) from problem

    @classmethod
    def _read(cls, stored: Mapping[str, Any]) -> Self:
        spec, names = BackboneSpec.from_dict(stored["backbone"]), stored["classes"]
        count, task_values = cls._read_task_fields(stored, spec)
        # Check lengths first: a hostile card could claim so many classes that building types would fill the memory.
        if not isinstance(names, list) or len(names) != count or not all(type(name) is str for name in names):
            raise UserError(f"model.json must name the {count} classes of its model: restore it.")
        # Class names of images are plain; classifiers of older versions may have other names.
        classes = plain_if_distinct(names) if cls.task == CLASSIFICATION else tuple(names)
        preprocessing = Preprocessing.from_dict(stored["preprocessing"])
        sizes = preprocessing.image_size, "pixels", spec.image_size
        channels = preprocessing.channels, "channels", spec.in_chans
        for stated, unit, expected in (sizes, channels):
            if stated != expected:
                raise UserError(f"model.json prepares images of {stated} {unit} for a model of {expected}: restore it.")
        return cls(backbone=spec, classes=classes, preprocessing=preprocessing, **task_values)

    @classmethod
    def _read_task_fields(cls, stored: Mapping[str, Any], spec: BackboneSpec) -> tuple[int, dict[str, Any]]:
        """Return the number of classes that a stored card must name, and the values of this task's own fields."""
        is_multi_label = stored["format"] == FORMAT_OF_SEVERAL
        return spec.num_classes, {
            "temperature": stored.get("temperature", 1.0),  # older cards lack it
            "thresholds": tuple(stored["thresholds"]) if is_multi_label else None,
            "reads_stages": stored.get("reads_stages", False) is True,
        }

    def build(self) -> nn.Module:
        """Build the model with fresh weights from the global random generator."""
        # All weights come from the run, so do not fetch published ones.
        model = replace(self.backbone, pretrained=False).build().model
        return add_stage_classifier(model, self.backbone.image_size) if self.reads_stages else model
