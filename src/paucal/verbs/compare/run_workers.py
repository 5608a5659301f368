"""Start the workers of a stored grid, and report their progress."""

import time

import torch

from paucal.runner.console import Console
from paucal.verbs.compare.cells.cell import cells_of, state_of
from paucal.verbs.compare.cells.claim import clear_failure
from paucal.verbs.compare.cells.grid import Grid, read_grid
from paucal.verbs.compare.cells.train import train_cell
from paucal.verbs.compare.cells.work import PAUSE, work
from paucal.verbs.compare.settings import GridSettings
from paucal.verbs.compare.workers.clock import describe_work
from paucal.verbs.compare.workers.clusters import Ray, Slurm
from paucal.verbs.compare.workers.progress_reporter import ProgressReporter
from paucal.verbs.compare.workers.teams import Processes, Team
from paucal.wording import counted


def run_workers(grid: Grid, asked: GridSettings, again: str, console: Console) -> bool:
    """Let workers compute the open cells of a stored grid.

    Args:
        grid: Stored grid.
        asked: Number and kind of the workers.
        again: Command that resumes the grid.
        console: Console for messages and progress.

    Returns:
        Whether all cells are settled.

    Raises:
        KeyboardInterrupt: It was stopped, and has printed how to resume.
    """
    if asked.retry:
        _clear_failures(grid, console)
    settled = all(state_of(cell).settled for cell in cells_of(grid))
    if settled or not asked.jobs:
        return settled
    try:
        return _compute(grid, asked, again, console)
    except KeyboardInterrupt:
        console.say(f"stopped; resume with: {again}")
        raise


def _compute(grid: Grid, asked: GridSettings, again: str, console: Console) -> bool:
    reporter = ProgressReporter(console, asked.jobs)
    console.say(describe_work(reporter.look(grid), asked.jobs))
    console.say(f"results go to {grid.folder}; an interrupt loses nothing, and a second call adds workers: {again}")
    if asked.on == "here" and asked.jobs == 1:
        return work(grid.folder, lambda cell, threads: train_cell(cell, threads, console), reporter.look)
    while True:
        team = _team(grid, asked)
        console.say(f"started {team.describe()}")
        _watch(grid, team, reporter)
        if all(state_of(cell).settled for cell in cells_of(read_grid(grid.folder))):
            return True
        if not team.lost:
            return False
        console.say(f"note: {counted(team.lost, 'worker')} crashed; new ones take over")


def _team(grid: Grid, asked: GridSettings) -> Team:
    device = grid.shared.get("device")
    if asked.on == "slurm":
        return Slurm(grid.folder, asked.jobs, asked.slurm or ())
    if asked.on == "ray":
        return Ray(grid.folder, asked.jobs, grid.threads, device)
    return Processes(grid.folder, asked.jobs, grid.threads, device or ("cuda" if torch.cuda.is_available() else None))


def _watch(grid: Grid, team: Team, reporter: ProgressReporter) -> None:
    try:
        while team.alive():
            time.sleep(PAUSE / 2)
            reporter.look(read_grid(grid.folder), busy=True)
    except BaseException:
        team.stop()
        raise
    reporter.look(read_grid(grid.folder))


def _clear_failures(grid: Grid, console: Console) -> None:
    failed = [cell for cell in cells_of(grid) if state_of(cell).name == "failed"]
    for cell in failed:
        clear_failure(cell)
    if failed:
        console.say(f"trying {counted(len(failed), 'failed run')} again")
