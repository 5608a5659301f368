"""Choose how to fine-tune pretrained weights in the time available: a linear probe, short trials, a length.

Every step is stored in the run, so that a stopped run resumes where it was. The decisions are stored among the
settings; from then on the run is like any other and can be repeated exactly.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch

from paucal.cores import cores_are_shared, slowdown
from paucal.models.features import linear_classifier
from paucal.runner.clock import start_time
from paucal.runner.console import Console
from paucal.runner.time_budget import store_length
from paucal.runs import RunFolder
from paucal.tasks.classification.assembly import TrainingSetup
from paucal.tasks.classification.auto_tune.first_model import compare_candidates, fit_probe, time_frozen_network
from paucal.tasks.classification.auto_tune.precision import choose_training_precision
from paucal.tasks.classification.auto_tune.state import TuneState, cannot_judge_tuning, is_free, is_timed
from paucal.tasks.classification.auto_tune.tuning import choose_preset, seconds_per_image, settings_to_store
from paucal.tasks.classification.auto_tune.unlabelled import learn_from_unlabelled
from paucal.training import TimePlan
from paucal.types import UserError
from paucal.wording import counted, duration

# Epochs beyond COSINE_EPOCHS are appended at LOW_RATE times the peak rate; the earlier epochs do not change.
MAX_EPOCHS, COSINE_EPOCHS, LOW_RATE, WARMUP = 60, 20, 0.1, 0.1
SCRATCH_EPOCHS = 300
REPORT_SECONDS = 6.0  # time reserved for the pictures and the page at the end, on an idle core


def auto_tune(run: RunFolder, setup: TrainingSetup, console: Console) -> bool:
    """Choose the length of a run and the settings that it depends on, and store them in the run.

    Returns False where a signal stopped a trial.
    """
    if setup.tune_record is None:
        raise ValueError("this run has no auto-tuning")
    state = TuneState(run, setup, setup.tune_record, console, start_time() - setup.tune_record.spent)
    try:
        if setup.tune_record.candidates and linear_classifier(setup.objective.deployable()) is not None:
            return _tune_trained_weights(state)
        _train_directly(state)
        return True
    finally:
        state.save()  # stores the time spent, also after a signal


def _train_directly(state: TuneState) -> None:
    """Choose the length of a run without a probe: from scratch, or without a linear classifier."""
    setup, budget = state.setup, state.record.budget
    if setup.settings.epochs == 0:
        raise UserError(
            f"--epochs 0 keeps a linear probe, and {setup.settings.model} has no linear classifier: give 1 or more."
        )
    if state.record.candidates:
        state.console.say(f"note: {setup.settings.model} has no linear classifier: it is tuned without a probe")
    counts = setup.data.counts()
    image_seconds = seconds_per_image(setup, threads=True) / setup.settings.processes
    epoch_seconds = image_seconds * (counts["train"] + counts["val"] / 3)
    state.image_seconds = image_seconds / 3
    if setup.settings.epochs is not None:
        _set_length(state, setup.settings.epochs, epoch_seconds, {})
        return
    left = state.left()
    if epoch_seconds > max(left, 0.0) and epoch_seconds > 1.1 * budget:
        raise UserError(
            f"--time is {setup.settings.time}, and one epoch of {counts['train']} training images takes "
            f"{duration(epoch_seconds)} here: give --time {int((3 * epoch_seconds + 60) // 60)}m or more, a smaller "
            "--img-size, or --fraction."
        )
    max_epochs = SCRATCH_EPOCHS if setup.settings.init is None else MAX_EPOCHS
    epochs = max(1, min(max_epochs, int(left / epoch_seconds)))
    _set_length(state, epochs, epoch_seconds, {}, max_epochs=max_epochs)


def _tune_trained_weights(state: TuneState) -> bool:
    if cores_are_shared():
        seconds_per_image(state.setup, threads=True)
    time_frozen_network(state)
    if len(state.record.candidates) > 1 and not state.record.race and state.record.probe is None:
        compare_candidates(state)
    fit_probe(state)
    learn_from_unlabelled(state)
    state.first = None  # frees memory for tuning
    counts = state.setup.data.counts()
    if state.setup.settings.epochs == 0:
        return _keep_probe(state, "the probe is the model: --epochs 0")
    if cannot_judge_tuning(state.setup):
        reason = f"{counts['train']} training images" if counts["val"] else "no images to validate with"
        doubt = "the probe is the model, as validation could not show whether tuning helps"
        return _keep_probe(state, f"{reason}: {doubt}")
    choose_training_precision(state)
    preset_and_cost = choose_preset(state)
    if preset_and_cost is None:
        return _keep_probe(state, f"{_describe_shortage(state)}: the probe is the model")
    preset, cost = preset_and_cost
    epochs = state.setup.settings.epochs
    if epochs is None:
        epochs = max(1, min(MAX_EPOCHS, int(state.left(cost.shrink) / cost.epoch)))
    changes = {"img_size": cost.side, **settings_to_store(state.setup, preset)}
    _set_length(state, epochs, cost.epoch, changes, cost.shrink)
    return True


def _describe_shortage(state: TuneState) -> str:
    """Return which resource was too small for all presets."""
    if None not in state.record.sizes.values():
        return "the remaining time is too short for tuning"
    half_batch = state.setup.settings.images_per_pass // 2
    advice = f"--batch-size {half_batch} needs half of it" if half_batch else "a smaller --img-size needs less"
    return f"the memory is too small for tuning ({advice})"


def _set_length(
    state: TuneState,
    epochs: int,
    epoch: float,
    changes: Mapping[str, Any],
    shrink: float = 1.0,
    max_epochs: int = MAX_EPOCHS,
) -> None:
    """Store the length of the run with the settings that follow from it, and print its expected end."""
    timed = is_timed(state.setup)
    if timed and state.record.candidates:
        schedule = continuation(epochs, changes.get("lr", state.setup.settings.lr))
        changes = {**changes, **{name: value for name, value in schedule.items() if is_free(state.setup, name)}}
    setup = state.reassemble(**{**changes, "epochs": epochs})
    left = state.left(shrink) if timed else math.inf
    seconds = min(epochs * epoch, max(left, 0.0)) + state.final_eval_seconds(shrink)
    tuned_names = [name for name in changes if is_free(state.setup, name)]
    reasons = dict.fromkeys(tuned_names, "chosen by trials on these images, or by the time available")
    if not is_free(state.setup, "epochs"):
        plan = f"{counted(epochs, 'epoch')}, as given"
    else:
        plan = reasons["epochs"] = _describe_length(epochs, epoch, left, max_epochs)
    state.adopt(setup, reasons)
    time_plan = None
    if timed:
        evaluation, steps = state.eval_seconds(shrink), setup.plan.steps_per_epoch
        closing = state.final_eval_seconds(shrink) + REPORT_SECONDS * slowdown()
        time_plan = TimePlan(
            state.record.budget,
            state.spent,
            closing,
            (epoch - evaluation) / steps,
            evaluation,
            most_steps=max_epochs * steps,
            threads=torch.get_num_threads(),
        )
    store_length(state.run, time_plan, plan, seconds, state.console)
    state.save(plan=plan)


def _describe_length(epochs: int, epoch: float, left: float, max_epochs: int) -> str:
    """Describe the length of a run: its epochs, the seconds of each, and whether they fill the seconds left.

    Example:
        >>> _describe_length(4, 30.0, 125.0, 60), _describe_length(1, 60.0, 50.0, 60)
        ('4 epochs of 30 s each fit in the time', 'part of an epoch of 1 min fits in the time')
    """
    if epochs == 1:
        return f"{'one' if epoch <= left else 'part of an'} epoch of {duration(epoch)} fits in the time"
    limit = "are the most that help" if epochs == max_epochs else "fit in the time"
    return f"{epochs} epochs of {duration(epoch)} each {limit}"


def continuation(epochs: int, lr: float) -> dict[str, Any]:
    """Return the settings that continue a run after its cosine; empty if the cosine covers all epochs."""
    if epochs <= COSINE_EPOCHS:
        return {}
    return {"schedule_epochs": COSINE_EPOCHS, "warmup_epochs": WARMUP * COSINE_EPOCHS, "min_lr": LOW_RATE * lr}


def _keep_probe(state: TuneState, reason: str) -> bool:
    """Keep the probe as the final model."""
    setup = state.reassemble(epochs=0, freeze_epochs=0)
    state.adopt(setup, {"epochs": reason})
    state.console.say(f"plan: {reason}")
    state.save(plan=reason, tune=False)
    return True
