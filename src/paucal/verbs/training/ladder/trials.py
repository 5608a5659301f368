"""Ways to tune a network from its probe, and a short trial of each on the user's own images."""

import math
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lightning.pytorch import Callback
from torch import nn

from paucal.backbones.layers import count_stages
from paucal.runs import RunFolder
from paucal.training import (
    CosineWarmup,
    Optimization,
    Outcome,
    Plan,
    Records,
    TimePlan,
    Watch,
    checkpoint_position,
    fit,
)
from paucal.training.memory import memory_advice
from paucal.types import UserError
from paucal.verbs.run.voice import Voice
from paucal.verbs.training.assembly import AssembledTraining
from paucal.verbs.training.ladder.rungs import Rung
from paucal.verbs.training.loaders import train_loader, validation
from paucal.verbs.training.optimizer import optimization

FOLDER = "trials"
LEAST_STEPS = 8  # of a trial that tells anything
TRAINED = "trained"  # the detail of a trial that says how many seconds its steps and the look after them took
WORST = 1e9  # the loss of a trial that ended in numbers which are none
WARMUP = 0.1  # share of a trial


@dataclass(frozen=True)
class Way:
    """Settings to tune with.

    Attributes:
        name: for people.
        settings: by name; those that the user has given stay as given.
        passes: that it should have: where fewer fit in the time, smaller images are tuned on.
    """

    name: str
    settings: Mapping[str, Any]
    passes: int = 6


# Measured in docs/which_model.md: each of the first two has won by far on a set on which the other lost.
KEEPING = "norms still"
WITH_BATCH_NORM = (
    Way(f"last stages alone, {KEEPING}, rate 3e-4", {"eval_mode": True, "lr": 3e-4, "crop_scale": 0.5}, passes=3),
    Way("all layers, norms learning, rate 1e-3", {"eval_mode": False, "lr": 1e-3, "crop_scale": 0.6}),
    Way(f"all layers, {KEEPING}, rate 2e-4", {"eval_mode": True, "lr": 2e-4, "crop_scale": 0.35}),
)
WITHOUT = (
    Way("last stages alone, rate 1e-4", {"lr": 1e-4, "crop_scale": 0.5}, passes=3),
    Way("all layers, rate 3e-4, layer decay 0.75", {"lr": 3e-4, "layer_decay": 0.75, "crop_scale": 0.5}),
    Way("all layers, rate 5e-5, layer decay 0.75", {"lr": 5e-5, "layer_decay": 0.75, "crop_scale": 0.35}),
)
FROZEN_SHARE = 0.6  # of the stages, where only the last ones are tuned: half of the time of a pass, or less


def ways(model: nn.Module) -> Sequence[Way]:
    """Return the ways that suit a network, the most careful one first."""
    normed = any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules())
    partly, *whole = WITH_BATCH_NORM if normed else WITHOUT
    try:
        frozen = int(FROZEN_SHARE * count_stages(model))
    except UserError:  # timm does not say where its stages are
        return whole
    return [replace(partly, settings={"freeze": frozen, **partly.settings}), *whole] if frozen else whole


def attempt(
    run: RunFolder,
    assembled: AssembledTraining,
    way: Way,
    steps: int,
    voice: Voice,
    callbacks: Sequence[Callback] = (),
    time_plan: TimePlan | None = None,
) -> Rung | None:
    """Train for a few steps from the probe, and judge on the validation images.

    Args:
        run: in a folder of which the trial keeps its state, so that it goes on where it was stopped.
        assembled: built with the settings of the way, holding the probe's head.
        way: what is tried.
        steps: optimizer steps.
        voice: shows progress.
        callbacks: more of Lightning's.
        time_plan: Time of the trial, which has fewer steps where they become slower; None for all steps.

    Returns:
        The trial; None where it was stopped before its end.
    """
    begin = time.monotonic()
    folder = RunFolder(run.path / FOLDER / way.name.replace(" ", "-").replace(",", ""))
    (folder.path / "checkpoints").mkdir(parents=True, exist_ok=True)
    plan = replace(assembled.plan, total_steps=steps, steps_per_epoch=steps, time=time_plan)
    scores = validation(assembled.prepared, assembled.card.preprocessing, assembled.settings)
    start = checkpoint_position(folder.last)[1] if folder.last.exists() else 0
    records = Records(folder, lambda module: None, Watch(scores))
    try:
        with memory_advice(plan):
            outcome = _fit(assembled, plan, start, records, voice, callbacks)
    except UserError as problem:  # a rate that no weights survive, or too little memory: that way has lost
        voice.say(f"note: {way.name}: {problem}")
        return Rung(way.name, 0.0, time.monotonic() - begin, {"loss": WORST, "steps": steps, **way.settings})
    if not outcome.finished:
        return None
    row = outcome.rows[-1]
    details = {"loss": row["val_loss"], "steps": outcome.step, TRAINED: row["seconds"], **way.settings}
    return Rung(way.name, row[assembled.prepared.yardstick.column], time.monotonic() - begin, details)


def _fit(
    assembled: AssembledTraining,
    plan: Plan,
    start: int,
    records: Records,
    voice: Voice,
    callbacks: Sequence[Callback],
) -> Outcome:
    settings, request = assembled.settings, assembled.objective.data_request
    return fit(
        assembled.objective,
        lambda: train_loader(assembled.prepared, assembled.card.preprocessing, settings, plan, request, start),
        short(optimization(settings, plan), settings.lr or 0.0, plan.total_steps),
        plan,
        records,
        [*voice.callbacks(), *callbacks],
    )


def short(usual: Optimization, peak: float, steps: int) -> Optimization:
    """Return the optimization of a trial: one warm-up and one cosine over its steps, without an average."""
    schedule = CosineWarmup(peak=peak, horizon=steps, warmup=round(WARMUP * steps), start=0.1 * peak, floor=0.0)
    return replace(usual, schedule=schedule, average_decay=None)


def clear(run: RunFolder) -> None:
    """Remove the trials' states, whose scores are kept elsewhere."""
    shutil.rmtree(run.path / FOLDER, ignore_errors=True)


def best_of(trials: Sequence[Rung], images: int) -> int:
    """Return the position of the trial whose way goes on.

    It is the first one unless another leads by more than the standard error of their difference: trials are short, and
    few images judge them. On 81 of them the first has lost by four images and, with all its passes, won by three
    points.

    Args:
        trials: the first one is of the way that is taken where nothing speaks against it.
        images: how many have judged them.
    """
    best = max(range(len(trials)), key=lambda number: (trials[number].score, -trials[number].details["loss"]))
    lead = trials[best].score - trials[0].score
    variance = sum(trial.score * (1 - trial.score) for trial in (trials[0], trials[best])) / max(images, 1)
    return best if lead > math.sqrt(variance) else 0
