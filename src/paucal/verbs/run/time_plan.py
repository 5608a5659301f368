"""The time of a run: steps that are timed to plan its length, the file that keeps what they took, and messages."""

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
    """Move an objective to a device for steps that are timed; after the block it is as it was before."""
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
    """Let torch use the number of threads that is quickest for a step, where other programs use the same cores."""
    if device.type == "cpu" and cores_are_shared():
        choose_threads(step)


def store_time_plan(run: RunFolder, plan: TimePlan) -> None:
    """Write what the length of a run was planned from."""
    run.write_json(FILE, asdict(plan))


def add_time_plan(run: RunFolder, plan: Plan, planned_at: float) -> Plan:
    """Return the plan of a run with its time; unchanged where the run has none.

    Args:
        run: Folder of the run.
        plan: Plan as its settings have it.
        planned_at: `time.monotonic()` at which the length was planned, or the run was opened again.

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
    """Return what is said where the length of a run is corrected.

    Args:
        plan: Corrected plan.
        pace: Seconds of a step now.
    """
    assert plan.time is not None
    change, before = plan.changes[-1], replace(plan, changes=plan.changes[:-1])
    if change.total_steps == before.last_step:
        return f"plan: {counted(change.threads, 'thread')} from step {change.step} on, with which a step is quicker now"
    return (
        f"plan: a step takes {pace:.2g} s now ({plan.time.step:.2g} s when the length was planned): the run has "
        f"{change.total_steps} steps instead of {before.last_step}, to end in its time"
    )
