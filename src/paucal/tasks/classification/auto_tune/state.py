"""The state of auto-tuning: the run, its measurements, and the time that is left."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from paucal.models.precision import FLOAT32, PrecisionChoice
from paucal.runner.console import Console
from paucal.runner.run_folder import store_changes
from paucal.runner.starts import RECORD
from paucal.runs import RunFolder
from paucal.tasks.classification.assembly import TrainingSetup, assemble
from paucal.tasks.classification.auto_tune.head_race import RaceResult
from paucal.tasks.classification.auto_tune.learning_curve import LearningCurve
from paucal.tasks.classification.auto_tune.probe import Head
from paucal.tasks.classification.auto_tune.record import TuneRecord


@dataclass(frozen=True)
class FittedHead:
    """A linear head on frozen features.

    Attributes:
        features: (N + V, D) features of the training and of the validation images.
        staged: Whether `features` has the pooled last stages after the last features.
        rows: (N,) positions among the training images.
        score: Score of the best head on the validation images; cross-validated without validation images.
        seconds: Seconds of one image through the frozen network in float32.
        race: Comparison with heads that read the last stages too; has no head if none of them won.
        curve: Learning curve of the best head; None if not requested.
        losses: (V,) calibrated losses of the best head on the validation images, in nats.
    """

    head: Head
    features: Tensor
    staged: bool
    rows: Tensor
    score: float
    seconds: float
    race: RaceResult = field(default_factory=RaceResult)
    race_seconds: float = 0.0
    curve: LearningCurve | None = None
    losses: Sequence[float] = ()

    @property
    def images(self) -> int:
        """Number of training images that the head was fitted to."""
        return len(self.rows)


RESERVE = 0.05  # share of the time kept for pictures, the page and unforeseen work
# With fewer training images, validation cannot show whether tuning is better than the probe.
MIN_IMAGES = 100
NEVER_REVISED = frozenset(("init", "time", "method", "model", "device", "devices", "nodes", "batch_size", "precision"))


@dataclass
class TuneState:
    """State of an auto-tuning in progress.

    Attributes:
        setup: Setup of the run with the settings chosen so far.
        start_time: `time.monotonic()` at the start of the run, moved back by the time that earlier calls spent.
        image_seconds: Seconds of one image through the frozen network in float32, at the probe's image size.
        race_rows: Positions among the training images on which the candidates are compared; None for no comparison.
        first: First model with its features for later steps; None if an earlier call fitted it.
    """

    run: RunFolder
    setup: TrainingSetup
    record: TuneRecord
    console: Console
    start_time: float
    image_seconds: float = 0.0
    precision: PrecisionChoice = FLOAT32
    announced: bool = False
    race_rows: Tensor | None = None
    first: FittedHead | None = None

    @property
    def spent(self) -> float:
        """Seconds since the run started, over all calls."""
        return time.monotonic() - self.start_time

    def final_eval_seconds(self, shrink: float = 1.0) -> float:
        """Return the seconds of the evaluations after training, for images with `shrink` times the probe's pixels."""
        test = shrink * self.image_seconds * len(self.setup.data.part("test"))
        mirrored, refit = 2 if self.setup.settings.hflip else 0, 0.0
        if self.record.probe is not None and len(self.setup.data.part("val")):
            images = self.record.probe.details.get("images", 0)
            if self.record.unlabelled is not None:
                images += self.record.unlabelled.details.get("read_again", 0)
            refit = shrink * self.image_seconds * images
        evaluations = 2 + mirrored + self.setup.settings.soup  # see `finish_model`
        return test + refit + evaluations * self.eval_seconds(shrink)

    def eval_seconds(self, shrink: float = 1.0) -> float:
        """Return the seconds of one validation, for images with `shrink` times the probe's pixels."""
        return shrink * self.image_seconds * len(self.setup.data.part("val"))

    def left(self, shrink: float = 1.0) -> float:
        """Return the seconds left for training, after the reserve and the final evaluations."""
        return (1 - RESERVE) * self.record.budget - self.spent - self.final_eval_seconds(shrink)

    def save(self, **changes: Any) -> None:
        """Store changes of the record in the run."""
        self.record = replace(self.record, **changes, spent=self.spent)
        self.record.write(self.run)

    def reassemble(self, **changes: Any) -> TrainingSetup:
        """Return a setup with changed settings, and choose again the automatic settings that depend on them."""
        setup = self.setup
        automatic = {name for name, origin in setup.origin.items() if origin.startswith("auto: ")}
        revised = automatic - NEVER_REVISED - set(changes) - (set() if "model" in changes else {"img_size"})
        settings = replace(setup.settings, **dict.fromkeys(revised), **changes)
        given = {name: origin for name, origin in setup.origin.items() if name not in revised and origin != "default"}
        new_setup = assemble(settings, given, self.console.progress, self.run, setup.data)
        return replace(new_setup, plan=replace(new_setup.plan, deadline=setup.plan.deadline))

    def adopt(self, setup: TrainingSetup, reasons: Mapping[str, str]) -> None:
        """Use a setup for the rest of the run, and store its settings with the reasons."""
        origin = {**setup.origin, **{name: f"auto: {reason}" for name, reason in reasons.items()}}
        self.setup = replace(setup, origin=origin)
        store_changes(self.run, setup.settings, origin)
        if setup.start is not None:
            self.run.write_json(RECORD, setup.start.to_dict())


def is_timed(setup: TrainingSetup) -> bool:
    """Return whether the time budget decides the length of the run."""
    return setup.tune_record is not None and setup.tune_record.budget > 0 and is_free(setup, "epochs")


def cannot_judge_tuning(setup: TrainingSetup) -> bool:
    """Return whether there are too few images to show that tuning helps, so that the run keeps its first model."""
    counts = setup.data.counts()
    return is_free(setup, "epochs") and (not counts["val"] or counts["train"] < MIN_IMAGES)


def is_free(setup: TrainingSetup, name: str) -> bool:
    """Return whether the user did not set this setting."""
    return setup.origin.get(name, "default") == "default" or setup.origin[name].startswith("auto: ")
