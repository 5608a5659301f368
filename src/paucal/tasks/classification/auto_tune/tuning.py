"""Choose the fine-tuning preset: measure the cost of each preset on this machine, run short trials, use the best."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from paucal.memory import is_out_of_memory
from paucal.runner.time_budget import seconds_per_step
from paucal.tasks.classification.assembly import TrainingSetup
from paucal.tasks.classification.auto_tune.first_model import fit_probe_head
from paucal.tasks.classification.auto_tune.record import EvaluatedModel, head_file_name, save_head
from paucal.tasks.classification.auto_tune.state import TuneState, is_automatic_setting, is_length_timed
from paucal.tasks.classification.auto_tune.trials import (
    MIN_STEPS,
    TRAINED_SECONDS,
    TRIALS_FOLDER,
    TuningPreset,
    best_trial_index,
    presets_for,
    run_trial,
)
from paucal.tasks.classification.auto_tune.unlabelled import has_few_labels
from paucal.tasks.classification.trainer_inputs import train_loader
from paucal.training import TimePlan
from paucal.training.timed_steps import timed_steps
from paucal.types import UserError
from paucal.wording import counted, format_duration

# The probe is kept unless this many epochs or steps of tuning fit in the time. With many images, even part of an epoch
# helps: on 4,500 images of CIFAR-10, test accuracy was 82.0 % after 1.25 epochs, and 76.0 % without tuning.
MIN_EPOCHS, MIN_TUNING_STEPS = 2, 50
# If fewer epochs fit, the first preset is used without trials, since trials would take up the time for tuning.
MIN_EPOCHS_FOR_TRIALS = 4
UNTRIED_SUFFIX = ", at once"  # appended to a preset's name in the record if the preset is used without a trial
PLANNED_STEPS = "planned"  # key of the planned number of steps, in the details of a trial
TRIALS_FRACTION = 0.24  # fraction of the remaining time for the trials of all presets
# A trial may take TRIAL_SLACK times its planned seconds, plus TRIAL_START_SECONDS to start.
TRIAL_SLACK, TRIAL_START_SECONDS = 1.5, 5.0
MAX_TIMED_IMAGES = 32  # maximum number of images in a timed batch
TIMED_STEPS = 2  # number of timed steps, after one warm-up step


def measure_seconds_per_image(setup: TrainingSetup, choose_threads: bool = False) -> float:
    """Measure the seconds that training takes per image, perhaps after choosing the fastest number of CPU threads."""
    settings, objective = setup.settings, setup.objective
    size = min(settings.batch_size_or_1, MAX_TIMED_IMAGES, max(2, len(setup.data.split_indices("train"))))
    device = torch.device(settings.device)
    loader_settings = replace(settings, batch_size=size, accumulate=1, workers=0)
    plan, request = replace(setup.plan, total_steps=TIMED_STEPS + 1, accumulate=1), objective.data_request
    batches: Any = train_loader(setup.data, setup.card.preprocessing, loader_settings, plan, request, first_pass=0)
    with timed_steps(objective.train(), device):
        return seconds_per_step(objective, batches, device, settings.precision, tunes_threads=choose_threads) / size


@dataclass(frozen=True)
class CostEstimate:
    """Estimated cost of a fine-tuning preset."""

    image_size: list[int]  # image size in pixels: [side] or [height, width], as in the settings
    epoch_seconds: float  # seconds of an epoch with its validation
    steps: int  # number of optimizer steps of the trial
    pixel_ratio: float = 1.0  # number of pixels of an image, divided by the number at the probe's image size

    def corrected_by(self, seconds: float, eval_seconds: float, per_epoch: int) -> "CostEstimate":
        """Return the estimate with the seconds per epoch that a trial measured.

        Args:
            seconds: Duration of the trial, with its validation.
            eval_seconds: Duration of the validation.
            per_epoch: Number of optimizer steps of an epoch.
        """
        step_seconds = (seconds - eval_seconds) / self.steps
        return replace(self, epoch_seconds=per_epoch * step_seconds + eval_seconds) if step_seconds > 0 else self


def equalise_trials(costs: Sequence[CostEstimate], per_epoch: int) -> list[CostEstimate]:
    """Change the numbers of trial steps, so that all trials take equally long: as long as the shortest.

    No trial takes longer than an epoch of the slowest preset, which has `per_epoch` steps.
    """
    seconds = min(
        max(cost.epoch_seconds for cost in costs), *(cost.steps * cost.epoch_seconds / per_epoch for cost in costs)
    )
    return [replace(cost, steps=round(seconds * per_epoch / cost.epoch_seconds)) for cost in costs]


def choose_preset(state: TuneState) -> tuple[TuningPreset, CostEstimate] | None:
    """Return the preset with the best short trial, and its cost; None if no preset fits in the time and the memory.

    Every step is stored, so that a stopped trial resumes with the same image size and the same number of steps. If a
    signal stops a trial, a KeyboardInterrupt is raised.
    """
    presets, resumed = _list_presets(state.setup), bool(state.record.preset_costs)
    without_trial = presets[0].name + UNTRIED_SUFFIX in state.record.preset_costs
    if len(presets) > 1 and (without_trial or (not resumed and _too_short_for_trials(state, presets))):
        cost = _estimate_cost(state, replace(presets[0], name=presets[0].name + UNTRIED_SUFFIX), 0)
        reason = "no time to try several presets"
        return None if cost is None else _prepare_untried_preset(state, presets[0], cost, reason)
    costs = [(preset, cost) for preset in presets if (cost := _estimate_cost(state, preset, len(presets))) is not None]
    if not costs:
        return None
    if is_length_timed(state.setup):  # with given epochs, all presets and their trials have the same number of steps
        equal_costs = equalise_trials([cost for _, cost in costs], max(1, state.setup.plan.steps_per_epoch))
        costs = [(preset, cost) for (preset, _), cost in zip(costs, equal_costs, strict=True)]
    is_undecidable = not len(state.setup.data.split_indices("val")) or min(cost.steps for _, cost in costs) < MIN_STEPS
    if is_undecidable or len(costs) == 1:
        reason = "no time or images to try several presets" if is_undecidable and len(presets) > 1 else ""
        return _prepare_untried_preset(state, *costs[0], reason)
    trials = [_load_or_run_trial(state, preset, cost) for preset, cost in costs]
    best = best_trial_index(trials, len(state.setup.data.split_indices("val")), [cost.image_size for _, cost in costs])
    shutil.rmtree(state.run.path / TRIALS_FOLDER, ignore_errors=True)  # the scores are in the record
    preset, cost = costs[best]
    state.console.say(f"tuning continues with: {preset.name}")
    details, eval_seconds = trials[best].details, state.eval_seconds(cost.pixel_ratio)
    trial_cost = replace(cost, steps=details["steps"])
    return preset, trial_cost.corrected_by(
        details.get(TRAINED_SECONDS, 0.0), eval_seconds, state.setup.plan.steps_per_epoch
    )


def settings_to_store(setup: TrainingSetup, preset: TuningPreset) -> dict[str, Any]:
    """Return the settings of a preset and the other settings that presets change, to repeat the run without trials."""
    names = {name for other in _list_presets(setup) for name in other.settings}
    return {name: getattr(setup.settings, name) for name in sorted(names)} | dict(preset.settings)


def _too_short_for_trials(state: TuneState, presets: Sequence[TuningPreset]) -> bool:
    """Return whether trials would leave time for too few epochs of the first preset at the probe's image size.

    On 3,068 photographs and a slow core, three trials left time for three epochs at 160 pixels: the accuracy on the
    validation images was 91.9 %, against 94 % after six epochs at 224 pixels.
    """
    if not is_length_timed(state.setup):
        return False
    state.plan_for_preset(presets[0].settings)
    image_size = list(state.setup.settings.img_size)
    image_seconds = _cached_seconds_per_image(state, presets[0], image_size)
    if image_seconds is None:
        return False
    seconds_left = state.seconds_left() * (1 - TRIALS_FRACTION)
    return seconds_left < MIN_EPOCHS_FOR_TRIALS * _epoch_seconds(state, image_seconds, image_size)


def _epoch_seconds(state: TuneState, image_seconds: float, image_size: Sequence[int]) -> float:
    """Return the seconds of an epoch with its validation, at `image_seconds` per training image."""
    counts = state.setup.data.counts()
    return image_seconds * counts["train"] + state.eval_seconds(_pixel_ratio(state, image_size))


def _prepare_untried_preset(
    state: TuneState, preset: TuningPreset, cost: CostEstimate, reason: str
) -> tuple[TuningPreset, CostEstimate]:
    """Print why a preset is used without a trial, and prepare its head; return the preset and its cost."""
    if reason:
        state.console.say(f"note: {reason}; using the most careful preset: {preset.name}")
    _prepare_head(state, cost.image_size)
    return preset, cost


def _list_presets(setup: TrainingSetup) -> Sequence[TuningPreset]:
    """Remove the user's settings from each preset, and return the presets that still differ.

    The preset that trains only norms and biases has a higher learning rate than the presets that train more parameters.
    If the user gave `--freeze`, this preset is therefore returned only if the user trains norms and biases, or low-rank
    adapters.
    """
    presets, has_adapters = presets_for(setup.objective.deployable()), setup.settings.lora_rank is not None
    trains_few = has_adapters or setup.settings.freeze == "weights"
    fixed_names = {name for preset in presets for name in preset.settings if not is_automatic_setting(setup, name)}
    if "freeze" in fixed_names and not trains_few:
        presets = [preset for preset in presets if preset.settings.get("freeze") != "weights"]
    fixed_names |= {"freeze", "layer_decay"} if has_adapters else set()
    distinct: list[TuningPreset] = []
    for preset in (preset.without_settings(fixed_names) for preset in presets):
        if preset.settings not in [other.settings for other in distinct]:
            distinct.append(preset)
    return distinct if len(distinct) > 1 else [replace(distinct[0], name="the given settings")]


def _load_or_run_trial(state: TuneState, preset: TuningPreset, cost: CostEstimate) -> EvaluatedModel:
    """Return the stored trial of a preset, or run the trial."""
    trials = {trial.name: trial for trial in state.record.trials}
    if preset.name in trials:
        return trials[preset.name]
    _prepare_head(state, cost.image_size)  # slow, since it needs the features of all images
    trial_setup = state.reassemble(img_size=cost.image_size, epochs=1, freeze_epochs=0, **preset.settings)
    # If the time limit ended an earlier trial, this trial is shortened in proportion.
    details = [trial.details for trial in state.record.trials]
    fractions = [detail["steps"] / detail.get(PLANNED_STEPS, detail["steps"]) for detail in details]
    steps = max(1, int(cost.steps * min([1.0, *fractions])))
    limit = None
    if is_length_timed(state.setup):
        eval_seconds = state.eval_seconds(cost.pixel_ratio)
        step_seconds = max(0.0, cost.epoch_seconds - eval_seconds) / max(1, state.setup.plan.steps_per_epoch)
        max_seconds = TRIAL_SLACK * (steps * step_seconds + eval_seconds) + TRIAL_START_SECONDS
        limit = TimePlan(
            max_seconds, 0.0, 0.0, step_seconds, eval_seconds, most_steps=steps, threads=torch.get_num_threads()
        )
    trial = run_trial(state.run, trial_setup, preset, steps, state.console, time_plan=limit)
    if trial is None:
        raise KeyboardInterrupt
    trial = replace(trial, details={**trial.details, PLANNED_STEPS: cost.steps})
    state.save(trials=(*state.record.trials, trial))
    score = state.setup.data.primary_metric.format_score(trial.score)
    steps_text = counted(trial.details["steps"], "step")
    state.console.say(f"trial: {preset.name}: {score} after {steps_text}, {format_duration(trial.seconds)}")
    return trial


def _estimate_cost(state: TuneState, preset: TuningPreset, n_trials: int) -> CostEstimate | None:
    """Return the stored cost of one of `n_trials` presets, or measure it; None if it does not fit in time and memory.

    `n_trials` is 0 if the preset is used without a trial.
    """
    costs = state.record.preset_costs
    state.plan_for_preset(preset.settings)
    if preset.name not in costs:
        size_and_seconds = _choose_image_size(state, preset, 1 - (TRIALS_FRACTION if n_trials else 0.0))
        if size_and_seconds is None:
            state.save(preset_costs={**costs, preset.name: None})
            return None
        image_size, epoch_seconds = size_and_seconds
        steps = per_epoch = max(1, state.setup.plan.steps_per_epoch)
        if is_length_timed(state.setup):
            seconds = TRIALS_FRACTION / max(n_trials, 1) * state.seconds_left(_pixel_ratio(state, image_size))
            steps = int(seconds * per_epoch / max(epoch_seconds, 1e-9))
        state.save(preset_costs={**costs, preset.name: {"side": image_size, "epoch": epoch_seconds, "steps": steps}})
    cost = state.record.preset_costs[preset.name]
    if cost is None:
        return None
    image_size = list(cost["side"])
    return CostEstimate(image_size, float(cost["epoch"]), int(cost["steps"]), _pixel_ratio(state, image_size))


def _pixel_ratio(state: TuneState, image_size: Sequence[int]) -> float:
    """Return the number of pixels of an image of this size, divided by the number at the probe's image size."""
    return (image_size[0] / state.setup.settings.img_size[0]) ** 2


