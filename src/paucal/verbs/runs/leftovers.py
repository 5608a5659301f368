"""Which runs can be deleted, and why. Nothing is: that is left to people."""

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from paucal.runs.folder import PUBLISHED
from paucal.runs.grid_files import is_grid
from paucal.verbs.runs.rows import ListedRun

LONG_AGO = 30 * 86400.0  # seconds after which nobody is expected to go on with a stopped run
JUST_NOW = 600.0  # seconds in which a run that was begun may be at work on a machine that cannot be seen
_OWN = ("output", "overwrite", "time_limit", "workers", "device")  # settings that do not tell runs apart


def with_leftovers(runs: Sequence[ListedRun], now: float | None = None) -> list[ListedRun]:
    """Return runs with the reason why each can be deleted; those that another run needs have none.

    Args:
        runs: all of a place, so that what they need of each other is known.
        now: seconds since 1970; by default the clock.
    """
    now = time.time() if now is None else now
    needed = _needed(runs)
    newest = {_identity(run): run for run in sorted(runs, key=lambda run: run.changed) if run.state == "finished"}
    return [run.but(deletable=_reason(run, newest.get(_identity(run)), needed, now)) for run in runs]


def _reason(run: ListedRun, same: ListedRun | None, needed: set[Path], now: float) -> str:
    if run.state == "running" or run.path.resolve() in needed or _of_comparison(run) or run.problem:
        return ""
    if run.state == "begun":
        return "nothing was saved" if now - run.changed > JUST_NOW else ""
    if same is not None and same.path != run.path:
        return f"the same as {same.name}, which is newer"
    if run.state == "stopped" and now - run.changed > LONG_AGO:
        return f"stopped {int((now - run.changed) / 86400)} days ago"
    return ""


def _of_comparison(run: ListedRun) -> bool:
    """Return whether a run is a cell of a comparison, which without it would train it again."""
    above = run.path.resolve().parents
    return len(above) > 2 and is_grid(above[2])


def _needed(runs: Sequence[ListedRun]) -> set[Path]:
    """Return the folders that other runs name in their settings: what they began with, teachers, guides."""
    named = set()
    for run in runs:
        for name, value in run.settings.items():
            if name not in _OWN and isinstance(value, str) and value not in PUBLISHED and "/" in value:
                path = Path(value)
                named |= {path, *path.parents}
    return {run.path.resolve() for run in runs} & named


def _identity(run: ListedRun) -> str:
    """Return what is equal for runs that do the same."""
    kept: Mapping[str, Any] = {name: value for name, value in run.settings.items() if name not in _OWN}
    return json.dumps([run.verb, kept], sort_keys=True, default=str)
