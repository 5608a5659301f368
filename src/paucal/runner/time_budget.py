"""The time budget of a run: trial steps to plan its length, the stored plan, and messages."""

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace

import torch
from torch import nn

from paucal.cores import choose_threads, cores_are_shared
from paucal.runs import RunFolder
from paucal.settings.values import DURATION
from paucal.training import Plan, TimePlan
from paucal.types import UserError
from paucal.wording import counted

UNITS = {"d": 86400, "h": 3600, "m": 60, "s": 1}


def seconds_of(duration: str, name: str = "--time-limit") -> float:
    """Return the seconds of a duration such as "45m", "8h", "1d12h" or "1:30:00" (hours first).

    Args:
        duration: Duration as typed.
        name: Flag that it was given to.

    Raises:
        UserError: It is not a duration above 0.

    Example:
        >>> seconds_of("1d12h"), seconds_of("1.5h"), seconds_of("0:45:30")
        (129600.0, 5400.0, 2730.0)
    """
    if re.fullmatch(r"(\d+(\.\d+)?[dhms])+", duration):
        parts = re.findall(r"(\d+(?:\.\d+)?)([dhms])", duration)
        seconds = sum(float(number) * UNITS[unit] for number, unit in parts)
    elif re.fullmatch(r"\d+:\d{2}:\d{2}", duration):
        hours, minutes, rest = map(int, duration.split(":"))
        seconds = float(3600 * hours + 60 * minutes + rest)
    else:
        seconds = 0.0
    if seconds <= 0:
        raise UserError(f"{name} is {duration!r}, {DURATION}.")
    return seconds


FILE = "time_plan.json"


@contextmanager
def trial_steps(objective: nn.Module, device: torch.device) -> Iterator[None]:
    """Move an objective to a device for timed steps, and restore it after the block."""
    before = {name: value.detach().clone() for name, value in objective.state_dict().items()}
    objective.to(device)
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        objective.zero_grad(set_to_none=True)
        objective.to("cpu")
        objective.load_state_dict(before)


def suit_threads(step: Callable[[], object], device: torch.device) -> None:
    """Let torch use the fastest number of threads for a step, if other programs use the same cores."""
    if device.type == "cpu" and cores_are_shared():
        choose_threads(step)


def store_time_plan(run: RunFolder, plan: TimePlan) -> None:
    """Store the time plan of a run."""
    run.write_json(FILE, asdict(plan))


def add_time_plan(run: RunFolder, plan: Plan, planned_at: float) -> Plan:
    """Return the plan of a run with its time plan; unchanged if it has none.

    Args:
        run: Folder of the run.
        plan: Plan from the settings.
        planned_at: `time.monotonic()` at which the length was planned, or the run was resumed.

    Raises:
        UserError: The file is damaged.
    """
    path = run.path / FILE
    if not path.is_file():
        return plan
    try:
        stored = run.read_json(FILE)
        counts = {name: int(stored.pop(name)) for name in ("most_steps", "threads")}
        found = TimePlan(**{name: float(value) for name, value in stored.items()}, **counts)
    except (KeyError, TypeError, ValueError) as problem:
        raise UserError(f"{str(path)!r} is damaged ({problem}): restore it or train anew.") from problem
    return replace(plan, time=replace(found, spent=found.spent + time.monotonic() - planned_at))


def describe_change(plan: Plan, pace: float) -> str:
    """Return the message about a corrected length of a run.

    Args:
        plan: Corrected plan.
        pace: Current seconds of a step.
    """
    assert plan.time is not None
    change, before = plan.changes[-1], replace(plan, changes=plan.changes[:-1])
    if change.total_steps == before.last_step:
        return f"plan: {counted(change.threads, 'thread')} from step {change.step} on, which is faster now"
    return (
        f"plan: a step takes {pace:.2g} s now ({plan.time.step:.2g} s when the length was planned): the run has "
        f"{change.total_steps} steps instead of {before.last_step}, to end in its time"
    )
