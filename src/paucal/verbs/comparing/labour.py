"""Workers at a stored grid: started, watched, and told of."""

import time

import torch

from paucal.verbs.comparing.cells.cell import cells_of, state_of
from paucal.verbs.comparing.cells.claim import forgive
from paucal.verbs.comparing.cells.grid import Grid, read_grid
from paucal.verbs.comparing.cells.train import train_cell
from paucal.verbs.comparing.cells.work import PAUSE, work
from paucal.verbs.comparing.settings import GridSettings
from paucal.verbs.comparing.workers.clock import announcement
from paucal.verbs.comparing.workers.clusters import Ray, Slurm
from paucal.verbs.comparing.workers.teams import Processes, Team
from paucal.verbs.comparing.workers.teller import Teller
from paucal.verbs.run.voice import Voice
from paucal.wording import counted


def labour(grid: Grid, asked: GridSettings, again: str, voice: Voice) -> bool:
    """Let workers compute what is open of a stored grid.

    Args:
        grid: as it is stored.
        asked: who computes.
        again: the command that goes on with it.
        voice: prints and shows progress.

    Returns:
        Whether all is settled.

    Raises:
        KeyboardInterrupt: it was stopped, and has said how to go on.
    """
    if asked.retry:
        _forgive_all(grid, voice)
    settled = all(state_of(cell).settled for cell in cells_of(grid))
    if settled or not asked.jobs:
        return settled
    try:
        return _compute(grid, asked, again, voice)
    except KeyboardInterrupt:
        voice.say(f"stopped; go on with: {again}")
        raise


def _compute(grid: Grid, asked: GridSettings, again: str, voice: Voice) -> bool:
    teller = Teller(voice, asked.jobs)
    voice.say(announcement(teller.look(grid), asked.jobs))
    voice.say(f"everything goes to {grid.folder}; an interrupt loses nothing, and a second call helps: {again}")
    if asked.on == "here" and asked.jobs == 1:
        return work(grid.folder, lambda cell, threads: train_cell(cell, threads, voice), teller.look)
    while True:
        team = _team(grid, asked)
        voice.say(f"started {team.describe()}")
        _watch(grid, team, teller)
        if all(state_of(cell).settled for cell in cells_of(read_grid(grid.folder))):
            return True
        if not team.lost:
            return False
        voice.say(f"note: {counted(team.lost, 'worker')} ended without a word; others take over")


def _team(grid: Grid, asked: GridSettings) -> Team:
    device = grid.shared.get("device")
    if asked.on == "slurm":
        return Slurm(grid.folder, asked.jobs, asked.slurm or ())
    if asked.on == "ray":
        return Ray(grid.folder, asked.jobs, grid.threads, device)
    return Processes(grid.folder, asked.jobs, grid.threads, device or ("cuda" if torch.cuda.is_available() else None))


def _watch(grid: Grid, team: Team, teller: Teller) -> None:
    try:
        while team.alive():
            time.sleep(PAUSE / 2)
            teller.look(read_grid(grid.folder), busy=True)
    except BaseException:
        team.stop()
        raise
    teller.look(read_grid(grid.folder))


def _forgive_all(grid: Grid, voice: Voice) -> None:
    failed = [cell for cell in cells_of(grid) if state_of(cell).name == "failed"]
    for cell in failed:
        forgive(cell)
    if failed:
        voice.say(f"trying {counted(len(failed), 'failed run')} again")
