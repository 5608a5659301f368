"""The runs below a folder, with what they are and what they have come to."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from paucal.runs import RunFolder
from paucal.runs.folder import ASIDE, MARKER, SUMMARY
from paucal.runs.grid_files import SCORES, read_scores
from paucal.runs.lock import is_locked
from paucal.types import UserError

# Where the scores of a run stand, by what it has made; one without a classifier has those of its monitor and its judge.
VALIDATED = ("kept_val_top1", "best_val_top1", "best_val_mean_iou", "best_val_ap", "knn_end")
TESTED = ("test_top1", "test_mean_iou", "test_ap", "judged_linear", "judged_knn")
DEPTH = 5  # folders between the place that is given and a run: those of a comparison lie three down


@dataclass(frozen=True)
class ListedRun:
    """A run.

    Attributes:
        path: of its folder.
        name: relative to the folder that is listed.
        state: "finished", "running", "stopped" with a saved state, or "begun" without one.
        verb: that made it.
        settings: as they are stored.
        summary: of a finished run, with the scores of its judge ("judged_linear"); empty before.
        size: bytes on the disk.
        changed: when something in it last changed, in seconds since 1970.
        deletable: why it can be deleted; "" where nothing says so.
        problem: why it cannot be read; "" else.
    """

    path: Path
    name: str
    state: str
    verb: str
    settings: Mapping[str, Any]
    summary: Mapping[str, Any]
    size: int
    changed: float
    deletable: str = ""
    problem: str = ""

    def value(self, name: str) -> Any:
        """Return one of the run's numbers or words by its heading, or by the name of a setting or summary entry."""
        known = {
            "run": self.name,
            "state": self.state,
            "verb": self.verb,
            "method": self.settings.get("method"),
            "val": _first(self.summary, *VALIDATED),
            "test": _first(self.summary, *TESTED),
            "time": self.summary.get("seconds"),
            "size": self.size,
            "changed": self.changed,
            "deletable": self.deletable,
        }
        if name in known:
            return known[name]
        return self.settings[name] if name in self.settings else self.summary.get(name)

    def but(self, **changes: Any) -> "ListedRun":
        """Return the run with changes."""
        return replace(self, **changes)


def list_runs(root: Path) -> list[ListedRun]:
    """Return all runs below a folder, the oldest first; one that is a run itself is listed alone.

    Raises:
        UserError: there is no such folder.
    """
    if not root.is_dir():
        raise UserError(f"there is no folder {str(root)!r}: give one that holds runs.")
    found = [_listed(path, root) for path in _folders(root, DEPTH)]
    return sorted(found, key=lambda run: (run.changed, run.name))


def _folders(path: Path, depth: int) -> Iterator[Path]:
    if (path / MARKER).is_file():
        yield path  # what lies within, such as trials, is the run's own
        return
    if depth == 0:
        return
    try:
        children = sorted(child for child in path.iterdir() if child.is_dir() and not child.is_symlink())
    except OSError:  # it may not be looked into
        return
    for child in children:
        if child.suffix != ASIDE:
            yield from _folders(child, depth - 1)


def _listed(path: Path, root: Path) -> ListedRun:
    run, problem = RunFolder(path), ""
    settings: Mapping[str, Any] = {}
    summary: Mapping[str, Any] = {}
    verb = "train"
    try:
        settings, verb = run.settings, run.verb
        summary = {**run.read_json(SUMMARY), **_judged(path)} if run.finished else {}
    except (UserError, OSError) as error:
        problem = str(error)
    size, changed = _disk(path)
    name = path.name if path == root else path.relative_to(root).as_posix()
    return ListedRun(path, name, _state(run), verb, settings, summary, size, changed, "", problem)


def _judged(path: Path) -> dict[str, float]:
    """Return what the frozen features of a run of a study are worth, as a judge beside it has stored."""
    if not (path.parent / SCORES).is_file():
        return {}
    scores = read_scores(path.parent)
    return {f"judged_{name}": by["trained"] for name, by in scores.items() if "trained" in by}


def _state(run: RunFolder) -> str:
    if run.finished:
        return "finished"
    if is_locked(run.path):
        return "running"
    return "stopped" if run.last.exists() else "begun"


def _disk(path: Path) -> tuple[int, float]:
    """Return the bytes of a folder and the time of the last change in it."""
    size, changed = 0, path.stat().st_mtime
    for folder, _, files in os.walk(path):
        for file in files:
            try:
                found = os.lstat(os.path.join(folder, file))
            except OSError:  # it was just removed
                continue
            size, changed = size + found.st_size, max(changed, found.st_mtime)
    return size, changed


def _first(values: Mapping[str, Any], *names: str) -> Any:
    return next((values[name] for name in names if values.get(name) is not None), None)
