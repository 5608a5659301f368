"""Plan the length of a run from its time budget, by timing a few steps on this machine; store and print the plan.

During training, `paucal.training.length_correction` corrects the planned length. A resumed run reads the stored plan.
"""

import math
import re
import time
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, ClassVar

import torch

from paucal.cores import choose_threads, cores_are_shared
from paucal.objectives import Objective
from paucal.runner.clock import end_time_text, start_time
from paucal.runner.console import Console
from paucal.runner.job import A, Job, R, S
from paucal.runner.resuming import store_changes
from paucal.runs import RunFolder
from paucal.settings.options import list_origins
from paucal.settings.values import EXPECTED_DURATION
from paucal.training import Plan, TimePlan
from paucal.training.fit import advise_on_memory_errors
from paucal.training.timed_steps import forward_and_backward
from paucal.types import Batch, UserError
from paucal.wording import counted, format_duration

UNIT_SECONDS = {"d": 86400, "h": 3600, "m": 60, "s": 1}
TIME_PLAN_FILE = "time_plan.json"
TIMED_SECONDS = 15.0  # after this many seconds, no further steps are timed
OVERHEAD_FACTOR = 1.08  # factor on the step time, for the optimizer, moving average and metrics, which are not timed


def parse_duration(text: str, name: str = "--time-limit") -> float:
    """Return the seconds of a duration such as "45m", "8h", "1d12h" or "1:30:00" (hours first).

    Example:
        >>> parse_duration("1d12h"), parse_duration("1.5h"), parse_duration("0:45:30")
        (129600.0, 5400.0, 2730.0)
    """
    if re.fullmatch(r"(\d+(\.\d+)?[dhms])+", text):
        parts = re.findall(r"(\d+(?:\.\d+)?)([dhms])", text)
        seconds = sum(float(number) * UNIT_SECONDS[unit] for number, unit in parts)
    elif re.fullmatch(r"\d+:\d{2}:\d{2}", text):
        hours, minutes, seconds_part = map(int, text.split(":"))
        seconds = float(3600 * hours + 60 * minutes + seconds_part)
    else:
        seconds = 0.0
    if seconds <= 0:
        raise UserError(f"{name} is {text!r}, {EXPECTED_DURATION}.")
    return seconds


def choose_time_or_epochs(settings: Any, origins: Mapping[str, str]) -> Any:
    """Return settings in which either the time or the epochs set the length of the run.

    Flags take precedence over a config, and a config over a recipe. Within a config the epochs take precedence, since
    they were planned from its time. If the epochs are dropped, so are other lengths of the same origin, such as
    the warm-up.
    """
    if settings.time is not None:
        parse_duration(settings.time, "--time")
    if settings.time is None or settings.epochs is None:
        return settings
    if origins.get("time") == "config":
        return replace(settings, time=None)
    if origins.get("epochs", "").startswith(("config", "recipe")):
        lengths = ("epochs", "schedule_epochs", "warmup_epochs")
        return replace(settings, **{name: None for name in lengths if origins.get(name) == origins["epochs"]})
    raise UserError(
        f"--time {settings.time} and --epochs {settings.epochs} both set the length of the run: give only one of these."
    )


@dataclass(frozen=True)
class Pace:
    """Measured durations of the phases of a run, in seconds."""

    step: float  # seconds per optimizer step
    val_image: float  # seconds for the evaluation of one validation image
    test_image: float  # seconds for the evaluation of one test image
    closing: float  # seconds from the last step to the last file, without the evaluation of the test images

    def evaluation(self, counts: Mapping[str, int]) -> float:
        """Return the seconds of one validation, given the number of images by split."""
        return counts["val"] * self.val_image

    def closing_seconds(self, counts: Mapping[str, int]) -> float:
        """Return the seconds from the last step until all results are written, given the number of images by split."""
        return counts["test"] * self.test_image + self.closing


@dataclass(frozen=True)
class PlannedLength:
    """The length of a run, planned from its time budget."""

    settings: Mapping[str, Any]  # values of the settings that determine the length of the run, by name
    reasons: Mapping[str, str]  # reasons for the values of these settings, by name
    text: str  # description of the length, which is printed
    seconds: float  # expected seconds from the first step to the last file
    most_steps: int  # maximum number of optimizer steps, however much time is left


