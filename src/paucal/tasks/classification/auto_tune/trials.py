"""Presets for fine-tuning a network from its probe, and short trials of the presets on the user's images."""

import math
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from paucal.backbones.layers import count_stages
from paucal.evaluation.predictions import Predictions
from paucal.runner.console import Console
from paucal.runs import RunFolder
from paucal.tasks.classification.assembly import TrainingSetup
from paucal.tasks.classification.auto_tune.record import (
    LOSSES_KEY,
    EvaluatedModel,
    accuracies_differ,
    calibrated_losses,
)
from paucal.tasks.classification.trainer_inputs import (
    make_optimization,
    make_val_predictor,
    train_loader,
    validation_scores,
)
from paucal.training import CosineWarmup, Outcome, Plan, RunHooks, TimePlan, Validation, checkpoint_step, fit
from paucal.training.fit import advise_on_memory_errors
from paucal.types import UserError

TRIALS_FOLDER = "trials"
MIN_STEPS = 8  # minimum number of steps of a useful trial
TRAINED_SECONDS = "trained"  # key in the details of a trial: seconds that its steps and its validation took
FAILED_LOSS = 1e9  # loss recorded for a trial that diverged or ran out of memory
WARMUP_FRACTION = 0.1  # length of the warm-up, as a fraction of a trial's steps


@dataclass(frozen=True)
class TuningPreset:
    """Settings for fine-tuning."""

    name: str  # name in messages and in the record
    settings: Mapping[str, Any]  # values of settings that the user did not give
    target_epochs: int = 6  # number of epochs that should fit in the time; if fewer fit, smaller images are used

    def without_settings(self, names: Collection[str]) -> "TuningPreset":
        """Return the preset without some settings, named after the remaining settings."""
        settings, parts = {name: value for name, value in self.settings.items() if name not in names}, []
        if "freeze" in settings:
            parts.append("norms and biases alone" if settings["freeze"] == "weights" else "last stages alone")
        elif "freeze" not in names:  # the user froze no layers
            parts.append("all layers")
        if "eval_mode" in settings:
            parts.append("norms still" if settings["eval_mode"] else "norms learning")
        if "lr" in settings:
            parts.append(f"rate {settings['lr']:.0e}".replace("e-0", "e-"))
        if "layer_decay" in settings:
            parts.append(f"layer decay {settings['layer_decay']}")
        if "lr" not in settings and "crop_scale" in settings:  # the presets differ in their crops, not in the rate
            parts.append(f"crop scale {settings['crop_scale']}")
        return replace(self, name=", ".join(parts), settings=settings)


# Of the first two presets, the first was far better on some data sets, and the second on other data sets.
NORMS_STILL = "norms still"  # batch norms stay in evaluation mode
WITH_BATCH_NORM = (
    TuningPreset(f"last stages alone, {NORMS_STILL}, rate 3e-4", {"eval_mode": True, "lr": 3e-4, "crop_scale": 0.5}, 3),
    TuningPreset("all layers, norms learning, rate 1e-3", {"eval_mode": False, "lr": 1e-3, "crop_scale": 0.6}),
    TuningPreset(f"all layers, {NORMS_STILL}, rate 2e-4", {"eval_mode": True, "lr": 2e-4, "crop_scale": 0.35}),
)
WITHOUT_BATCH_NORM = (
    TuningPreset("last stages alone, rate 1e-4", {"lr": 1e-4, "crop_scale": 0.5}, 3),
    TuningPreset("all layers, rate 3e-4, layer decay 0.75", {"lr": 3e-4, "layer_decay": 0.75, "crop_scale": 0.5}),
    TuningPreset("all layers, rate 5e-5, layer decay 0.75", {"lr": 5e-5, "layer_decay": 0.75, "crop_scale": 0.35}),
    # A step of this preset takes 0.7 of the time of a step that trains all layers. In networks with batch norms, this
    # preset saves no time and was worse (docs/lab/2026-11-26-ways-to-tune.md).
    TuningPreset("norms and biases alone, rate 1e-3", {"freeze": "weights", "lr": 1e-3, "crop_scale": 0.5}),
)
FROZEN_FRACTION = 0.6  # fraction of the stages that "last stages alone" freezes, which halves the time of tuning


def presets_for(model: nn.Module) -> Sequence[TuningPreset]:
    """Return the presets for a network; the first preset is the most careful, and is used if there are no trials."""
    has_batch_norm = any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules())
    partial_preset, *full_presets = WITH_BATCH_NORM if has_batch_norm else WITHOUT_BATCH_NORM
    try:
        frozen = int(FROZEN_FRACTION * count_stages(model))
    except UserError:  # the stages of this network are unknown
        frozen = 0
    if not frozen:
        return full_presets
    return [replace(partial_preset, settings={"freeze": frozen, **partial_preset.settings}), *full_presets]


