"""`paucal.list_runs`: list runs with their scores, and name runs that can be deleted; no run is deleted."""

import json
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.measure import Measurement
from rich.table import Table

from paucal.runner.console import Console
from paucal.runner.writable import FORMATS, resolve_table
from paucal.runs.folder import PUBLISHED_WEIGHTS, RUNS_FOLDER, is_grid_folder
from paucal.settings.values import settings_from_keywords, with_settings_signature
from paucal.types import UserError
from paucal.verbs.runs.rows import ListedRun, require_known, select_runs, sort_runs
from paucal.verbs.runs.rows import list_runs as runs_below
from paucal.verbs.runs.settings import RunsSettings
from paucal.wording import counted, format_duration, percent
from paucal.writing import csv_text, write_text

DEFAULT_COLUMNS = ("state", "method", "model", "data", "seed", "epochs", "val", "test", "time", "size", "changed")
MAX_TABLE_WIDTH = 10_000  # in characters; more than any table needs, so that its full width can be measured
# Columns that are left out one by one, in this order, while the table is too wide for the terminal.
OPTIONAL_COLUMNS = ("changed", "size", "time", "seed", "epochs", "method", "data")
# Keys of mean absolute errors in the summary of a regression run, by column.
ERROR_KEYS = {"val": "cross_validated_mae", "test": "test_mae"}
NUMBER_COLUMNS = ("val", "test", "size", "seed", "epochs")  # right-aligned columns
ABANDONED_RUN_SECONDS = 30 * 86400.0  # a run stopped for longer than this will probably not be resumed
RECENT_CHANGE_SECONDS = 600.0  # a run changed within this time may be running on another machine
# Settings without effect on the model.
_NEUTRAL_SETTINGS = ("output", "overwrite", "time_limit", "hang_after", "workers", "device")


@with_settings_signature(RunsSettings)
def list_runs(folder: str | os.PathLike[str] = RUNS_FOLDER, **settings: Any) -> list[ListedRun]:
    """Return the runs in a folder and its subfolders with settings, state and scores; the same as `paucal runs`.

    Args:
        folder: Folder that contains runs, directly or in subfolders, such as a comparison.
        **settings: Any field of `paucal.verbs.runs.settings.RunsSettings`.

    Raises:
        UserError: The folder does not exist, or a condition is invalid.
        TypeError: A setting does not exist.

    Example:
        >>> best = paucal.list_runs(where=["method=drloc"], sort="-test")[0]  # doctest: +SKIP
        >>> best.value("test"), best.path  # doctest: +SKIP
        (0.91, PosixPath('runs/7'))
    """
    return list_selected_runs(
        Path(os.fspath(folder)), settings_from_keywords(RunsSettings, settings, "paucal.list_runs", "runs")
    )


def list_selected_runs(folder: Path, settings: RunsSettings) -> list[ListedRun]:
    """Return the runs that the settings select, and write the list to the file `--output` if it is given."""
    path = None if settings.output is None else resolve_table(settings.output)[0]
    if path is not None and path.suffix.lower() not in FORMATS:
        raise UserError(f"--output: {settings.output!r} must end in .csv or .json: give another name.")
    all_runs = with_deletion_reasons(runs_below(folder))
    runs = [run for run in all_runs if run.deletable] if settings.deletable else all_runs
    if settings.where is not None:
        runs = select_runs(runs, settings.where)
    if settings.sort is not None:
        runs = sort_runs(runs, settings.sort)
    for name in settings.added_columns:
        require_known(name, all_runs, "--columns")
    if path is not None:
        names = list(dict.fromkeys(["run", *DEFAULT_COLUMNS, *settings.added_columns, "deletable"]))
        rows = [{name: run.value(name) for name in names} for run in runs]
        if path.suffix.lower() == ".json":
            write_text(path, json.dumps(rows, indent=1, ensure_ascii=False, default=str) + "\n")
        else:
            write_text(path, csv_text(names, *(row.values() for row in rows)))
    return runs


def show(runs: Sequence[ListedRun], folder: Path, settings: RunsSettings, console: Console) -> None:
    """Show runs as a table, followed by the runs that can be deleted."""
    if not runs:
        console.say(f"no matching runs below {folder}")
        return
    added_columns = settings.added_columns
    varying_columns = [
        name for name in DEFAULT_COLUMNS if name in ("state", "test") or len({str(run.value(name)) for run in runs}) > 1
    ]
    names = list(dict.fromkeys([*(varying_columns if len(runs) > 1 else DEFAULT_COLUMNS), *added_columns]))
    optional_columns = [name for name in OPTIONAL_COLUMNS if name not in added_columns]
    table, left_out = _fitting_table(runs, names, optional_columns, console)
    console.show(table)
    if left_out:
        console.say(
            f"columns left out: {', '.join(left_out)}; to see these, widen the terminal, or give --columns or --output"
        )
    if shared_columns := [name for name in DEFAULT_COLUMNS if name not in names and runs[0].value(name) is not None]:
        values = ", ".join(f"{name} {_format_value(runs[0], name)}" for name in shared_columns)
        console.say(f"the same for all: {values}")
    for run in runs:
        if run.problem:
            console.say(f"{run.name} cannot be read: {run.problem}")
    if deletable := [run for run in runs if run.deletable]:
        size = _format_size(sum(run.size for run in deletable))
        console.say(f"{counted(len(deletable), 'run')} can be deleted, {size} in all (paucal does not delete runs):")
        for run in deletable:
            console.say(f"  {run.path}: {run.deletable}")


