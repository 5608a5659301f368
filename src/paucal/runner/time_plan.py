"""The time plan of a run: trial steps to plan its length, the stored plan, and messages."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace

import torch
from torch import nn

from paucal.cores import choose_threads, cores_are_shared
from paucal.runs import RunFolder
from paucal.training import Plan, TimePlan
from paucal.types import UserError
from paucal.wording import counted

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