def run_trial(
    run: RunFolder,
    setup: TrainingSetup,
    preset: TuningPreset,
    steps: int,
    console: Console,
    time_plan: TimePlan | None = None,
) -> EvaluatedModel | None:
    """Fine-tune from the probe for a few steps, and score the validation images; None if a signal stops the trial.

    The trial stores checkpoints in a subfolder of the run, and resumes from them. `time_plan` ends a slow trial early.
    """
    start_time = time.monotonic()
    folder = RunFolder(run.path / TRIALS_FOLDER / preset.name.replace(" ", "-").replace(",", ""))
    (folder.path / "checkpoints").mkdir(parents=True, exist_ok=True)
    plan = replace(setup.plan, total_steps=steps, steps_per_epoch=steps, time=time_plan)
    predict = make_val_predictor(setup.data, setup.card.preprocessing, setup.settings)
    newest_predictions: list[Predictions] = []

    def validate(module: nn.Module, device: torch.device) -> Mapping[str, float]:
        newest_predictions[:] = [predict(module, device)]
        return validation_scores(newest_predictions[0])

    first_pass = checkpoint_step(folder.last) * plan.accumulate if folder.last.exists() else 0
    hooks = RunHooks(folder, lambda module: None, Validation(validate))
    try:
        with advise_on_memory_errors(plan):
            outcome = _fit_trial(setup, plan, first_pass, hooks, console)
    except UserError as problem:  # the training diverged, or the memory was too small
        console.say(f"note: {preset.name}: {problem}")
        details = {"loss": FAILED_LOSS, "steps": steps, **preset.settings}
        return EvaluatedModel(preset.name, 0.0, time.monotonic() - start_time, details)
    if not outcome.finished:
        return None
    row = outcome.rows[-1]
    if not newest_predictions:  # the trial was resumed after the last validation
        validate(setup.objective.deployable(), torch.device(setup.settings.device))
    details = {"loss": row["val_loss"], "steps": outcome.step, TRAINED_SECONDS: row["seconds"], **preset.settings}
    details[LOSSES_KEY] = calibrated_losses(newest_predictions[0])
    return EvaluatedModel(preset.name, row[setup.data.primary_metric.column], time.monotonic() - start_time, details)


def _fit_trial(setup: TrainingSetup, plan: Plan, first_pass: int, hooks: RunHooks, console: Console) -> Outcome:
    settings, request, steps = setup.settings, setup.objective.data_request, plan.total_steps
    peak, warmup = settings.lr, round(WARMUP_FRACTION * steps)
    schedule = CosineWarmup(peak=peak, horizon=steps, warmup=warmup, start=0.1 * peak, floor=0.0)
    return fit(
        setup.objective,
        lambda: train_loader(setup.data, setup.card.preprocessing, settings, plan, request, first_pass),
        replace(make_optimization(settings, plan), schedule=schedule, average_decay=None),
        plan,
        hooks,
        console.callbacks(),
    )


def best_trial_index(trials: Sequence[EvaluatedModel], n_images: int, image_sizes: Sequence[Sequence[int]]) -> int:
    """Return the index of the best trial, whose preset is then used.

    The default is the first trial that did not fail. The rules are:

    - A trial with smaller images than the default is eligible only if its accuracy is higher by two standard errors of
      the difference, because smaller images often give the higher score after few steps and the worse model in the end.
      (In three comparisons on 81 images, trials of the last stages at 224 pixels classified two to seven fewer images
      correctly than trials of all layers at 128 pixels. After all epochs, the last stages at 224 pixels were better by
      two to three points; docs/lab/2026-11-26-ways-to-tune.md.)
    - The eligible trials whose accuracy is within a standard error of the highest accuracy are tied.
    - Of the tied trials with the image size of the first tied trial, the trial with the lowest mean loss on the
      validation images wins if it leads the first tied trial by more than a standard error of the paired differences.
      Otherwise, the first tied trial wins.

    `n_images` is the number of validation images.
    """
    scores = [trial.score for trial in trials]
    succeeded = [index for index, trial in enumerate(trials) if trial.details["loss"] < FAILED_LOSS] or [0]
    default = succeeded[0]
    eligible = [
        index
        for index in succeeded
        if image_sizes[index][0] >= image_sizes[default][0]
        or (scores[index] > scores[default] and accuracies_differ(scores[index], scores[default], n_images, errors=2))
    ]
    best = max(eligible, key=lambda index: (scores[index], -trials[index].details["loss"]))
    tied = [index for index in eligible if not accuracies_differ(scores[index], scores[best], n_images)]
    first = tied[0]
    same_size = [index for index in tied if image_sizes[index] == image_sizes[first]]
    lowest = min(same_size, key=lambda index: np.mean(_image_losses(trials[index])))
    leads = np.subtract(_image_losses(trials[first]), _image_losses(trials[lowest]))
    return lowest if leads.mean() > leads.std() / math.sqrt(leads.size) else first


def _image_losses(trial: EvaluatedModel) -> Sequence[float]:
    """Return the loss of each validation image; for a failed trial or an old record, a list of only the mean loss."""
    return trial.details.get(LOSSES_KEY) or [trial.details["loss"]]