def _choose_image_size(state: TuneState, preset: TuningPreset, time_fraction: float) -> tuple[list[int], float] | None:
    """Return the largest image size at which enough epochs fit in the time, and the seconds per epoch.

    `time_fraction` is the fraction of the remaining time that may be used.

    If unlabelled images improved the first model and there are few labels, tuning keeps the image size of the first
    model, since the unlabelled images leave little time for tuning. Of six networks tuned at 160 instead of 240 pixels,
    three were worse than the first model on validation images, and another two on test images, by 2.4 and 2.7 points.
    With more labels, the size is not kept: on CIFAR-10 with forty labels per class, keeping it halved the number of
    epochs and cost 4 points.
    """
    setup, counts = state.setup, state.setup.data.counts()
    native, timed = list(setup.settings.img_size), is_length_timed(setup)
    uses_unlabelled = state.record.first_model is not state.record.probe and has_few_labels(setup)
    keeps_size = (
        uses_unlabelled or not timed or not is_automatic_setting(setup, "img_size") or not _supports_any_size(setup)
    )
    best: tuple[list[int], float] | None = None
    min_epochs = min(MIN_EPOCHS, MIN_TUNING_STEPS / max(1, setup.plan.steps_per_epoch))
    sizes = [native]  # largest first
    if not keeps_size and len(native) == 1:
        smaller = [round(fraction * native[0] / 32) * 32 for fraction in (0.72, 0.57)]
        sizes += [[side] for side in smaller if 96 <= side < native[0]]
    for size in sizes:
        pixel_ratio = _pixel_ratio(state, size)
        has_head = size == native or (state.run.path / head_file_name(size)).exists()
        head_seconds = 0.0 if has_head else pixel_ratio * state.image_seconds * (counts["train"] + counts["val"])
        image_seconds = _cached_seconds_per_image(state, preset, size)
        if image_seconds is None:  # a step does not fit in memory at this size; it may at a smaller one
            continue
        epoch_seconds = _epoch_seconds(state, image_seconds, size)
        epochs = (
            (time_fraction * state.seconds_left(pixel_ratio) - head_seconds) / epoch_seconds
            if timed
            else preset.target_epochs
        )
        if epochs >= min_epochs:
            best = size, epoch_seconds
        if epochs >= preset.target_epochs:
            break
    return best


