"""The record of auto-tuning: measurements and decisions, stored after every step so that a stopped run can resume."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from paucal.runs import RunFolder
from paucal.types import UserError

RECORD_FILE = "rungs.json"  # the file keeps its name from earlier versions
STORED_NAMES = {"candidate_scores": "race"}  # names in the file that differ from the names of the fields


@dataclass(frozen=True)
class EvaluatedModel:
    """One evaluated model: a candidate, the probe or a trial.

    Attributes:
        name: "probe", or the name of the candidate or preset.
        score: Accuracy, or mean average precision for images with several labels. The score of a candidate is
            cross-validated on training images, and so is every score of a run without validation images. All other
            scores are measured on the validation images.
        seconds: Duration of the step.
        details: Settings, counts and losses of the step, as JSON values.
    """

    name: str
    score: float
    seconds: float
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class TuneRecord:
    """Everything that auto-tuning has measured and decided.

    Attributes:
        candidates: timm names of the pretrained weights to compare.
        budget: Seconds that the run may take; 0 for no limit.
        spent: Seconds spent so far, including earlier calls of a resumed run.
        candidate_scores: One step per candidate that was evaluated on a sample of the training images.
        probe: Step that fits a linear head to frozen features; None before this step is finished.
        unlabelled: Step that fits a head also to unlabelled images; None if the run has not finished such a step.
        sizes: Seconds per training image, by image size and frozen stages; None if a training step does not fit in the
            memory.
        tuning: Image size, seconds per epoch and number of trial steps, by name of the preset; None for a preset that
            does not fit in the time or the memory.
        trials: One step per finished trial of a preset.
        plan: Sentence that explains the number of epochs or the decision to keep the probe; "" before the decision.
        tune: Whether the network is fine-tuned after the probe.
    """

    candidates: tuple[str, ...] = ()
    budget: float = 0.0
    spent: float = 0.0
    candidate_scores: tuple[EvaluatedModel, ...] = ()
    probe: EvaluatedModel | None = None
    sizes: Mapping[str, float | None] = field(default_factory=dict)
    tuning: Mapping[str, Any] = field(default_factory=dict)
    trials: tuple[EvaluatedModel, ...] = ()
    plan: str = ""
    tune: bool = True
    unlabelled: EvaluatedModel | None = None

    @property
    def first_model(self) -> EvaluatedModel | None:
        """Step of the first model: the probe, or the head that also uses unlabelled images if that head is kept."""
        is_kept = self.unlabelled is not None and self.unlabelled.details.get("kept")
        return self.unlabelled if is_kept else self.probe

    @property
    def score_to_beat(self) -> float | None:
        """Validation score that a tuned model must exceed: the higher of the probe's and the first model's."""
        return max((step.score for step in (self.probe, self.first_model) if step is not None), default=None)

    def write(self, run: RunFolder) -> None:
        """Store the record in the run folder."""
        record = {STORED_NAMES.get(name, name): value for name, value in asdict(self).items()}
        run.write_json(RECORD_FILE, record)


def read_record(run: RunFolder | None) -> TuneRecord | None:
    """Read the record of a run; None for a run without auto-tuning."""
    if run is None or not (run.path / RECORD_FILE).is_file():
        return None
    record = run.read_json(RECORD_FILE)
    try:
        sizes = record["sizes"].items()
        return TuneRecord(
            candidates=tuple(map(str, record["candidates"])),
            budget=float(record["budget"]),
            spent=float(record["spent"]),
            candidate_scores=tuple(map(_read_step, record["race"])),
            probe=None if record["probe"] is None else _read_step(record["probe"]),
            sizes={str(size): None if seconds is None else float(seconds) for size, seconds in sizes},
            tuning=dict(record["tuning"]),
            trials=tuple(map(_read_step, record["trials"])),
            plan=str(record["plan"]),
            tune=bool(record["tune"]),
            unlabelled=None if record.get("unlabelled") is None else _read_step(record["unlabelled"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as problem:
        raise UserError(
            f"{str(run.path / RECORD_FILE)!r} is damaged ({problem}): restore the file or train again."
        ) from problem


def _read_step(value: Mapping[str, Any]) -> EvaluatedModel:
    return EvaluatedModel(str(value["name"]), float(value["score"]), float(value["seconds"]), dict(value["details"]))
