"""The record of auto-tuning: measurements, decisions and heads, stored after every step so that a run can resume.

Also compares two evaluated models of nearly equal accuracy by their losses on each validation image.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch.nn.functional as F

from paucal.evaluation.calibration import fit_temperature
from paucal.evaluation.classification import multi_label_losses
from paucal.evaluation.predictions import Predictions
from paucal.models.features import linear_classifier
from paucal.objectives import Objective
from paucal.runs import RunFolder
from paucal.runs.weights import read_weights, save_weights
from paucal.tasks.classification.auto_tune.probe import Head
from paucal.types import UserError

RECORD_FILE, PROBE_FILE = "rungs.json", "probe.safetensors"  # the record keeps its file name from earlier versions
# Names in the file that differ from the names of the fields.
STORED_NAMES = {
    "candidate_scores": "race",
    "seconds_by_size": "sizes",
    "preset_costs": "tuning",
    "plan_text": "plan",
    "is_tuned": "tune",
}
LOSSES_KEY = "losses"  # key of the losses on the validation images, in the details of an `EvaluatedModel`


@dataclass(frozen=True)
class EvaluatedModel:
    """One evaluated model: a candidate, the probe or a trial.

    The score is the accuracy, or the mean average precision for images with several labels. The score of a candidate is
    cross-validated on training images, and so is every score of a run without validation images. All other scores are
    measured on the validation images.
    """

    name: str  # "probe", or the name of the candidate or preset
    score: float
    seconds: float  # seconds to fit and evaluate the model
    details: Mapping[str, Any] = field(default_factory=dict)  # settings, counts and losses, as JSON values


@dataclass(frozen=True)
class TuneRecord:
    """Everything that auto-tuning has measured and decided."""

    candidates: tuple[str, ...] = ()  # timm names of the pretrained weights to compare
    budget: float = 0.0  # seconds that the run may take; 0 for no limit
    spent: float = 0.0  # seconds spent so far, including earlier calls of a resumed run
    candidate_scores: tuple[EvaluatedModel, ...] = ()  # scores of the candidates on a sample of the training images
    probe: EvaluatedModel | None = None  # linear head on frozen features; None before it is fitted
    # Seconds per training image for each image size and number of frozen stages; None if a step does not fit in memory.
    seconds_by_size: Mapping[str, float | None] = field(default_factory=dict)
    # Image size, seconds per epoch and number of trial steps, by name of the preset; None for a preset that does not
    # fit in the time or the memory.
    preset_costs: Mapping[str, Any] = field(default_factory=dict)
    trials: tuple[EvaluatedModel, ...] = ()  # finished trials of presets
    plan_text: str = ""  # text that says why the run has this length or keeps the probe; "" before the decision
    is_tuned: bool = True  # whether the network is fine-tuned after the probe
    # Head that is also fitted to unlabelled images, or the reason why there is no such head; None before this step.
    unlabelled: EvaluatedModel | None = None

    @property
    def first_model(self) -> EvaluatedModel | None:
        """The first model: the probe, or the head that also uses unlabelled images if that head is kept."""
        is_kept = self.unlabelled is not None and self.unlabelled.details.get("kept")
        return self.unlabelled if is_kept else self.probe

    @property
    def score_to_beat(self) -> float | None:
        """Validation score that a tuned model must exceed: the higher of the probe's and the first model's."""
        return max((model.score for model in (self.probe, self.first_model) if model is not None), default=None)

    def write(self, run: RunFolder) -> None:
        """Store the record in the run folder."""
        record = {STORED_NAMES.get(name, name): value for name, value in asdict(self).items()}
        run.write_json(RECORD_FILE, record)


def read_record(run: RunFolder) -> TuneRecord | None:
    """Read the record of a run; None for a run without auto-tuning."""
    if not (run.path / RECORD_FILE).is_file():
        return None
    record = run.read_json(RECORD_FILE)
    try:
        sizes = record["sizes"].items()
        return TuneRecord(
            candidates=tuple(map(str, record["candidates"])),
            budget=float(record["budget"]),
            spent=float(record["spent"]),
            candidate_scores=tuple(map(_read_model, record["race"])),
            probe=None if record["probe"] is None else _read_model(record["probe"]),
            seconds_by_size={str(size): None if seconds is None else float(seconds) for size, seconds in sizes},
            preset_costs=dict(record["tuning"]),
            trials=tuple(map(_read_model, record["trials"])),
            plan_text=str(record["plan"]),
            is_tuned=bool(record["tune"]),
            unlabelled=None if record.get("unlabelled") is None else _read_model(record["unlabelled"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as problem:
        raise UserError(
            f"{str(run.path / RECORD_FILE)!r} is damaged ({problem}): restore the file or train again."
        ) from problem


def _read_model(value: Mapping[str, Any]) -> EvaluatedModel:
    return EvaluatedModel(str(value["name"]), float(value["score"]), float(value["seconds"]), dict(value["details"]))


def head_file_name(image_size: Sequence[int]) -> str:
    """Return the file name of the head from which tuning starts at an image size other than the probe's."""
    return f"head-{'x'.join(map(str, image_size))}.safetensors"


def load_head(run: RunFolder, objective: Objective, image_size: Sequence[int] | None) -> None:
    """Load a stored head into the deployed network: the head for an image size, or else the probe, if there is one."""
    path = run.path / head_file_name(image_size or [])
    path = path if path.is_file() else run.path / PROBE_FILE
    classifier = linear_classifier(objective.deployable())
    if not path.is_file() or classifier is None:
        return
    try:
        classifier.load_state_dict(read_weights(path))
    except RuntimeError as problem:
        raise UserError(f"{str(path)!r} does not match the run's model: train again.") from problem


def save_head(run: RunFolder, head: Head, name: str) -> None:
    """Store a head in a file of the run folder; tuning may start from this head."""
    save_weights(run.path / name, {"weight": head.weight, "bias": head.bias})


def calibrated_losses(predictions: Predictions) -> list[float]:
    """Return the cross-entropy of each validation image in nats, at the temperature that suits these images best."""
    logits, labels = predictions.logits.double(), predictions.labels
    if labels.ndim == 1:
        losses = F.cross_entropy(logits / fit_temperature(logits, labels), labels, reduction="none")
    else:
        losses = multi_label_losses(predictions)  # means of the binary cross-entropies, without calibration
    return [round(loss, 4) for loss in losses.tolist()]


def accuracies_differ(score: float, other_score: float, n_images: int, errors: float = 1.0) -> bool:
    """Return whether two accuracies on `n_images` images differ by more than `errors` standard errors."""
    variance = sum(accuracy * (1 - accuracy) for accuracy in (score, other_score)) / max(n_images, 1)
    return abs(score - other_score) > errors * math.sqrt(variance)


def is_better(score: float, losses: Sequence[float], other_score: float, other_losses: Sequence[float]) -> bool:
    """Return whether a model is better than another: by accuracy, or by mean loss if the accuracies hardly differ.

    Any lower mean loss counts, without a margin. A margin of one standard error would have kept a first model that
    classified 82.0 % of 1,200 test images correctly, and rejected a tuned model with 85.8 %
    (docs/lab/2026-11-26-ways-to-tune.md).
    """
    if accuracies_differ(score, other_score, len(losses)):
        return score > other_score
    return float(np.mean(losses)) < float(np.mean(other_losses))
