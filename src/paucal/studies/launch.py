"""`paucal.study`: reproduce a table of a paper, and show published and measured numbers side by side."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from paucal.cores import threads_restored
from paucal.evaluation.plots import save_figure
from paucal.report.page import write_page
from paucal.report.pictures import data_uri
from paucal.runner.clock import end_time_text
from paucal.runner.console import Console, SilentConsole
from paucal.runs.folder import is_grid_folder
from paucal.settings.options import check_ranges
from paucal.settings.values import settings_from_keywords, with_settings_signature
from paucal.studies import tables
from paucal.studies.call import PAGE_FILE, Call, find_locations, require_runnable, study_folder, with_given_images
from paucal.studies.descriptions import caveats, describe_scale, format_hours, gpu_hours, without_jobs_0
from paucal.studies.grids import START_COMMANDS, prepare_grids, shown_settings, with_start_images
from paucal.studies.numbers import RESULTS_FILE, TableNumber, collect_numbers, full_folder, measured_in_other_studies
from paucal.studies.plan import find_scale, plan_all_runs, plan_runs
from paucal.studies.reading import find_study
from paucal.studies.settings import StudySettings
from paucal.studies.study import TIMED_METRICS, Study
from paucal.studies.timing import time_models
from paucal.types import UserError
from paucal.verbs.compare.findings import read_grid_results
from paucal.verbs.compare.grid import STARTS, Grid, cells_of, read_grid, state_of
from paucal.verbs.compare.report import write_report
from paucal.verbs.compare.running import require_workers, run_workers
from paucal.wording import counted, format_duration


@dataclass(frozen=True)
class StudyResult:
    """The result of a study.

    Attributes:
        folder: Folder of the runs, the table and the page.
        lines: Published and measured numbers, with one line for each number of the table.
        settled: Whether every run is done or has failed.
        failed: Error messages of failed runs, by the runs' names.
    """

    folder: Path
    lines: Sequence[TableNumber]
    settled: bool
    failed: Mapping[str, str]

    def __fspath__(self) -> str:
        return str(self.folder)


@with_settings_signature(StudySettings)
def study(name: str, **settings: Any) -> StudyResult:
    """Reproduce a table or figure of one of the papers, like `paucal study NAME` on the command line.

    Args:
        name: Name of the study, as `paucal study list` shows it.
        **settings: Any field of `paucal.studies.settings.StudySettings`.

    Returns:
        Published and measured numbers.

    Raises:
        UserError: There is no such study, the study cannot be run, images or initial weights are missing, or the study
            was stopped (the same call resumes the study).
        TypeError: A setting does not exist.

    Example:
        >>> result = paucal.study("drloc-table-9", scale="tiny")  # doctest: +SKIP
        >>> [(line.row.name, line.published, line.measured) for line in result.lines]  # doctest: +SKIP
    """
    typed_settings = settings_from_keywords(StudySettings, settings, "paucal.study", "study")
    result = run_study(name, typed_settings, f"paucal.study({name!r}, ...)", SilentConsole())
    if not result.settled and typed_settings.jobs:
        raise UserError("the study was stopped: run the same call again to resume it.")
    return result


@threads_restored()
def run_study(name: str, settings: StudySettings, command: str, console: Console) -> StudyResult:
    """Run or resume a study; see `study`."""
    check_ranges(settings)
    study = find_study(name)
    if study.kind == "count":
        return _count_or_time(study, settings, command, console)
    require_runnable(study, settings)
    small = find_scale(study, settings.scale)
    runs = with_given_images(plan_runs(study, settings.scale, settings.rows, settings.columns), settings)
    locations = find_locations(settings, runs)
    folder = study_folder(study, settings, locations.by_name)
    require_workers(settings.on, settings.slurm, 0 if folder.exists() else settings.jobs)
    call = Call(study, runs, small, settings, locations, folder, command, console)
    console.say(describe_scale(study, small, runs, len(call.seeds)))
    if small is None:
        hours = format_hours(gpu_hours(study, runs, len(call.seeds)))
        console.say(f"these runs take about {hours} GPU hours (estimated)")
    else:
        console.say(study.telling)
    if study.starts and small is not None:
        call = replace(call, locations=with_start_images(locations, small, settings, folder))
    grids = prepare_grids(call)
    # The grids of initial weights come before the grids of the runs that start from these weights.
    start_folders = [folder / STARTS / verb for verb in START_COMMANDS] if small is not None else []
    starts = [read_grid(start_folder) for start_folder in start_folders if is_grid_folder(start_folder)]
    all_settled = _compute_grids(call, [*starts, *grids])
    starts, grids = ([read_grid(grid.folder) for grid in part] for part in (starts, grids))
    return _write_results(call, starts, grids, all_settled)


def _compute_grids(call: Call, grids: Sequence[Grid]) -> bool:
    """Let workers compute one grid after the other, and return whether every run is done or has failed.

    Each grid waits for the previous one, whose runs may provide the initial weights of its runs.
    """
    workers, console = call.workers, call.console
    cells = {cell: grid for grid in grids for cell in cells_of(grid) if not state_of(cell).is_final}
    seconds = sum(grid.forecast.get(cell.arm.name, 0.0) for cell, grid in cells.items()) / max(1, workers.jobs)
    if len(grids) > 1 and seconds:
        console.say(
            f"time: {counted(len(cells), 'run')} in all to compute, about {format_duration(seconds)}, "
            f"until {end_time_text(seconds)}"
        )
    all_settled = True
    for grid in grids:
        all_settled = run_workers(grid, workers, call.command, console) and all_settled
        if workers.jobs and not all_settled:
            break
    return all_settled


def _write_results(call: Call, starts: Sequence[Grid], grids: Sequence[Grid], all_settled: bool) -> StudyResult:
    study, runs, small, folder = call.study, call.runs, call.small, call.folder
    all_runs = with_given_images(plan_all_runs(study, call.settings.scale, call.settings.columns), call.settings)
    # Earlier calls may have stored grids of runs on other data sets.
    other_data = dict.fromkeys(run.data for run in all_runs if run.data not in {grid.folder.name for grid in grids})
    earlier_grids = [read_grid(folder / name) for name in other_data if is_grid_folder(folder / name)]
    lines, findings = collect_numbers(study, runs, [*grids, *earlier_grids], all_runs)
    pages = [(f"curves and all runs on {result.grid.folder.name}", write_report(result)) for result in findings]
    trained = [read_grid_results(grid) for grid in starts if grid.verb == "train"]
    pages += [("curves and runs of the initial weights", write_report(result)) for result in trained]
    states = {cell: state_of(cell) for grid in (*starts, *grids) for cell in cells_of(grid)}
    # Runs of commands other than `paucal train` are not in a comparison, but have their own reports.
    finished = [cell for cell, state in states.items() if cell.verb != "train" and state.name == "done"]
    reports = [(f"report of {cell.name}", cell.run.path / "report.html") for cell in finished]
    pages += [(words, page) for words, page in reports if page.is_file()]
    failed = {cell.name: state.error for cell, state in states.items() if state.name == "failed"}
    warnings = [f"{name} failed: {error}" for name, error in failed.items()]
    if left := sum(not state.is_final for state in states.values()):
        resume = without_jobs_0(call.command)
        warnings.append(f"{counted(left, 'run')} of {len(states)} left to compute; resume with: {resume}")
    # At a smaller scale, the heading says that the numbers are not those of the published models.
    heading = "measured" if small is None else f"stand-ins on {grids[0].folder.name}"
    seeds = max(len(grid.seeds) for grid in grids)
    content = {
        "scale": describe_scale(study, small, runs, seeds),
        "warnings": warnings,
        "rows": tables.shown_rows(lines, heading),
        "caveats": caveats(study, small, seeds),
        "settings": shown_settings(runs, starts, grids),
        "comparisons": [(words, os.path.relpath(path, folder)) for words, path in pages],
        "command": call.command,
        "pictures": (),
    }
    _write_and_print(study, content, lines, folder, call.console)
    return StudyResult(folder, lines, all_settled, failed)


def _count_or_time(study: Study, settings: StudySettings, command: str, console: Console) -> StudyResult:
    """Count the parameters and multiply-adds of a study's published models, or time them, and write the results."""
    folder = study_folder(study, settings, {})
    folder.mkdir(parents=True, exist_ok=True)
    timed = None
    if any(column.metric in TIMED_METRICS for column in study.columns):
        timed = time_models(study, settings, console)
    else:
        console.say(
            f"{study.name}: counting the parameters and multiply-adds of the published models, a few seconds each; "
            "nothing is trained"
        )
    lines, _ = collect_numbers(study, (), (), timed=timed, other_studies=measured_in_other_studies(study, folder))
    pictures: list[tuple[str, str]] = []
    if study.draws:
        points = tables.points_of(study, lines)
        folders = {column.study: str(full_folder(column.study, folder)) for column in study.columns if column.study}
        save_figure(folder / tables.FIGURE_FILE, tables.efficiency_figure(points))
        uri = data_uri((folder / tables.FIGURE_FILE).read_bytes())
        pictures = [(" ".join(tables.describe_sources(study, points, folders)), uri)]
    content = {
        "scale": "Counted, not trained." if timed is None else timed.words,
        "rows": tables.shown_rows(lines),
        "caveats": [*(caption for caption, _ in pictures), *caveats(study, None)],
        "command": command,
        "pictures": pictures,
        **dict.fromkeys(("warnings", "settings", "comparisons"), ()),
    }
    _write_and_print(study, content, lines, folder, console)
    return StudyResult(folder, lines, True, {})


def _write_and_print(
    study: Study, content: Mapping[str, Any], lines: Sequence[TableNumber], folder: Path, console: Console
) -> None:
    tables.write_results(folder, lines)
    title, source = f"{study.paper}: {study.title}", f"{study.source}, {study.where}"
    write_page(folder / PAGE_FILE, "studying.html", title=title, source=source, **content)
    console.show(tables.terminal_table(study, content["rows"]))
    for line in (*content["warnings"], *content["caveats"]):
        console.say(line)
    console.say(f"results are in {folder}: {PAGE_FILE} (open it in a browser), {RESULTS_FILE}, and the runs")
