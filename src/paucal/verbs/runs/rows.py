"""Find the runs below a folder, read their settings and scores, and filter and sort them."""

import fnmatch
import operator
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paucal.runs import RunFolder
from paucal.runs.folder import ASIDE_SUFFIX, CONFIG_FILE, SCORES_FILE, SUMMARY_FILE, read_scores
from paucal.runs.lock import is_locked
from paucal.types import UserError
from paucal.wording import did_you_mean

# Keys of the validation score and of the test score in a run's summary; the score of the first existing key is shown.
# For a run of `paucal pretrain`, these are the scores of classifiers on the frozen features of the run.
VAL_SCORE_KEYS = (
    *("kept_val_top1", "best_val_top1", "kept_val_map", "best_val_map"),
    *("best_val_mean_iou", "best_val_ap", "knn_end"),
)
TEST_SCORE_KEYS = (
    *("test_top1", "cross_validated_top1", "test_map", "cross_validated_map"),
    *("test_mean_iou", "test_ap", "judged_linear", "judged_knn"),
)
MAX_DEPTH = 5  # levels of subfolders that are searched for runs; runs of a comparison are three levels down
_CONDITION = re.compile(r"([A-Za-z_][A-Za-z0-9_-]*)\s*(!=|>=|<=|=|>|<)\s*(.+)", re.DOTALL)
HEADINGS = ("run", "state", "verb", "method", "val", "test", "time", "size", "changed", "deletable")


