"""`paucal.study`: a table of a paper run again, published beside measured."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure

from paucal.evaluation.figures import save_figure
from paucal.report.studying import StudyPage, write_study
from paucal.runner.clock import duration, finish
from paucal.runner.console import Console, SilentConsole
from paucal.settings.options import check_ranges
from paucal.settings.values import from_python, shows_settings
from paucal.studies.call import Call
from paucal.studies.checks import PAGE, require_run, require_sense, study_folder
from paucal.studies.drawing import PICTURE, drawn_words, efficiency_figure, points_of
from paucal.studies.elsewhere import full_folder, measured_elsewhere
from paucal.studies.grids.frozen import settle_frozen
from paucal.studies.grids.pretraining import settle_pretraining
from paucal.studies.grids.starts import stored_starts, with_lesson
from paucal.studies.grids.training import settle_training
from paucal.studies.grids.transferring import settle_transferring
from paucal.studies.images import called, find_places
from paucal.studies.outcome import Line, find_lines
from paucal.studies.plan import Planned, find_scale, plan, plan_whole
from paucal.studies.registry import data_sets, find_study
from paucal.studies.scale import Scale
from paucal.studies.settings import StudySettings
from paucal.studies.study import Study
from paucal.studies.tables import RESULTS, shown_rows, terminal_table, write_results
from paucal.studies.timing import is_timed, time_models
from paucal.studies.words import caveats, cost_of, going_on, scale_words, shown_settings
from paucal.types import UserError
from paucal.verbs.compare.cells.cell import Cell, State, cells_of, state_of
from paucal.verbs.compare.cells.grid import Grid, is_grid, read_grid
from paucal.verbs.compare.outcome.evidence import find
from paucal.verbs.compare.outcome.writing import write_findings
from paucal.verbs.compare.run_workers import run_workers
from paucal.verbs.compare.settings import GridSettings
from paucal.verbs.compare.workers.clusters import require_team
from paucal.wording import counted

SETTLE = {
    "train": settle_training,
    "pretrain": settle_pretraining,
    "frozen": settle_frozen,
    "detect": settle_transferring,
    "segment": settle_transferring,
}


@dataclass(frozen=True)
class Work:
    """The grids of a study.

    Attributes:
        starts: whose runs the others begin with.
        grids: of the rows.
    """

    starts: Sequence[Grid]
    grids: Sequence[Grid]


@dataclass(frozen=True)
class Studied:
    """What a study has come to.

    Attributes:
        folder: that holds the runs, the table and the page.
        lines: every number of the table, published and measured.
        settled: whether every run is done or has failed.
        failed: why runs have failed, by their names.
    """

    folder: Path
    lines: Sequence[Line]
    settled: bool
    failed: Mapping[str, str]

    def __fspath__(self) -> str:
        return str(self.folder)


@shows_settings(StudySettings)
def study(name: str, **settings: Any) -> Studied:
    """Run a table or figure of one of the papers again; the same as `paucal study NAME`.

    Args:
        name: of the study, as `paucal study list` shows them.
        **settings: any field of `paucal.studies.settings.StudySettings`.

    Returns:
        Published and measured numbers.

    Raises:
        UserError: there is no such study, it is not run, or images or trained weights are missing; or it was stopped,
            and the same call goes on with it.
        TypeError: a setting does not exist.

    Example:
        >>> found = paucal.study("drloc-table-9", scale="tiny")  # doctest: +SKIP
        >>> [(line.row.name, line.published, line.measured) for line in found.lines]  # doctest: +SKIP
    """
    asked = from_python(StudySettings, settings, "paucal.study", "study")
    result = run_study(name, asked, f"paucal.study({name!r}, ...)", SilentConsole())
    if not result.settled and asked.jobs:
        raise UserError("the study was stopped; the same call goes on with it.")
    return result


def run_study(name: str, asked: StudySettings, command: str, console: Console) -> Studied:
    """Run a study, or go on with it; see `study`."""
    check_ranges(asked)
    found = find_study(name)
    if found.kind == "count":
        return _counted(found, asked, command, console)
    require_run(found)
    small = find_scale(found, asked.scale)
    require_sense(found, asked)
    runs = called(plan(found, asked.scale, data_sets(), asked.rows or (), asked.columns or ()), asked)
    places = find_places(asked, runs, data_sets())
    folder = study_folder(found, asked, places.by_name)
    require_team(asked.on, asked.slurm, 0 if folder.exists() else asked.jobs)
    seeds = asked.seeds or (found.seeds if small is None else small.seeds)
    console.say(scale_words(found, small, runs, len(seeds)))
    console.say(found.telling if small is not None else cost_of(found, runs, len(seeds), data_sets()))
    threads = torch.get_num_threads()
    try:
        if found.starts and small is not None:
            places = with_lesson(places, small, asked, folder)
        call = Call(found, runs, small, asked, places, folder, command, console)
        grids = SETTLE[found.kind](call)
        starts = stored_starts(folder) if small is not None else []
        return _computed(call, Work(starts, grids))
    finally:
        torch.set_num_threads(threads)


def _computed(call: Call, work: Work) -> Studied:
    """Let workers compute what is open, and say and write what has come of it."""
    found, runs, small, folder, command = call.study, call.runs, call.small, call.folder, call.command
    settled = _run_grids([*work.starts, *work.grids], call.asked, command, call.console)
    before = [read_grid(grid.folder) for grid in work.starts]
    stored = [read_grid(grid.folder) for grid in work.grids]
    whole = called(plan_whole(found, call.asked.scale, data_sets(), call.asked.columns or ()), call.asked)
    lines, findings = find_lines(found, runs, [*stored, *_others(whole, stored, folder)], whole)
    pages = [(f"curves and every run: {one.grid.folder.name}", write_findings(one)) for one in findings]
    learned = [find(grid) for grid in before if grid.verb == "train"]
    pages += [("what the rows begin with: curves and every run", write_findings(one)) for one in learned]
    states = {cell: state_of(cell) for grid in (*before, *stored) for cell in cells_of(grid)}
    pages += _reports(states)
    failed = {cell.name: state.error for cell, state in states.items() if state.name == "failed"}
    left = sum(not state.settled for state in states.values())
    warnings = [f"{name} failed: {error}" for name, error in failed.items()]
    warnings += [f"{counted(left, 'run')} of {len(states)} to come; go on with: {going_on(command)}"] if left else []
    rows, seeds = shown_rows(found, lines, _heading(small, stored)), max(len(grid.seeds) for grid in stored)
    words = caveats(found, small, seeds)
    write_results(folder, lines)
    page = StudyPage(
        title=f"{found.paper}: {found.title}",
        source=f"{found.source}, {found.where}",
        scale=scale_words(found, small, runs, seeds),
        warnings=warnings,
        rows=rows,
        caveats=words,
        settings=shown_settings(runs, before, stored),
        comparisons=[(words, os.path.relpath(path, folder)) for words, path in pages],
        command=command,
    )
    write_study(folder / PAGE, page)
    _print_findings(found, rows, [*warnings, *words], folder, call.console)
    return Studied(folder, lines, settled, failed)


def _reports(states: Mapping[Cell, State]) -> list[tuple[str, Path]]:
    """Return the pages of the runs that no comparison shows."""
    done = [cell for cell, state in states.items() if cell.verb != "train" and state.name == "done"]
    pages = [(f"report of {cell.name}", cell.run.path / "report.html") for cell in done]
    return [(words, page) for words, page in pages if page.is_file()]


def _run_grids(grids: Sequence[Grid], asked: StudySettings, command: str, console: Console) -> bool:
    """Let workers compute one grid after the other, and return whether all cells are settled.

    A later grid may start from the runs of an earlier one, so each grid waits for the one before it.
    """
    work = GridSettings(jobs=asked.jobs, on=asked.on, slurm=asked.slurm, retry=asked.retry)
    cells = {cell: grid for grid in grids for cell in cells_of(grid) if not state_of(cell).settled}
    seconds = sum(grid.forecast.get(cell.arm.name, 0.0) for cell, grid in cells.items()) / max(1, asked.jobs)
    if len(grids) > 1 and seconds:
        console.say(
            f"time: {counted(len(cells), 'run')} in all to compute, about {duration(seconds)}, until {finish(seconds)}"
        )
    settled = True
    for grid in grids:
        settled = run_workers(grid, work, command, console) and settled
        if asked.jobs and not settled:
            break
    return settled


def _others(whole: Sequence[Planned], stored: Sequence[Grid], folder: Path) -> list[Grid]:
    """Return the grids of earlier calls on images that none of the wanted runs reads."""
    known = {grid.folder.name for grid in stored}
    names = dict.fromkeys(run.data for run in whole if run.data not in known)
    return [read_grid(folder / name) for name in names if is_grid(folder / name)]


def _counted(found: Study, asked: StudySettings, command: str, console: Console) -> Studied:
    """Count parameters and multiply-adds, which takes seconds and is the same at every scale, or time models."""
    folder = study_folder(found, asked, {})
    folder.mkdir(parents=True, exist_ok=True)
    timed = time_models(found, asked, console) if is_timed(found) else None
    if timed is None:
        console.say(
            f"{found.name}: models are counted as published, which takes a few seconds each; nothing is trained"
        )
    lines, _ = find_lines(found, (), (), timed=timed, elsewhere=measured_elsewhere(found, folder))
    rows, words = shown_rows(found, lines), caveats(found, None)
    write_results(folder, lines)
    pictures = _drawn(found, lines, folder) if found.draws else []
    words = [*(caption for caption, _ in pictures), *words]
    title, source = f"{found.paper}: {found.title}", f"{found.source}, {found.where}"
    scale = "Counted, not trained." if timed is None else timed.words
    page = StudyPage(title, source, scale, (), rows, words, (), (), command, pictures)
    write_study(folder / PAGE, page)
    _print_findings(found, rows, words, folder, console)
    return Studied(folder, lines, True, {})


def _drawn(found: Study, lines: Sequence[Line], folder: Path) -> list[tuple[str, Figure]]:
    """Draw a study's picture into its folder, and return it with what its numbers are."""
    points = points_of(found, lines)
    names = dict.fromkeys(column.study for column in found.columns if column.study)
    caption = " ".join(drawn_words(found, points, {name: str(full_folder(name, folder)) for name in names}))
    figure = efficiency_figure(points)
    save_figure(folder / PICTURE, figure)
    return [(caption, figure)]


def _print_findings(
    found: Study, rows: Sequence[dict[str, str]], words: Sequence[str], folder: Path, console: Console
) -> None:
    console.show(terminal_table(found, rows))
    for line in words:
        console.say(line)
    console.say(f"results are in {folder}: {PAGE} (open it in a browser), {RESULTS}, and the runs")


def _heading(small: Scale | None, grids: Sequence[Grid]) -> str:
    """Return the heading of measured numbers: those of stand-ins do not measure the published models."""
    return "measured" if small is None else f"stand-ins on {grids[0].folder.name}"