def _fitting_table(
    runs: Sequence[ListedRun], names: Sequence[str], optional: Sequence[str], console: Console
) -> tuple[Table, list[str]]:
    """Return a table that fits the terminal, and the names of the columns in `optional` that were left out."""
    left_out: list[str] = []
    unbounded_options = console.terminal.options.update(width=MAX_TABLE_WIDTH)
    while True:
        table, shown = Table(box=None, padding=(0, 2, 0, 0)), [name for name in names if name not in left_out]
        for name in ("run", *shown):
            table.add_column(name, justify="right" if name in NUMBER_COLUMNS else "left", no_wrap=True)
        for run in runs:
            table.add_row(run.name, *(_format_value(run, name) for name in shown))
        is_too_wide = Measurement.get(console.terminal, unbounded_options, table).maximum > console.terminal.width
        dropped = next((name for name in optional if name in shown), None)
        if not is_too_wide or dropped is None:
            return table, left_out
        left_out.append(dropped)


def _format_value(run: ListedRun, name: str) -> str:
    value = run.value(name)
    # `run.value` returns no mean absolute errors (MAE), since these cannot be sorted together with accuracies.
    if value is None and ERROR_KEYS.get(name) in run.summary:
        return f"MAE {run.summary[ERROR_KEYS[name]]:.3g}"
    if value is None:
        return "-"
    if name in ("val", "test") and isinstance(value, int | float):
        return percent(value)
    if name == "time" and isinstance(value, int | float):
        return format_duration(value)
    if name == "size":
        return _format_size(value)
    if name == "changed":
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(value))
    if name == "data":
        return Path(str(value)).name or str(value)
    if isinstance(value, float):
        return f"{value:g}"
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _format_size(n_bytes: float) -> str:
    return f"{n_bytes / 2**20:.0f} MB" if n_bytes < 10 * 2**30 else f"{n_bytes / 2**30:.1f} GB"


def with_deletion_reasons(runs: Sequence[ListedRun], now: float | None = None) -> list[ListedRun]:
    """Return the runs with `deletable` filled in; a run that another run needs is not deletable."""
    now = time.time() if now is None else now
    # Folders that other runs name in their settings, such as initial weights and teachers.
    named_paths: set[Path] = set()
    for name, value in (item for run in runs for item in run.settings.items()):
        if name not in _NEUTRAL_SETTINGS and isinstance(value, str) and value not in PUBLISHED_WEIGHTS and "/" in value:
            named_paths |= {Path(value), *Path(value).parents}
    finished = sorted((run for run in runs if run.state == "finished"), key=lambda run: run.changed)
    newest_by_key = {_settings_key(run): run for run in finished}
    return [
        replace(run, deletable=_deletion_reason(run, newest_by_key.get(_settings_key(run)), named_paths, now))
        for run in runs
    ]


def _deletion_reason(run: ListedRun, newest_equal: ListedRun | None, named_paths: set[Path], now: float) -> str:
    # A run of a comparison is kept, since the comparison would train it again.
    path = run.path.resolve()
    is_comparison_run = len(path.parents) > 2 and is_grid_folder(path.parents[2])
    if run.state == "running" or path in named_paths or is_comparison_run or run.problem:
        return ""
    if run.state == "begun":
        return "nothing was saved" if now - run.changed > RECENT_CHANGE_SECONDS else ""
    if newest_equal is not None and newest_equal.changed > run.changed:
        return f"same settings as {newest_equal.name}, which is newer"
    if run.state == "stopped" and now - run.changed > ABANDONED_RUN_SECONDS:
        return f"stopped {int((now - run.changed) / 86400)} days ago"
    return ""


def _settings_key(run: ListedRun) -> str:
    """Return a key that is equal for runs with the same command and settings, except for `_NEUTRAL_SETTINGS`."""
    compared = {name: value for name, value in run.settings.items() if name not in _NEUTRAL_SETTINGS}
    return repr([run.verb, sorted((str(name), repr(value)) for name, value in compared.items())])
