"""How long training and judging take on this machine, tried before the length of a run is planned."""

import time
from dataclasses import dataclass, replace
from functools import partial

import torch

from paucal.cores import slowdown
from paucal.rules.resolve import origins
from paucal.runner.clock import duration, finish, start_time
from paucal.runner.console import Console
from paucal.runner.run_folder import store_changes
from paucal.runner.time_budget import seconds_of, store_time_plan, suit_threads, trial_steps
from paucal.runs import RunFolder
from paucal.tasks.detection.assembly import DetectionSetup
from paucal.tasks.detection.judging import detect_all
from paucal.tasks.detection.loaders import ordered_loader, scores_of, train_loader
from paucal.training import TimePlan
from paucal.types import Batch, Progress, UserError

STEPS = 4  # that are timed, after one that is not
LOOKED_AT = 4  # images that are judged
SLOWER = 1.05  # optimizer, moving average and records, which a bare step lacks
SHARE_OF_LOOKS = 0.15  # of the time, at most, that validation may take
MOST_LOOKS = 12
FEWEST_STEPS = 10
MOST_PASSES, SCRATCH_PASSES = 60, 300
WRITING = 12.0  # seconds of scores, intervals and pictures at the end, on a core of their own
RESERVE = 0.02  # of the time


@dataclass(frozen=True)
class Pace:
    """What was measured, in seconds.

    Attributes:
        step: of one optimizer step.
        image: of judging one image.
        writing: of scores, intervals and pictures at the end.
    """

    step: float
    image: float
    writing: float = WRITING


@dataclass(frozen=True)
class Length:
    """How long a run is.

    Attributes:
        steps: optimizer steps.
        judge_every: optimizer steps between two looks at the validation images.
        seconds: from the first step to the last file.
    """

    steps: int
    judge_every: int
    seconds: float


def measure(setup: DetectionSetup, threads: bool = False) -> Pace:
    """Return what a step and an image take; the objective comes back as it was.

    Args:
        setup: Run of a detector.
        threads: Whether to choose the number of threads first, where other programs use the same cores.
    """
    objective, device = setup.objective, torch.device(setup.settings.device or "cpu")
    accumulate = setup.plan.accumulate
    loader = train_loader(setup, 0, replace(setup.plan, total_steps=STEPS + 1, accumulate=1))
    times: list[float] = []
    with trial_steps(objective.train(), device):
        begin = time.perf_counter()
        for batch in loader:
            step = partial(_step, objective, batch.to(device), device)
            step()
            if threads and not times:
                suit_threads(step, device)
            times.append(time.perf_counter() - begin)
            begin = time.perf_counter()
        indices = setup.data.part("test")[:LOOKED_AT]
        if len(setup.data.part("val")):
            indices = setup.data.part("val")[:LOOKED_AT]
        begin = time.perf_counter()
        found = detect_all(setup.objective.deployable(), ordered_loader(setup, indices), device)
        judged = (time.perf_counter() - begin) / max(len(indices), 1)
        scores_of(setup, found, indices)  # imports what counts, which takes seconds once
        if setup.settings.masks == "on":  # boxes are counted in no time, masks are not
            begin = time.perf_counter()
            scores_of(setup, found, indices)
            judged += (time.perf_counter() - begin) / max(len(indices), 1)
    later = times[1:] or times
    return Pace(SLOWER * accumulate * sum(later) / len(later), judged, WRITING * slowdown())


def _step(objective: torch.nn.Module, batch: Batch, device: torch.device) -> None:
    objective(batch, Progress(0, 1, 1)).total.backward()
    if device.type == "cuda":
        torch.cuda.synchronize()


def seconds_of_run(setup: DetectionSetup) -> float:
    """Return how long a run whose length is known should take on this machine, by trying a few steps and answers."""
    plan, counts, pace = setup.plan, setup.data.counts(), measure(setup)
    looks = -(-plan.total_steps // plan.steps_per_epoch)
    return plan.total_steps * pace.step + (looks * counts["val"] + counts["test"]) * pace.image + pace.writing


def planned(pace: Pace, left: float, counts: dict[str, int], passes: float, most_passes: int) -> Length:
    """Return the longest run that fits in the time that is left.

    Args:
        pace: what was measured.
        left: seconds from now to the end.
        counts: images per part.
        passes: of a step, over the training images.
        most_passes: over the training images, after which more would not help.

    Returns:
        The length; no steps where not even a few fit.
    """
    ending = counts["test"] * pace.image + pace.writing
    look = counts["val"] * pace.image
    usable = left * (1 - RESERVE) - ending
    looks = max(1, min(MOST_LOOKS, int(SHARE_OF_LOOKS * usable / look) if look > 0 else MOST_LOOKS))
    steps = min(int((usable - looks * look) / pace.step), int(most_passes / passes))
    if steps < FEWEST_STEPS:
        return Length(0, 1, ending)
    every = -(-steps // looks)
    return Length(steps, every, steps * pace.step + looks * look + ending)


def find_length(run: RunFolder, setup: DetectionSetup, console: Console) -> None:
    """Plan the length of a run for its time, and store it with the run.

    Raises:
        UserError: the time does not suffice for a few steps.
    """
    settings = setup.settings
    budget = seconds_of(settings.time or "", "--time")
    pace, counts = measure(setup, threads=True), setup.data.counts()
    share = settings.effective_batch / max(counts["train"], 1)
    most = MOST_PASSES if settings.init is not None else SCRATCH_PASSES
    left = budget - (time.monotonic() - start_time())
    found = planned(pace, left, counts, share, most)
    if not found.steps:
        needed = budget - left + found.seconds + FEWEST_STEPS * pace.step + counts["val"] * pace.image
        raise UserError(
            f"--time is {settings.time}, and a step takes {pace.step:.1f} s here, judging an image {pace.image:.1f} s: "
            f"give --time {int(1.2 * needed // 60) + 1}m or more, or a smaller --img-size."
        )
    words = f"{found.steps} steps of {pace.step:.2f} s ({found.steps * share:.1f} passes) fit in {settings.time}"
    reasons = {"steps": words, "judge_every": "looks at the validation images take a seventh of the time at most"}
    changed = replace(settings, steps=found.steps, judge_every=found.judge_every)
    free = {name: origin for name, origin in setup.origin.items() if name not in reasons}
    ending = counts["test"] * pace.image + pace.writing
    time_plan = TimePlan(
        *(budget, time.monotonic() - start_time(), ending, pace.step, counts["val"] * pace.image),
        most_steps=int(most / share),
        threads=torch.get_num_threads(),
    )
    store_time_plan(run, time_plan)
    store_changes(run, changed, origins(changed, free, reasons))
    console.say(f"plan: {words}; about {duration(found.seconds)} from now, until {finish(found.seconds)}")