@dataclass(frozen=True)
class ListedRun:
    """A run in the list.

    Attributes:
        path: Path of the run's folder.
        name: Path relative to the listed folder.
        state: "finished", "running", "stopped" (with a checkpoint), or "begun" (without a checkpoint).
        verb: Command that trained the run, such as "train".
        settings: Stored settings.
        summary: Summary of a finished run, with scores of frozen features such as "judged_linear"; empty if unfinished.
        size: Size on disk in bytes.
        changed: Time of the last change in the folder, in seconds since 1970.
        deletable: Reason why the run can be deleted; "" if it should be kept.
        problem: Reason why the run cannot be read; "" if it can be read.
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
        """Return a value of the run, where `name` is a column heading, a setting or a summary entry."""
        columns = {
            "run": self.name,
            "state": self.state,
            "verb": self.verb,
            "method": self.settings.get("method"),
            "val": _first_value(self.summary, *VAL_SCORE_KEYS),
            "test": _first_value(self.summary, *TEST_SCORE_KEYS),
            "time": self.summary.get("seconds"),
            "size": self.size,
            "changed": self.changed,
            "deletable": self.deletable,
        }
        if name in columns:
            return columns[name]
        return self.settings[name] if name in self.settings else self.summary.get(name)


def list_runs(root: Path) -> list[ListedRun]:
    """Return all runs in a folder and its subfolders, the oldest first; if `root` is a run folder, only this run."""
    if not root.is_dir():
        raise UserError(f"there is no folder {str(root)!r}: give a folder that contains runs.")
    runs = []
    for path in _find_run_folders(root, MAX_DEPTH):
        run, problem, verb = RunFolder(path), "", "train"
        settings, summary = dict[str, Any](), dict[str, Any]()
        try:
            settings, verb = run.settings, run.verb
            if run.finished:
                summary = dict(run.read_json(SUMMARY_FILE))
                if (path.parent / SCORES_FILE).is_file():  # scores of frozen features, which a study stores
                    scores = read_scores(path.parent).items()
                    summary |= {f"judged_{name}": models["trained"] for name, models in scores if "trained" in models}
        except (UserError, OSError) as error:
            summary, problem = {}, str(error)
        state = "stopped" if run.last.exists() else "begun"
        if run.finished or is_locked(run.path):
            state = "finished" if run.finished else "running"
        size, changed = _size_and_change_time(path)
        name = path.name if path == root else path.relative_to(root).as_posix()
        runs.append(ListedRun(path, name, state, verb, settings, summary, size, changed, "", problem))
    return sorted(runs, key=lambda run: (run.changed, run.name))


def _find_run_folders(path: Path, depth: int) -> Iterator[Path]:
    if (path / CONFIG_FILE).is_file():
        yield path  # runs in its subfolders, such as trials, are not listed
        return
    if depth == 0:
        return
    try:
        children = sorted(child for child in path.iterdir() if child.is_dir() and not child.is_symlink())
    except OSError:  # for example, no permission to read the folder
        return
    for child in children:
        if child.suffix != ASIDE_SUFFIX:
            yield from _find_run_folders(child, depth - 1)


def _size_and_change_time(path: Path) -> tuple[int, float]:
    """Return the size of a folder in bytes and the time of the last change in it."""
    size, changed = 0, path.stat().st_mtime
    for folder, _, files in os.walk(path):
        for file in files:
            try:
                status = os.lstat(os.path.join(folder, file))
            except OSError:  # the file was just removed
                continue
            size, changed = size + status.st_size, max(changed, status.st_mtime)
    return size, changed


def _first_value(values: Mapping[str, Any], *names: str) -> Any:
    return next((values[name] for name in names if values.get(name) is not None), None)


_COMPARISONS = {">": operator.gt, "<": operator.lt, ">=": operator.ge, "<=": operator.le}


def select_runs(runs: Sequence[ListedRun], conditions: Sequence[str]) -> list[ListedRun]:
    """Return the runs that meet all conditions, such as "method=drloc".

    A condition is NAME, one of = != > < >= <=, and VALUE. After = and !=, VALUE may contain wildcards. A missing value
    is equal to "none", and neither above nor below any number.
    """
    for condition in conditions:
        match = _CONDITION.fullmatch(condition.strip())
        if match is None:
            text = f"--where: expected conditions such as 'method=drloc' or 'test>0.9', got {condition[:80]!r}."
            raise UserError(text)
        name, sign, expected = match[1].replace("-", "_"), match[2], match[3].strip()
        require_known(name, runs, "--where")
        if sign in ("=", "!="):
            runs = [run for run in runs if _equals(run.value(name), expected) == (sign == "=")]
            continue
        try:
            bound = float(expected)
        except ValueError:
            text = f"--where: {condition[:80]!r} compares with {expected[:40]!r}, but > and < need a number."
            raise UserError(text) from None
        compare = _COMPARISONS[sign]
        runs = [run for run in runs if _is_number(value := run.value(name)) and compare(value, bound)]
    return list(runs)


def sort_runs(runs: Sequence[ListedRun], by: str) -> list[ListedRun]:
    """Return runs sorted by the value named `by`, descending if `by` starts with "-"; missing values come last."""
    name, reverse = by.removeprefix("-").replace("-", "_"), by.startswith("-")
    require_known(name, runs, "--sort")
    with_value = [run for run in runs if run.value(name) is not None]
    is_numeric = all(_is_number(run.value(name)) for run in with_value)
    with_value.sort(key=lambda run: run.value(name) if is_numeric else str(run.value(name)), reverse=reverse)
    return with_value + [run for run in runs if run.value(name) is None]


def require_known(name: str, runs: Sequence[ListedRun], flag: str) -> None:
    """Raise a UserError for a name that is neither a heading nor a setting or summary entry of any run."""
    known_names = {*HEADINGS, *(key for run in runs for key in (*run.settings, *run.summary))}
    if runs and name not in known_names:
        raise UserError(
            f"{flag}: no run has {name!r}{did_you_mean(name, known_names)}; expected a heading or a setting."
        )


def _equals(value: Any, expected: str) -> bool:
    if _is_number(value):
        try:
            return float(expected) == value
        except ValueError:
            return False
    text = " ".join(map(str, value)) if isinstance(value, list) else "none" if value is None else str(value)
    return fnmatch.fnmatchcase(text.lower(), expected.lower())


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
