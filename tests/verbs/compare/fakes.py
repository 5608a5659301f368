"""Grids of cells that take no time, and workers for them that can be killed."""

import json
import os
import signal
import time
from dataclasses import replace
from pathlib import Path

from paucal.types import UserError
from paucal.verbs.compare._work import work
from paucal.verbs.compare.grid import Cell, Grid
from paucal.verbs.compare.settings import Arm


def arm(way: str, **settings) -> Arm:
    return Arm(way, None, None, {"method": way, **settings})


def make_grid(folder: Path, ways=("supervised", "drloc"), seeds=(0, 1), **changes) -> Grid:
    folder.mkdir(parents=True, exist_ok=True)
    grid = Grid(folder, "images", {"epochs": 3}, tuple(map(arm, ways)), tuple(seeds))
    grid = replace(grid, **changes)
    grid.write()
    return grid


def finish(cell: Cell, validation: float = 0.5) -> None:
    """Leave what a finished run leaves, as far as cells look at it."""
    cell.run.path.mkdir(parents=True, exist_ok=True)
    cell.run.write_json("summary.json", {"seconds": 1.0, "test_top1": 0.5, "kept_val_top1": validation})


def quick(cell: Cell, threads: int) -> bool:
    """Be done at once, and write down who was."""
    with (cell.folder.parent.parent / "done.log").open("a") as log:
        log.write(json.dumps([cell.folder.name, os.getpid()]) + "\n")
    time.sleep(0.02)
    finish(cell)
    return True


def suicidal(cell: Cell, threads: int) -> bool:
    os.kill(os.getpid(), signal.SIGKILL)
    return True


def broken(cell: Cell, threads: int) -> bool:
    if cell.arm.way == "drloc":
        raise UserError("the method is broken: mend it.")
    return quick(cell, threads)


def stopping(cell: Cell, threads: int) -> bool:
    """Save two states; be killed after the first, unless it is there already."""
    state = cell.run.last
    state.parent.mkdir(parents=True, exist_ok=True)
    known = int(state.read_text()) if state.exists() else 0
    state.write_text(str(known + 1))
    if known == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return quick(cell, threads)


KINDS = {"quick": quick, "suicidal": suicidal, "broken": broken, "stopping": stopping}


def worker(folder: str, kind: str) -> None:
    """What a process of a test does."""
    work(Path(folder), KINDS[kind], pause=0.02)


def log_of(folder: Path) -> list[tuple[str, int]]:
    return [tuple(json.loads(line)) for line in (folder / "done.log").read_text().splitlines()]