def _cached_seconds_per_image(state: TuneState, preset: TuningPreset, image_size: list[int]) -> float | None:
    """Return the seconds per training image at an image size, measured once; None if a step exceeds the memory."""
    frozen = preset.settings.get("freeze")
    name = "x".join(map(str, image_size)) + ("" if frozen is None else f", frozen: {frozen}")
    if name not in state.record.seconds_by_size:
        freeze_setting = {} if frozen is None else {"freeze": frozen}
        trial_setup, seconds = state.reassemble(img_size=image_size, **freeze_setting), None
        try:
            seconds = measure_seconds_per_image(trial_setup)
        except (RuntimeError, MemoryError) as problem:
            if not is_out_of_memory(problem):
                raise
            state.console.say(f"note: the memory is too small for tuning on images of {name}")
        state.save(seconds_by_size={**state.record.seconds_by_size, name: seconds})
    return state.record.seconds_by_size[name]


def _supports_any_size(setup: TrainingSetup) -> bool:
    """Return whether no weight of the network depends on the image size."""
    spec = setup.card.backbone
    side = spec.image_size[0] - 32
    try:
        other_state = replace(spec, image_size=(side, side)).build().model.state_dict()
    except UserError:
        return False
    state = setup.objective.deployable().state_dict()
    return state.keys() == other_state.keys() and all(
        value.shape == other_state[name].shape for name, value in state.items()
    )


def _prepare_head(state: TuneState, image_size: list[int]) -> None:
    """Fit and store a head for tuning at an image size other than the probe's, unless such a head is stored."""
    setup, name = state.setup, head_file_name(image_size)
    if image_size == list(setup.settings.img_size) or (state.run.path / name).exists():
        return
    fitted = fit_probe_head(state, state.reassemble(img_size=image_size), f"head for images of {image_size[0]} pixels")
    save_head(state.run, fitted.head, name)
    score = setup.data.primary_metric.format_score(fitted.score, "validation images")
    state.console.say(f"at {image_size[0]} pixels, where an epoch is faster, the probe has {score}")
