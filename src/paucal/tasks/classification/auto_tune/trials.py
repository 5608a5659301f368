"""Presets for fine-tuning a network from its probe, and a short trial of each on the user's own images."""

import shutil
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback
from torch import nn

from paucal.backbones.layers import count_stages
from paucal.evaluation.predictions import Predictions
from paucal.runner.console import Console
from paucal.runs import RunFolder
from paucal.tasks.classification.assembly import TrainingSetup
from paucal.tasks.classification.auto_tune.paired_losses import LOSSES, calibrated_losses, clearly_lower, differs
from paucal.tasks.classification.auto_tune.record import TuneStep
from paucal.tasks.classification.loaders import train_loader, validation_predictions, validation_scores
from paucal.tasks.classification.optimization import optimization
from paucal.training import CosineWarmup, Outcome, Plan, Records, TimePlan, Watch, checkpoint_step, fit
from paucal.training.failures import memory_advice
from paucal.types import UserError

FOLDER = "trials"
MIN_STEPS = 8  # shorter trials say nothing
TRAINED = "trained"  # key of a trial's details: seconds of its steps and validation
WORST = 1e9  # loss of a trial that ended with NaN or infinite values
WARMUP = 0.1  # share of a trial


@dataclass(frozen=True)
class TuningPreset:
    """Settings for fine-tuning, but for the given ones; with fewer than `passes` epochs, smaller images are used."""

    name: str
    settings: Mapping[str, Any]
    passes: int = 6

    def without(self, fixed: Collection[str]) -> "TuningPreset":
        """Return the preset without some settings, renamed after the remaining ones."""
        left = {name: value for name, value in self.settings.items() if name not in fixed}
        return replace(self, name=_name_preset(left, "freeze" not in fixed), settings=left)


def _name_preset(settings: Mapping[str, Any], tunes_all: bool) -> str:
    """Describe the settings of a preset; `tunes_all` means that no setting of the user freezes layers."""
    parts = []
    if "freeze" in settings:
        parts.append("norms and biases alone" if settings["freeze"] == "weights" else "last stages alone")
    elif tunes_all:
        parts.append("all layers")
    if "eval_mode" in settings:
        parts.append("norms still" if settings["eval_mode"] else "norms learning")
    if "lr" in settings:
        parts.append(f"rate {settings['lr']:.0e}".replace("e-0", "e-"))
    if "layer_decay" in settings:
        parts.append(f"layer decay {settings['layer_decay']}")
    if "lr" not in settings and "crop_scale" in settings:  # the presets differ in their crops, not in the rate
        parts.append(f"crop scale {settings['crop_scale']}")
    return ", ".join(parts)


# Each of the first two presets won by far on a data set where the other lost.
KEEPING = "norms still"
WITH_BATCH_NORM = (
    TuningPreset(f"last stages alone, {KEEPING}, rate 3e-4", {"eval_mode": True, "lr": 3e-4, "crop_scale": 0.5}, 3),
    TuningPreset("all layers, norms learning, rate 1e-3", {"eval_mode": False, "lr": 1e-3, "crop_scale": 0.6}),
    TuningPreset(f"all layers, {KEEPING}, rate 2e-4", {"eval_mode": True, "lr": 2e-4, "crop_scale": 0.35}),
)
WITHOUT = (
    TuningPreset("last stages alone, rate 1e-4", {"lr": 1e-4, "crop_scale": 0.5}, 3),
    TuningPreset("all layers, rate 3e-4, layer decay 0.75", {"lr": 3e-4, "layer_decay": 0.75, "crop_scale": 0.5}),
    TuningPreset("all layers, rate 5e-5, layer decay 0.75", {"lr": 5e-5, "layer_decay": 0.75, "crop_scale": 0.35}),
    # A step costs 0.7 of a step of all layers. With batch norms it costs the same and lost (docs/lab, ways to tune).
    TuningPreset("norms and biases alone, rate 1e-3", {"freeze": "weights", "lr": 1e-3, "crop_scale": 0.5}),
)
FROZEN_SHARE = 0.6  # share of stages frozen if only the last are tuned, which halves the time


def presets_for(model: nn.Module) -> Sequence[TuningPreset]:
    """Return the presets that suit a network, the most careful one first."""
    normed = any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules())
    partial_preset, *full_presets = WITH_BATCH_NORM if normed else WITHOUT
    try:
        frozen = int(FROZEN_SHARE * count_stages(model))
    except UserError:  # timm does not know its stages
        return full_presets
    if not frozen:
        return full_presets
    return [replace(partial_preset, settings={"freeze": frozen, **partial_preset.settings}), *full_presets]


