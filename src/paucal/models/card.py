"""What `model.json` says of a model: how it is built, its classes, and how images are prepared for it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from paucal.backbones.spec import BackboneSpec
from paucal.data.class_names import plain_if_distinct
from paucal.models.preprocessing import Preprocessing, is_number
from paucal.types import UserError

FORMAT = 1
FORMAT_OF_SEVERAL = 2  # of models that give several labels, which programs before them would misread
COLDEST, HOTTEST = 0.01, 100.0  # temperatures of logits


@dataclass(frozen=True)
class ModelCard:
    """What `model.json` holds.

    Attributes:
        backbone: how to build the model.
        classes: names in the order of the logits.
        preprocessing: how to prepare images.
        temperature: by which logits are divided before they become probabilities, see `evaluation.calibration`.
        thresholds: (K,) probabilities from which on a class is an answer, of a model with one sigmoid per class, whose
            images may have several labels; None of one with a softmax.

    Raises:
        UserError: the temperature or a threshold is out of range.
    """

    backbone: BackboneSpec
    classes: tuple[str, ...]
    preprocessing: Preprocessing
    temperature: float = 1.0
    thresholds: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if not is_number(self.temperature) or not COLDEST <= self.temperature <= HOTTEST:
            raise UserError(
                f"a model card has temperature {self.temperature!r}, expected a number from {COLDEST} to {HOTTEST}."
            )

        if self.thresholds is not None:
            fits = len(self.thresholds) == len(self.classes) and all(map(is_number, self.thresholds))
            if not fits or not all(0 < one < 1 for one in self.thresholds):
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
        several = {} if self.thresholds is None else {"thresholds": list(self.thresholds)}
        return {
            "format": FORMAT_OF_SEVERAL if several else FORMAT,
            "backbone": self.backbone.to_dict(),
            "classes": list(self.classes),
            "preprocessing": self.preprocessing.to_dict(),
            "temperature": self.temperature,
            **several,
        }

    @classmethod
    def from_dict(cls, value: dict[str, Any]) -> "ModelCard":
        """Read what `to_dict` gave.

        Raises:
            UserError: the values are not those of a model card of this version.
        """
        if (task := value.get("task")) is not None:
            raise UserError(
                f"the model of this run does not classify, it is for {str(task)[:40]}: 'paucal predict' uses it, "
                "or give a run of 'paucal train'."
            )
        try:
            several = value["format"] == FORMAT_OF_SEVERAL
            if value["format"] != FORMAT and not several:
                raise UserError(
                    f"model.json has format {value['format']!r}, this version of paucal reads {FORMAT} and "
                    f"{FORMAT_OF_SEVERAL}."
                )
            plain: dict[str, Any] = {
                name: tuple(entry) if isinstance(entry, list) else entry
                for name, entry in value["preprocessing"].items()
            }
            if "channel_ranges" in plain:
                plain["channel_ranges"] = tuple(map(tuple, plain["channel_ranges"]))
            spec, names = BackboneSpec.from_dict(value["backbone"]), value["classes"]
            # Lengths first: a list of as many types as a hostile card claims classes would fill the memory.
            if not isinstance(names, list) or len(names) != spec.num_classes or not all(type(n) is str for n in names):
                raise UserError(f"model.json must name the {spec.num_classes} classes of its model: restore it.")
            temperature = value.get("temperature", 1.0)  # which older cards lack
            thresholds = tuple(value["thresholds"]) if several else None
            # Images have plain names of classes; a model of an earlier version may have others.
            card = cls(spec, plain_if_distinct(names), Preprocessing(**plain), temperature, thresholds)
            if card.preprocessing.image_size != spec.image_size:
                raise UserError(
                    f"model.json prepares images of {card.preprocessing.image_size} pixels for a model of "
                    f"{spec.image_size}: restore it."
                )
            if card.preprocessing.channels != spec.in_chans:
                raise UserError(
                    f"model.json prepares images of {card.preprocessing.channels} channels for a model of "
                    f"{spec.in_chans}: restore it."
                )
            return card
        except (KeyError, TypeError, AttributeError) as problem:
            raise UserError(
                f"model.json is no model card of paucal ({problem}): restore it or train again."
            ) from problem
