"""Preparation of a grid: check every arm, identify the images, and measure how long the runs will take."""

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from paucal.cores import usable_cores
from paucal.methods.training_settings import TrainSettings
from paucal.reading import named_path
from paucal.runner.console import Console
from paucal.runner.images import find_images
from paucal.runner.outputs import DEFAULT, refuse_inside_images
from paucal.runner.starts import NONE, plain_init
from paucal.runs.files import try_folder
from paucal.runs.lock import RunLock
from paucal.settings.options import flag
from paucal.tasks.classification.job import TrainingJob
from paucal.types import UserError
from paucal.verbs.compare.arms import Arm, settings_of
from paucal.verbs.compare.cells.cell import of_verb
from paucal.verbs.compare.cells.grid import Grid, is_grid, merge_grids, read_grid
from paucal.verbs.compare.fingerprint import fingerprint
from paucal.verbs.compare.settings import GridSettings
from paucal.verbs.compare.workers.clock import seconds_of_run
from paucal.verbs.compare.workers.clusters import slurm_options

SEEDS = (0, 1, 2)
LOCK_TIMEOUT = 30.0  # seconds to wait for another call that extends the same grid


def prepare_grid(
    asked: GridSettings,
    arms: Sequence[Arm],
    shared: Mapping[str, Any],
    command: str,
    console: Console,
    absent: Mapping[str, Any] | None = None,
    before: Callable[[Grid], object] | None = None,
) -> Grid:
    """Check every arm, measure how long its runs take, and store the grid or extend the stored one.

    Args:
        asked: Settings of the grid.
        arms: Ways to train.
        shared: Settings of all runs, as given.
        command: Command to store with the grid.
        console: Console for progress.
        absent: Settings that replace what does not exist yet, such as the weights that a run starts from.
        before: Called with the new grid after all checks, before workers can see it.

    Raises:
        UserError: A setting is invalid, the folder holds something else, or the images have changed.
    """
    folder = _folder(asked, shared)
    old = read_grid(folder) if is_grid(folder) else None
    seeds = tuple(dict.fromkeys(asked.seeds or SEEDS))
    pinned = [replace(arm, settings=_pinned(arm.settings)) for arm in arms]
    shared = _pinned(shared)
    _require_used(shared, pinned)
    digest = fingerprint_of(shared, pinned[0])
    threads = old.threads if old is not None else threads_of_worker(asked)
    rates = tuple(dict.fromkeys(asked.lrs or ()))
    new = Grid(folder, digest, shared, tuple(pinned), seeds, rates, threads, {}, (command,))
    grid = new if old is None else merge_grids(old, new)
    torch.set_num_threads(threads)
    known = {} if old is None else old.forecast
    found = _forecast(grid, [arm for arm in grid.arms if arm.name not in known], console, absent or {})
    forecast = {**known, **found}
    if before is not None:
        before(grid)
        torch.set_num_threads(threads)
    if asked.output is None:
        folder = _claimed()
    return store_grid(folder, replace(new, folder=folder, forecast=forecast))


def fingerprint_of(shared: Mapping[str, Any], arm: Arm) -> str:
    """Return the digest of the images that runs of `paucal train` read.

    Args:
        shared: Settings of all runs.
        arm: Any arm of the grid.

    Raises:
        UserError: The images cannot be opened.
    """
    return fingerprint(find_images(_settings(of_verb({**shared, **arm.settings}))))


def store_grid(folder: Path, new: Grid) -> Grid:
    """Store a grid, merged with what another call may have stored meanwhile."""
    folder.mkdir(parents=True, exist_ok=True)
    lock, end = RunLock(folder, "the comparison"), time.monotonic() + LOCK_TIMEOUT
    while True:
        try:
            lock.acquire()
            break
        except UserError:
            if time.monotonic() > end:
                raise
            time.sleep(0.2)
    try:
        grid = merge_grids(read_grid(folder), new) if is_grid(folder) else new
        grid.write()
        return grid
    finally:
        lock.release()


def _forecast(grid: Grid, arms: Sequence[Arm], console: Console, absent: Mapping[str, Any]) -> dict[str, float]:
    """Assemble a run of every arm, which finds errors before anything is trained, and time a few of its steps."""
    found: dict[str, float] = {}
    with console.progress("measuring") as advance:
        for number, arm in enumerate(arms):
            values = {**absent, **of_verb(settings_of(grid.shared, arm)), "seed": grid.seeds[0]}
            values |= {"lr": grid.rates[0]} if grid.rates else {}
            job, given = TrainingJob(), dict.fromkeys(values, "given")
            try:
                settings, origin = job.check(_settings(values), given)
                made = job.assemble(job.pin(settings), origin, console.progress)
            except UserError as problem:
                raise UserError(f"{arm.name}: {problem}") from problem
            if grid.rates and not len(made.data.part("val")):
                raise UserError("--lrs needs validation images, and there are none: give --val-fraction.")
            found[arm.name] = round(seconds_of_run(made), 2)
            advance(number + 1, len(arms))
    return found


def _folder(asked: GridSettings, shared: Mapping[str, Any]) -> Path:
    if asked.output is None:
        folder = next(folder for folder in _usual() if not folder.exists())
    else:
        folder = named_path(asked.output)
    refuse_inside_images(folder, {"DATA": shared.get("data")}, shared.get("data_root"))
    try_folder(folder)
    if not is_grid(folder) and folder.exists() and any(folder.iterdir()):
        raise UserError(f"--output: {str(folder)!r} is not empty and is not a comparison: choose another folder.")
    return folder


def _usual() -> Iterator[Path]:
    """Yield the default folders of comparisons in order."""
    return (DEFAULT / f"compare-{number}" for number in itertools.count(1))


def _claimed() -> Path:
    """Create the first default folder that does not exist; another call may have created some meanwhile."""
    for folder in _usual():
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        return folder
    raise AssertionError("there is no end of them")


def threads_of_worker(asked: GridSettings) -> int:
    """Return the threads of each worker: its share of this machine, or what it requests from SLURM."""
    wanted = slurm_options(asked.slurm or ()).get("cpus_per_task") if asked.on == "slurm" else None
    return (
        wanted
        if isinstance(wanted, int)
        else max(1, min(torch.get_num_threads(), usable_cores()) // max(1, asked.jobs))
    )


def _pinned(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the given settings with absolute paths."""
    own = of_verb(values)
    settings = TrainingJob().pin(plain_init(_settings(own)))
    pinned = {**values, **{name: getattr(settings, name) for name in own}}
    if values.get("init") == NONE:
        pinned["init"] = NONE
    return {**pinned, **({} if settings.data_root is None else {"data_root": settings.data_root})}


def _settings(values: Mapping[str, Any]) -> TrainSettings:
    return TrainSettings(**values)


def _require_used(shared: Mapping[str, Any], arms: Sequence[Arm]) -> None:
    used = {name for arm in arms for name in settings_of(shared, arm)}
    if idle := sorted(set(shared) - used):
        raise UserError(f"{flag(idle[0])} has no effect on any of {', '.join(arm.name for arm in arms)}: leave it out.")