def run_trial(
    run: RunFolder,
    setup: TrainingSetup,
    preset: TuningPreset,
    steps: int,
    console: Console,
    callbacks: Sequence[Callback] = (),
    time_plan: TimePlan | None = None,
) -> TuneStep | None:
    """Train for a few steps from the probe's head, and evaluate on the validation images; None for a stopped trial.

    The trial keeps its state in a subfolder of the run and resumes from it. `time_plan` shortens it if steps slow down.
    """
    start_time = time.monotonic()
    folder = RunFolder(run.path / FOLDER / preset.name.replace(" ", "-").replace(",", ""))
    (folder.path / "checkpoints").mkdir(parents=True, exist_ok=True)
    plan = replace(setup.plan, total_steps=steps, steps_per_epoch=steps, time=time_plan)
    predict = validation_predictions(setup.data, setup.card.preprocessing, setup.settings)
    newest: list[Predictions] = []

    def validate(module: nn.Module, device: torch.device) -> Mapping[str, float]:
        newest[:] = [predict(module, device)]
        return validation_scores(newest[0])

    start = checkpoint_step(folder.last) * plan.accumulate if folder.last.exists() else 0
    records = Records(folder, lambda module: None, Watch(validate))
    try:
        with memory_advice(plan):
            outcome = _fit_trial(setup, plan, start, records, console, callbacks)
    except UserError as problem:  # the training diverged or the memory was too small: the preset loses
        console.say(f"note: {preset.name}: {problem}")
        details = {"loss": WORST, "steps": steps, **preset.settings}
        return TuneStep(preset.name, 0.0, time.monotonic() - start_time, details)
    if not outcome.finished:
        return None
    row = outcome.rows[-1]
    if not newest:  # resumed after its last validation
        validate(setup.objective.deployable(), torch.device(setup.settings.device))
    details = {"loss": row["val_loss"], "steps": outcome.step, TRAINED: row["seconds"], **preset.settings}
    details[LOSSES] = calibrated_losses(newest[0])
    return TuneStep(preset.name, row[setup.data.primary_metric.column], time.monotonic() - start_time, details)


def _fit_trial(
    setup: TrainingSetup, plan: Plan, start: int, records: Records, console: Console, callbacks: Sequence[Callback]
) -> Outcome:
    settings, request, steps = setup.settings, setup.objective.data_request, plan.total_steps
    peak, warmup = settings.lr, round(WARMUP * steps)
    schedule = CosineWarmup(peak=peak, horizon=steps, warmup=warmup, start=0.1 * peak, floor=0.0)
    return fit(
        setup.objective,
        lambda: train_loader(setup.data, setup.card.preprocessing, settings, plan, request, start),
        replace(optimization(settings, plan), schedule=schedule, average_decay=None),
        plan,
        records,
        [*console.callbacks(), *callbacks],
    )


def clear_trials(run: RunFolder) -> None:
    """Remove the states of all trials; their scores are in the record."""
    shutil.rmtree(run.path / FOLDER, ignore_errors=True)


def best_trial(trials: Sequence[TuneStep], images: int, sides: Sequence[Sequence[int]]) -> int:
    """Return the position of the trial whose preset is used.

    Trials are short and evaluated on few images, and smaller images give the better score after few steps and the worse
    model in the end. So a trial with smaller images than the first that did not fail counts only if its accuracy leads
    by two standard errors of the difference. (Three times the last stages at 224 pixels lost by two to seven of 81
    images against all layers at 128, and won by two to three points after all epochs; docs/lab, ways to tune.) Of the
    other trials, those whose accuracy is within a standard error of the highest are tied. Tied trials at one image size
    are compared by their losses, image by image: the first of them wins unless another one leads by more than a
    standard error.
    """
    scores = [trial.score for trial in trials]
    worked = [number for number, trial in enumerate(trials) if trial.details["loss"] < WORST] or [0]
    default = worked[0]
    heard = [
        number
        for number in worked
        if sides[number][0] >= sides[default][0]
        or (scores[number] > scores[default] and differs(scores[number], scores[default], images, errors=2))
    ]
    best = max(heard, key=lambda number: (scores[number], -trials[number].details["loss"]))
    tied = [number for number in heard if not differs(scores[number], scores[best], images)]
    first = tied[0]
    same_size = [number for number in tied if sides[number] == sides[first]]
    lowest = min(same_size, key=lambda number: np.mean(_image_losses(trials[number])))
    return lowest if clearly_lower(_image_losses(trials[lowest]), _image_losses(trials[first])) else first


def _image_losses(trial: TuneStep) -> Sequence[float]:
    """Return the loss of each validation image; only the mean for failed trials and for records of older versions."""
    return trial.details.get(LOSSES) or [trial.details["loss"]]
