"""Choose the fine-tuning preset: measure the cost of each on this machine, try each briefly, and take the best."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from paucal.memory import is_out_of_memory
from paucal.runner.time_budget import seconds_per_step, trial_steps
from paucal.tasks.classification.assembly import TrainingSetup, head_file_name
from paucal.tasks.classification.auto_tune.first_model import fit_probe_head, save_head
from paucal.tasks.classification.auto_tune.record import TuneStep
from paucal.tasks.classification.auto_tune.state import TuneState, is_free, is_timed
from paucal.tasks.classification.auto_tune.trials import (
    MIN_STEPS,
    TRAINED,
    TuningPreset,
    best_trial,
    clear_trials,
    presets_for,
    run_trial,
)
from paucal.tasks.classification.loaders import train_loader
from paucal.training import TimePlan
from paucal.types import UserError
from paucal.wording import counted, duration

# Tuning needs this many epochs or steps; with many images, part of an epoch is better than no tuning. On 4,500 images
# of CIFAR-10, test accuracy was 82.0 % after tuning for 1.25 epochs, and 76.0 % without tuning.
MIN_EPOCHS, MIN_TUNING_STEPS = 2, 50
# If fewer epochs fit, trials would use up the time that the first preset needs.
MIN_EPOCHS_FOR_TRIALS = 4
AT_ONCE = ", at once"  # suffix of a preset's name in the record if it is not tried
PLANNED = "planned"  # key of a trial's details: its steps as planned
VALIDATION = "validation images"
TRIALS_SHARE = 0.24  # share of the remaining time for the trials of all presets
# A trial may take TRIAL_SLACK times its planned seconds, and TRIAL_START seconds to start.
TRIAL_SLACK, TRIAL_START = 1.5, 5.0
MAX_IMAGES = 32  # images of a timed batch
TIMED_STEPS = 2  # after one warm-up step


def seconds_per_image(setup: TrainingSetup, threads: bool = False) -> float:
    """Return the training seconds per image: reading, augmentation, forward and backward pass.

    With `threads`, choose the number of threads first, because other programs use the same cores.
    """
    settings, objective = setup.settings, setup.objective
    size = min(settings.images_per_pass, MAX_IMAGES, max(2, len(setup.data.part("train"))))
    device = torch.device(settings.device)
    loader_settings = replace(settings, batch_size=size, accumulate=1, workers=0)
    plan, request = replace(setup.plan, total_steps=TIMED_STEPS + 1, accumulate=1), objective.data_request
    batches: Any = train_loader(setup.data, setup.card.preprocessing, loader_settings, plan, request, start=0)
    with trial_steps(objective.train(), device):
        return seconds_per_step(objective, batches, device, settings.precision, threads=threads) / size


@dataclass(frozen=True)
class CostEstimate:
    """Estimated cost of a fine-tuning preset; `shrink` is the pixels of an image over those of one of the probe."""

    side: list[int]
    epoch: float
    steps: int
    shrink: float = 1.0

    def observed(self, seconds: float, eval_seconds: float, per_epoch: int) -> "CostEstimate":
        """Return the cost corrected by the `seconds` of a trial, `eval_seconds` of them for its validation."""
        step = (seconds - eval_seconds) / self.steps
        return replace(self, epoch=per_epoch * step + eval_seconds) if step > 0 else self


def in_equal_time(costs: Sequence[CostEstimate], per_epoch: int) -> list[CostEstimate]:
    """Return the costs with trials that take equally long for all presets, at most an epoch of the slowest."""
    seconds = min(max(cost.epoch for cost in costs), *(cost.steps * cost.epoch / per_epoch for cost in costs))
    return [replace(cost, steps=round(seconds * per_epoch / cost.epoch)) for cost in costs]


def choose_preset(state: TuneState) -> tuple[TuningPreset, CostEstimate] | None:
    """Return the preset that did best in a short trial, with its cost; None if no preset fits in the time.

    Every step is stored: a trial that was stopped resumes with the size and the number of steps it started with.

    Raises:
        KeyboardInterrupt: A signal stopped a trial.
    """
    presets, resumed = _open_presets(state.setup), bool(state.record.tuning)
    without_trial = presets[0].name + AT_ONCE in state.record.tuning
    if len(presets) > 1 and (without_trial or (not resumed and _too_short_for_trials(state, presets))):
        return _use_first_preset(state, presets[0])
    costs = [(preset, cost) for preset in presets if (cost := _estimate_cost(state, preset, len(presets))) is not None]
    if not costs:
        return None
    if is_timed(state.setup):  # with given epochs, all presets and their trials have the same number of steps
        equal_costs = in_equal_time([cost for _, cost in costs], max(1, state.setup.plan.steps_per_epoch))
        costs = [(preset, cost) for (preset, _), cost in zip(costs, equal_costs, strict=True)]
    trials_say_nothing = not len(state.setup.data.part("val")) or min(cost.steps for _, cost in costs) < MIN_STEPS
    if trials_say_nothing or len(costs) == 1:
        reason = "no time or images to try several presets" if trials_say_nothing and len(presets) > 1 else ""
        return _skip_trials(state, *costs[0], reason)
    trials = [_load_or_run_trial(state, preset, cost) for preset, cost in costs]
    best = best_trial(trials, len(state.setup.data.part("val")), [cost.side for _, cost in costs])
    clear_trials(state.run)
    preset, cost = costs[best]
    state.console.say(f"tuning continues with: {preset.name}")
    details, evaluation = trials[best].details, state.eval_seconds(cost.shrink)
    trial_cost = replace(cost, steps=details["steps"])
    return preset, trial_cost.observed(details.get(TRAINED, 0.0), evaluation, state.setup.plan.steps_per_epoch)


def settings_to_store(setup: TrainingSetup, preset: TuningPreset) -> dict[str, Any]:
    """Return the settings of a preset, and the current values of settings that only other presets change.

    The stored configuration then fixes all of them, so that repeating the run needs no trials.
    """
    names = {name for other in _open_presets(setup) for name in other.settings}
    return {name: getattr(setup.settings, name) for name in sorted(names)} | dict(preset.settings)


def _too_short_for_trials(state: TuneState, presets: Sequence[TuningPreset]) -> bool:
    """Return whether trials would leave too few epochs of the first preset at the probe's image size.

    On 3,068 photographs and a slow core, three trials left time for three epochs at 160 pixels: the accuracy on the
    validation images was 91.9 %, against 94 % after six epochs at 224 pixels.
    """
    if not is_timed(state.setup):
        return False
    native = list(state.setup.settings.img_size)
    seconds = _image_seconds(state, presets[0], native)
    left = state.left() * (1 - TRIALS_SHARE)
    return seconds is not None and left < MIN_EPOCHS_FOR_TRIALS * _epoch_seconds(state, seconds, native)


def _epoch_seconds(state: TuneState, seconds: float, side: Sequence[int]) -> float:
    """Return the seconds of an epoch, with its validation, from the seconds per training image."""
    counts = state.setup.data.counts()
    return seconds * counts["train"] + state.eval_seconds(_pixel_ratio(state, side))


def _use_first_preset(state: TuneState, preset: TuningPreset) -> tuple[TuningPreset, CostEstimate] | None:
    """Return the first preset without a trial; None if it does not fit in all the remaining time."""
    cost = _estimate_cost(state, replace(preset, name=preset.name + AT_ONCE), 0)
    return None if cost is None else _skip_trials(state, preset, cost, "no time to try several presets")


def _skip_trials(
    state: TuneState, preset: TuningPreset, cost: CostEstimate, reason: str
) -> tuple[TuningPreset, CostEstimate]:
    """Use a preset without a trial, and prepare its head."""
    if reason:
        state.console.say(f"note: {reason}; using the most careful one: {preset.name}")
    _prepare_head(state, cost.side)
    return preset, cost


def _open_presets(setup: TrainingSetup) -> Sequence[TuningPreset]:
    """Return the presets without the settings that the user gave; a single preset if they then are all equal.

    The high rate of norms and biases also suits low-rank adapters, whose parameters are as few, but no other layers.
    """
    presets, adapted = presets_for(setup.objective.deployable()), setup.settings.lora_rank is not None
    few_presets = adapted or setup.settings.freeze == "weights"
    fixed_names = {name for preset in presets for name in preset.settings if not is_free(setup, name)}
    if "freeze" in fixed_names and not few_presets:
        presets = [preset for preset in presets if preset.settings.get("freeze") != "weights"]
    fixed_names |= {"freeze", "layer_decay"} if adapted else set()
    distinct: list[TuningPreset] = []
    for preset in (preset.without(fixed_names) for preset in presets):
        if preset.settings not in [other.settings for other in distinct]:
            distinct.append(preset)
    return distinct if len(distinct) > 1 else [replace(distinct[0], name="the given settings")]


def _load_or_run_trial(state: TuneState, preset: TuningPreset, cost: CostEstimate) -> TuneStep:
    """Return the stored trial of a preset, or run it."""
    trials = {trial.name: trial for trial in state.record.trials}
    if preset.name in trials:
        return trials[preset.name]
    _prepare_head(state, cost.side)  # only here, since a head needs the features of all images
    trial_setup = state.reassemble(img_size=cost.side, epochs=1, freeze_epochs=0, **preset.settings)
    # If an earlier trial was cut short, this one is shortened in proportion.
    details = [trial.details for trial in state.record.trials]
    shares = [detail["steps"] / detail.get(PLANNED, detail["steps"]) for detail in details]
    steps = max(1, int(cost.steps * min([1.0, *shares])))
    limit = _trial_time_limit(state, cost, steps)
    trial = run_trial(state.run, trial_setup, preset, steps, state.console, time_plan=limit)
    if trial is None:
        raise KeyboardInterrupt
    trial = replace(trial, details={**trial.details, PLANNED: cost.steps})
    state.save(trials=(*state.record.trials, trial))
    score = state.setup.data.primary_metric.format_score(trial.score)
    steps_text = counted(trial.details["steps"], "step")
    state.console.say(f"trial: {preset.name}: {score} after {steps_text}, {duration(trial.seconds)}")
    return trial


def _trial_time_limit(state: TuneState, cost: CostEstimate, steps: int) -> TimePlan | None:
    """Return the time limit of a trial; None if the run has no time budget."""
    if not is_timed(state.setup):
        return None
    evaluation = state.eval_seconds(cost.shrink)
    step = max(0.0, cost.epoch - evaluation) / max(1, state.setup.plan.steps_per_epoch)
    max_seconds = TRIAL_SLACK * (steps * step + evaluation) + TRIAL_START
    return TimePlan(max_seconds, 0.0, 0.0, step, evaluation, most_steps=steps, threads=torch.get_num_threads())


def _estimate_cost(state: TuneState, preset: TuningPreset, count: int) -> CostEstimate | None:
    """Return the stored cost of a preset, or measure it; None if it does not fit in the time."""
    costs = state.record.tuning
    if preset.name not in costs:
        choice = _choose_side(state, preset, 1 - (TRIALS_SHARE if count else 0.0))
        if choice is None:
            state.save(tuning={**costs, preset.name: None})
            return None
        side, epoch = choice
        steps = per_epoch = max(1, state.setup.plan.steps_per_epoch)
        if is_timed(state.setup):
            seconds = TRIALS_SHARE / max(count, 1) * state.left(_pixel_ratio(state, side))
            steps = int(seconds * per_epoch / max(epoch, 1e-9))
        state.save(tuning={**costs, preset.name: {"side": side, "epoch": epoch, "steps": steps}})
    cost = state.record.tuning[preset.name]
    if cost is None:
        return None
    side = list(cost["side"])
    return CostEstimate(side, float(cost["epoch"]), int(cost["steps"]), _pixel_ratio(state, side))


def _pixel_ratio(state: TuneState, side: Sequence[int]) -> float:
    native = state.setup.settings.img_size
    return (side[0] / native[0]) ** 2


def _choose_side(state: TuneState, preset: TuningPreset, share: float) -> tuple[list[int], float] | None:
    """Return the largest image size at which enough epochs fit in the time, and the seconds of an epoch.

    Where images without labels improved the first model, tuning keeps its size. Reading them leaves little time, in
    which six networks were tuned at 160 pixels instead of 240: three did not reach the first model, and two of the
    others lost 2.4 and 2.7 points on test images.
    """
    setup, counts = state.setup, state.setup.data.counts()
    native, timed = list(setup.settings.img_size), is_timed(setup)
    improved = state.record.first_model is not state.record.probe
    keeps_size = improved or not timed or not is_free(setup, "img_size") or not _takes_any_size(setup)
    best: tuple[list[int], float] | None = None
    min_epochs = min(MIN_EPOCHS, MIN_TUNING_STEPS / max(1, setup.plan.steps_per_epoch))
    for side in sides(native, keeps_size):
        shrink = _pixel_ratio(state, side)
        fitted = side == native or (state.run.path / head_file_name(side)).exists()
        head_seconds = 0.0 if fitted else shrink * state.image_seconds * (counts["train"] + counts["val"])
        image_seconds = _image_seconds(state, preset, side)
        if image_seconds is None:  # smaller images may fit
            continue
        epoch_seconds = _epoch_seconds(state, image_seconds, side)
        epochs = (share * state.left(shrink) - head_seconds) / epoch_seconds if timed else preset.passes
        if epochs >= min_epochs:
            best = side, epoch_seconds
        if epochs >= preset.passes:
            break
    return best


def sides(native: Sequence[int], fixed: bool) -> list[list[int]]:
    """Return the image sizes to try for tuning, largest first; only the native size if it is `fixed`."""
    if fixed or len(native) > 1:
        return [list(native)]
    smaller = [round(share * native[0] / 32) * 32 for share in (0.72, 0.57)]
    return [[native[0]], *([side] for side in smaller if 96 <= side < native[0])]


def _image_seconds(state: TuneState, preset: TuningPreset, side: list[int]) -> float | None:
    """Return the seconds per training image at an image size, measured once; None if a step exceeds the memory."""
    frozen = preset.settings.get("freeze")
    name = "x".join(map(str, side)) + ("" if frozen is None else f", frozen: {frozen}")
    if name not in state.record.sizes:
        tuned = {} if frozen is None else {"freeze": frozen}
        seconds = _measured_seconds(state, state.reassemble(img_size=side, **tuned), name)
        state.save(sizes={**state.record.sizes, name: seconds})
    return state.record.sizes[name]


def _measured_seconds(state: TuneState, trial_setup: TrainingSetup, name: str) -> float | None:
    try:
        return seconds_per_image(trial_setup)
    except (RuntimeError, MemoryError) as problem:
        if not is_out_of_memory(problem):
            raise
    state.console.say(f"note: the memory is too small for tuning on images of {name}")
    return None


def _takes_any_size(setup: TrainingSetup) -> bool:
    """Return whether no weight of the network depends on the image size."""
    spec = setup.card.backbone
    side = spec.image_size[0] - 32
    try:
        other = replace(spec, image_size=(side, side)).build().model.state_dict()
    except UserError:
        return False
    state = setup.objective.deployable().state_dict()
    return state.keys() == other.keys() and all(value.shape == other[name].shape for name, value in state.items())


def _prepare_head(state: TuneState, side: list[int]) -> None:
    """Fit and store a head for tuning at an image size other than the probe's, unless it is already stored."""
    setup, name = state.setup, head_file_name(side)
    if side == list(setup.settings.img_size) or (state.run.path / name).exists():
        return
    fitted = fit_probe_head(state, state.reassemble(img_size=side), f"head for images of {side[0]} pixels")
    save_head(state.run, fitted.head, name)
    state.console.say(
        f"at {side[0]} pixels, where an epoch is faster, the probe has "
        f"{setup.data.primary_metric.format_score(fitted.score, VALIDATION)}"
    )