class TimedJob(Job[S, A, R]):
    """A job that can plan the length of its runs from `--time`."""

    length_setting: ClassVar[str]  # name of the setting for the length of a run, such as "epochs"

    @abstractmethod
    def measure(self, setup: A, tunes_threads: bool = False) -> Pace:
        """Time a few steps and evaluations, and restore the objective; `tunes_threads` also chooses the CPU threads."""

    @abstractmethod
    def fit_length(self, setup: A, pace: Pace, seconds_left: float) -> PlannedLength:
        """Return the length of a run that takes at most `seconds_left` seconds from now on."""

    def needs_preliminary_work(self, setup: A) -> bool:
        """Return whether the run has a time budget, but its length is not planned yet."""
        return setup.settings.time is not None and getattr(setup.settings, self.length_setting) is None

    def run_preliminary_work(self, run: RunFolder, setup: A, console: Console) -> bool:
        """Time a few steps, and store the length of a run that fits in the time budget."""
        settings, counts = setup.settings, setup.data.counts()
        console.say("timing a few steps on this machine")
        with advise_on_memory_errors(setup.plan):
            pace = self.measure(setup, tunes_threads=True)
        budget = parse_duration(settings.time, "--time")
        length = self.fit_length(setup, pace, budget - (time.monotonic() - start_time()))
        time_plan = TimePlan(
            budget=budget,
            spent=time.monotonic() - start_time(),
            closing=pace.closing_seconds(counts),
            step=pace.step,
            evaluation=pace.evaluation(counts),
            most_steps=length.most_steps,
            threads=torch.get_num_threads(),
        )
        new_settings = replace(settings, **length.settings)
        open_origins = {name: origin for name, origin in setup.origins.items() if name not in length.reasons}
        store_changes(run, new_settings, list_origins(new_settings, open_origins, length.reasons))
        store_length(run, time_plan, length.text, length.seconds, console)
        return True

    def seconds_of_run(self, setup: A) -> float:
        """Return the expected seconds of a run whose length is known, by timing a few steps and evaluations."""
        plan, counts, pace = setup.plan, setup.data.counts(), self.measure(setup)
        evaluations = math.ceil(plan.total_steps / plan.steps_per_epoch)
        return plan.total_steps * pace.step + evaluations * pace.evaluation(counts) + pace.closing_seconds(counts)


def seconds_per_step(
    objective: Objective,
    batches: Iterable[Batch],
    device: torch.device,
    precision: str | None,
    accumulate: int = 1,
    tunes_threads: bool = False,
) -> float:
    """Return the seconds per optimizer step, including data loading, multiplied by `OVERHEAD_FACTOR`.

    Call this within `timed_steps`, which moves the objective to the device. The first batch is a warm-up and not timed,
    unless it is the only one; if `tunes_threads`, CPU threads are chosen there if other programs use the same cores.
    """

    def timed_step(batch: Batch) -> None:
        forward_and_backward(objective, batch, device, precision).item()  # waits for the device, which is asynchronous

    times: list[float] = []
    begin = time.perf_counter()
    for batch in batches:
        batch = batch.to(device)
        timed_step(batch)
        if tunes_threads and not times and device.type == "cpu" and cores_are_shared():
            choose_threads(partial(timed_step, batch))
        now = time.perf_counter()
        times.append(now - begin)
        begin = now
        if sum(times[1:]) > TIMED_SECONDS:
            break
    timed_seconds = times[1:] or times
    return OVERHEAD_FACTOR * accumulate * sum(timed_seconds) / len(timed_seconds)


def store_length(run: RunFolder, time_plan: TimePlan | None, text: str, seconds: float, console: Console) -> None:
    """Store the time plan of a run, unless it is None, and print the length and the expected end time of the run."""
    console.say(f"plan: {text}; about {format_duration(seconds)} from now, until {end_time_text(seconds)}")
    if time_plan is not None:
        run.write_json(TIME_PLAN_FILE, asdict(time_plan))


def add_time_plan(run: RunFolder, plan: Plan, planned_at: float) -> Plan:
    """Return the plan with the run's stored time plan, if there is one; the time since `planned_at` counts as spent."""
    path = run.path / TIME_PLAN_FILE
    if not path.is_file():
        return plan
    try:
        record = run.read_json(TIME_PLAN_FILE)
        counts = {name: int(record.pop(name)) for name in ("most_steps", "threads")}
        stored_plan = TimePlan(**{name: float(value) for name, value in record.items()}, **counts)
    except (KeyError, TypeError, ValueError) as problem:
        raise UserError(f"{str(path)!r} is damaged ({problem}): restore the file or train again.") from problem
    return replace(plan, time=replace(stored_plan, spent=stored_plan.spent + time.monotonic() - planned_at))


def describe_change(plan: Plan, pace: float) -> str:
    """Return the message about a correction of a run's length; `pace` is the current number of seconds per step."""
    assert plan.time is not None
    change, previous_plan = plan.changes[-1], replace(plan, changes=plan.changes[:-1])
    if change.total_steps == previous_plan.corrected_total_steps:
        return f"plan: {counted(change.threads, 'thread')} from step {change.step} on, which is faster now"
    return (
        f"plan: a step takes {pace:.2g} s now ({plan.time.step:.2g} s when the length was planned): the run has "
        f"{counted(change.total_steps, 'step')} instead of {previous_plan.corrected_total_steps}, "
        "to keep the time budget"
    )
