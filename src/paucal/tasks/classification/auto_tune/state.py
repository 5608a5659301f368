"""The state of auto-tuning: the run, its measurements and the remaining time."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from paucal.models.precision import FLOAT32, PrecisionChoice
from paucal.runner.console import Console
from paucal.runner.initial_weights import START_FILE
from paucal.runner.resuming import store_changes
from paucal.runs import RunFolder
from paucal.settings.options import automatic_origin, is_automatic
from paucal.tasks.classification.assembly import TrainingSetup, assemble
from paucal.tasks.classification.auto_tune.heads import HeadComparison
from paucal.tasks.classification.auto_tune.learning_curve import LearningCurve
from paucal.tasks.classification.auto_tune.probe import Head
from paucal.tasks.classification.auto_tune.record import TuneRecord

PLANNING_RESERVE = 0.05  # fraction of the time budget for plots, the report page and unforeseen work
# With fewer training images, validation cannot show whether tuning is better than the probe.
MIN_IMAGES = 100
# Automatic settings that are not chosen again when other settings change.
NEVER_REVISED = frozenset(("init", "time", "method", "model", "device", "devices", "nodes", "batch_size", "precision"))


@dataclass(frozen=True)
class FittedHead:
    """A linear head on the frozen features of N training and V validation images."""

    head: Head  # logistic regression on the last features
    features: Tensor  # (N + V, D)
    staged: bool  # whether `features` has the pooled maps of the last stages, in columns after the last features
    rows: Tensor  # (N,) indices into all training images
    score: float  # score of the best head on the validation images; cross-validated if there are no such images
    seconds_per_image: float  # seconds per image of a forward pass through the frozen network in float32
    # Comparison with heads that also read the last stages; `comparison.head` is None if no such head is better.
    comparison: HeadComparison
    compare_seconds: float
    curve: LearningCurve | None  # learning curve of the best head; None if no curve was measured
    losses: Sequence[float]  # (V,) calibrated losses of the best head on the validation images, in nats

    @property
    def n_images(self) -> int:
        """Number of training images that the head was fitted to."""
        return len(self.rows)


@dataclass
class TuneState:
    """State of an auto-tuning in progress."""

    run: RunFolder
    setup: TrainingSetup  # checked inputs of the run, with the settings chosen so far
    record: TuneRecord  # measurements and decisions of the finished steps
    console: Console
    start_time: float  # `time.monotonic()` at the start of this call, minus the seconds that earlier calls spent
    image_seconds: float = 0.0  # seconds of a forward pass of one image in float32, at the probe's image size
    precision: PrecisionChoice = FLOAT32  # precision of the frozen features
    candidate_rows: Tensor | None = None  # training images on which candidates are compared; None for no comparison
    preset_freeze: str | int | None = None  # `--freeze` of the tuning preset that is being considered or was chosen
    # First model with its features, kept for the step with unlabelled images; None if an earlier call fitted the first
    # model, or if the features are not needed.
    first_model: FittedHead | None = None

    @property
    def spent_seconds(self) -> float:
        """Seconds spent on the run so far, including earlier calls of a resumed run."""
        return time.monotonic() - self.start_time

    def final_eval_seconds(self, pixel_ratio: float = 1.0) -> float:
        """Return the seconds of the evaluations after training.

        `pixel_ratio` is the number of pixels of an image, divided by the number of pixels of an image of the probe.
        """
        test = pixel_ratio * self.image_seconds * len(self.setup.data.split_indices("test"))
        mirrored, refit = 2 if self.setup.settings.hflip else 0, 0.0
        if self.record.probe is not None and len(self.setup.data.split_indices("val")):
            refit = pixel_ratio * self.image_seconds * self.record.probe.details.get("images", 0)
            refit += self._unlabelled_seconds(pixel_ratio)
        evaluations = 2 + mirrored + self.setup.settings.soup  # see `finish_model`
        return test + refit + evaluations * self.eval_seconds(pixel_ratio)

    def _unlabelled_seconds(self, pixel_ratio: float) -> float:
        """Return the seconds that the tuned network takes to compute the features of unlabelled images."""
        details = {} if self.record.unlabelled is None else self.record.unlabelled.details
        if details.get("resumed") and self.preset_freeze == details["frozen_stages"] and pixel_ratio == 1.0:
            return details["resumed"] * details["resume_seconds"]
        return pixel_ratio * self.image_seconds * details.get("read_again", 0)

    def eval_seconds(self, pixel_ratio: float = 1.0) -> float:
        """Return the seconds of one evaluation on the validation images; for `pixel_ratio` see `final_eval_seconds`."""
        return pixel_ratio * self.image_seconds * len(self.setup.data.split_indices("val"))

    def seconds_left(self, pixel_ratio: float = 1.0) -> float:
        """Return the seconds left for training, after subtracting the reserved time and the final evaluations."""
        return (1 - PLANNING_RESERVE) * self.record.budget - self.spent_seconds - self.final_eval_seconds(pixel_ratio)

    def plan_for_preset(self, preset_settings: Mapping[str, Any]) -> None:
        """Estimate the remaining time for this preset from now on; only its setting `freeze` changes the estimate."""
        self.preset_freeze = preset_settings.get("freeze", self.setup.settings.freeze)

    def save(self, **changes: Any) -> None:
        """Change fields of the record, and store the record in the run folder."""
        self.record = replace(self.record, **changes, spent=self.spent_seconds)
        self.record.write(self.run)

    def reassemble(self, **changes: Any) -> TrainingSetup:
        """Return a setup with changed settings; automatic settings that may depend on the changes are chosen again."""
        setup = self.setup
        automatic = {name for name, origin in setup.origins.items() if is_automatic(origin)}
        revised = automatic - NEVER_REVISED - set(changes) - (set() if "model" in changes else {"img_size"})
        settings = replace(setup.settings, **dict.fromkeys(revised), **changes)
        kept_origins = {name: text for name, text in setup.origins.items() if name not in revised and text != "default"}
        new_setup = assemble(settings, kept_origins, self.console.progress, self.run, setup.data)
        return replace(new_setup, plan=replace(new_setup.plan, deadline=setup.plan.deadline))

    def replace_setup(self, setup: TrainingSetup, reasons: Mapping[str, str]) -> None:
        """Use a setup from now on, and store its settings, with the reason for each setting that was chosen."""
        origins = {**setup.origins, **{name: automatic_origin(reason) for name, reason in reasons.items()}}
        self.setup = replace(setup, origins=origins)
        store_changes(self.run, setup.settings, origins)
        if setup.load_report is not None:
            self.run.write_json(START_FILE, setup.load_report.to_dict())


def is_length_timed(setup: TrainingSetup) -> bool:
    """Return whether the time budget decides the length of the run."""
    return setup.tune_record is not None and setup.tune_record.budget > 0 and is_automatic_setting(setup, "epochs")


def cannot_evaluate_tuning(setup: TrainingSetup) -> bool:
    """Return whether there are too few images to measure the gain from tuning, so that the first model is kept."""
    counts = setup.data.counts()
    return is_automatic_setting(setup, "epochs") and (not counts["val"] or counts["train"] < MIN_IMAGES)


def is_automatic_setting(setup: TrainingSetup, name: str) -> bool:
    """Return whether a setting may be chosen automatically, because the user did not give it."""
    return setup.origins.get(name, "default") == "default" or is_automatic(setup.origins[name])
