"""Auto-tuning: fit a linear probe to pretrained weights, try fine-tuning presets, and choose the number of epochs.

Every step is stored in the run folder, so that a stopped run resumes after its last step. The choices are stored as
settings, so that the run can be repeated exactly without auto-tuning.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch

from paucal.cores import cores_are_shared, measure_slowdown
from paucal.models.features import linear_classifier
from paucal.runner.clock import start_time
from paucal.runner.console import Console
from paucal.runner.time_budget import store_length
from paucal.runs import RunFolder
from paucal.tasks.classification.assembly import TrainingSetup
from paucal.tasks.classification.auto_tune.first_model import compare_candidates, fit_probe, prepare_first_model
from paucal.tasks.classification.auto_tune.precision import choose_training_precision
from paucal.tasks.classification.auto_tune.state import (
    TuneState,
    cannot_evaluate_tuning,
    is_automatic_setting,
    is_length_timed,
)
from paucal.tasks.classification.auto_tune.tuning import choose_preset, measure_seconds_per_image, settings_to_store
from paucal.tasks.classification.auto_tune.unlabelled import learn_from_unlabelled
from paucal.training import TimePlan
from paucal.types import UserError
from paucal.wording import counted, format_duration

# For runs from pretrained weights: the maximum number of epochs, and the length of the cosine schedule in epochs. A
# longer run continues at a constant learning rate after the cosine, so that long runs of different lengths begin in the
# same way.
MAX_EPOCHS, COSINE_EPOCHS = 60, 20
CONSTANT_RATE = 0.1  # learning rate after the cosine, as a fraction of the peak rate
WARMUP_FRACTION = 0.1  # length of the warm-up, as a fraction of COSINE_EPOCHS
MAX_SCRATCH_EPOCHS = 300  # maximum number of epochs from random weights
REPORT_SECONDS = 6.0  # time reserved for the plots and the report page at the end, on an idle core


def auto_tune(run: RunFolder, setup: TrainingSetup, console: Console) -> None:
    """Choose the number of epochs and the other automatic settings of a run, and store these settings in the run."""
    if setup.tune_record is None:
        raise ValueError("this run has no auto-tuning")
    state = TuneState(run, setup, setup.tune_record, console, start_time() - setup.tune_record.spent)
    try:
        if setup.tune_record.candidates and linear_classifier(setup.objective.deployable()) is not None:
            _fit_probe_and_choose_preset(state)
        else:
            _choose_epochs_without_probe(state)
    finally:
        state.save()  # stores the time spent, also after a signal


def _choose_epochs_without_probe(state: TuneState) -> None:
    """Choose the number of epochs of a run that fits no probe, such as a run from random weights."""
    setup, budget = state.setup, state.record.budget
    if setup.settings.epochs == 0:
        raise UserError(
            f"--epochs 0 keeps a linear probe, but {setup.settings.model} has no linear classifier: give --epochs 1 or "
            "more."
        )
    if state.record.candidates:
        state.console.say(f"note: {setup.settings.model} has no linear classifier, so it is fine-tuned without a probe")
    counts = setup.data.counts()
    image_seconds = measure_seconds_per_image(setup, choose_threads=True) / setup.settings.processes
    epoch_seconds = image_seconds * (counts["train"] + counts["val"] / 3)
    state.image_seconds = image_seconds / 3
    if setup.settings.epochs is not None:
        _store_run_length(state, setup.settings.epochs, epoch_seconds, {})
        return
    seconds_left = state.seconds_left()
    if epoch_seconds > max(seconds_left, 0.0) and epoch_seconds > 1.1 * budget:
        raise UserError(
            f"--time is {setup.settings.time}, and one epoch of {counts['train']} training images takes "
            f"{format_duration(epoch_seconds)} here: give --time {int((3 * epoch_seconds + 60) // 60)}m or more, a "
            "smaller --img-size, or --fraction."
        )
    max_epochs = MAX_SCRATCH_EPOCHS if setup.settings.init is None else MAX_EPOCHS
    epochs = max(1, min(max_epochs, int(seconds_left / epoch_seconds)))
    _store_run_length(state, epochs, epoch_seconds, {}, max_epochs=max_epochs)


def _fit_probe_and_choose_preset(state: TuneState) -> None:
    """Fit a probe to pretrained weights, then choose a preset and a number of epochs, or keep the probe."""
    if cores_are_shared():  # with other programs: choose the fastest number of threads
        measure_seconds_per_image(state.setup, choose_threads=True)
    prepare_first_model(state)
    if len(state.record.candidates) > 1 and not state.record.candidate_scores and state.record.probe is None:
        compare_candidates(state)
    fit_probe(state)
    learn_from_unlabelled(state)
    state.first_model = None  # frees memory for tuning
    counts = state.setup.data.counts()
    if state.setup.settings.epochs == 0:
        return _end_with_probe(state, "--epochs 0: the probe is the final model")
    if cannot_evaluate_tuning(state.setup):
        reason = f"{counts['train']} training images" if counts["val"] else "no validation images"
        reason += ": the probe is the final model, as validation could not show whether tuning helps"
        return _end_with_probe(state, reason)
    choose_training_precision(state)
    preset_and_cost = choose_preset(state)
    if preset_and_cost is None:
        shortage = "the remaining time is too short for tuning"
        if None in state.record.seconds_by_size.values():
            half_batch = state.setup.settings.batch_size_or_1 // 2
            advice = f"--batch-size {half_batch} needs half of it" if half_batch else "a smaller --img-size needs less"
            shortage = f"the memory is too small for tuning ({advice})"
        return _end_with_probe(state, f"{shortage}: the probe is the final model")
    preset, cost = preset_and_cost
    state.plan_for_preset(preset.settings)
    epochs = state.setup.settings.epochs
    if epochs is None:
        epochs = max(1, min(MAX_EPOCHS, int(state.seconds_left(cost.pixel_ratio) / cost.epoch_seconds)))
    changes = {"img_size": cost.image_size, **settings_to_store(state.setup, preset)}
    _store_run_length(state, epochs, cost.epoch_seconds, changes, cost.pixel_ratio)


def _store_run_length(
    state: TuneState,
    epochs: int,
    epoch_seconds: float,
    changes: Mapping[str, Any],
    pixel_ratio: float = 1.0,
    max_epochs: int = MAX_EPOCHS,
) -> None:
    """Store the number of epochs, the settings that depend on it and `changes`; print when the run is expected to end.

    `epoch_seconds` includes the validation. `pixel_ratio` is the number of pixels of a training image, divided by the
    number of pixels of an image of the probe. `max_epochs` applies to runs with a time budget.
    """
    timed = is_length_timed(state.setup)
    if timed and state.record.candidates:
        schedule = long_run_schedule(epochs, changes.get("lr", state.setup.settings.lr))
        changes = {
            **changes,
            **{name: value for name, value in schedule.items() if is_automatic_setting(state.setup, name)},
        }
    setup = state.reassemble(**{**changes, "epochs": epochs})
    seconds_left = state.seconds_left(pixel_ratio) if timed else math.inf
    seconds = min(epochs * epoch_seconds, max(seconds_left, 0.0)) + state.final_eval_seconds(pixel_ratio)
    tuned_names = [name for name in changes if is_automatic_setting(state.setup, name)]
    reasons = dict.fromkeys(tuned_names, "chosen by trials on these images, or by the time available")
    if not is_automatic_setting(state.setup, "epochs"):
        plan_text = f"{counted(epochs, 'epoch')}, as given"
    else:
        plan_text = reasons["epochs"] = _describe_length(epochs, epoch_seconds, seconds_left, max_epochs)
    state.replace_setup(setup, reasons)
    time_plan = None
    if timed:
        eval_seconds, steps = state.eval_seconds(pixel_ratio), setup.plan.steps_per_epoch
        closing_seconds = state.final_eval_seconds(pixel_ratio) + REPORT_SECONDS * measure_slowdown()
        time_plan = TimePlan(
            budget=state.record.budget,
            spent=state.spent_seconds,
            closing=closing_seconds,
            step=(epoch_seconds - eval_seconds) / steps,
            evaluation=eval_seconds,
            most_steps=max_epochs * steps,
            threads=torch.get_num_threads(),
        )
    store_length(state.run, time_plan, plan_text, seconds, state.console)
    state.save(plan_text=plan_text)


def _describe_length(epochs: int, epoch_seconds: float, seconds_left: float, max_epochs: int) -> str:
    """Describe the length of a run: the number of epochs, the time per epoch, and what limits the number."""
    if epochs == 1:
        amount = "one" if epoch_seconds <= seconds_left else "part of an"
        return f"{amount} epoch of {format_duration(epoch_seconds)} fits in the time"
    limit = "are the most that help" if epochs == max_epochs else "fit in the time"
    return f"{epochs} epochs of {format_duration(epoch_seconds)} each {limit}"


def long_run_schedule(epochs: int, lr: float) -> dict[str, Any]:
    """Return the schedule settings of a run of more than `COSINE_EPOCHS` epochs; {} for a shorter run."""
    if epochs <= COSINE_EPOCHS:
        return {}
    warmup = WARMUP_FRACTION * COSINE_EPOCHS
    return {"schedule_epochs": COSINE_EPOCHS, "warmup_epochs": warmup, "min_lr": CONSTANT_RATE * lr}


def _end_with_probe(state: TuneState, reason: str) -> None:
    state.replace_setup(state.reassemble(epochs=0, freeze_epochs=0), {"epochs": reason})
    state.console.say(f"plan: {reason}")
    state.save(plan_text=reason, is_tuned=False)
