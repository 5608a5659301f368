"""Before a grid starts: is every way to train sound, on which images, and how long will it take?"""

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
from paucal.runs.lock import RunLock
from paucal.runs.writable import try_folder
from paucal.settings.options import flag
from paucal.types import UserError
from paucal.verbs.comparing.arms import Arm, settings_of
from paucal.verbs.comparing.cells.cell import of_verb
from paucal.verbs.comparing.cells.grid import Grid, grown, is_grid, read_grid
from paucal.verbs.comparing.fingerprint import fingerprint
from paucal.verbs.comparing.settings import GridSettings
from paucal.verbs.comparing.workers.clock import seconds_of_run
from paucal.verbs.comparing.workers.clusters import slurm_options
from paucal.verbs.run.images import find_images
from paucal.verbs.run.outputs import DEFAULT, refuse_inside_images
from paucal.verbs.run.start_weights import NONE, plain_init
from paucal.verbs.run.voice import Voice
from paucal.verbs.training.job import TrainingJob

SEEDS = (0, 1, 2)
PATIENCE = 30.0  # seconds to wait for another call that lets the same grid grow


def settle_grid(
    asked: GridSettings,
    arms: Sequence[Arm],
    shared: Mapping[str, Any],
    command: str,
    voice: Voice,
    absent: Mapping[str, Any] | None = None,
    before: Callable[[Grid], object] | None = None,
) -> Grid:
    """Check every way to train, measure how long it takes, and store the grid, or let the one that is there grow.

    Args:
        asked: what is compared.
        arms: the ways to train.
        shared: settings of all runs, as given.
        command: that asks for it.
        voice: shows what takes long.
        absent: settings in the place of what is not there yet, such as the weights that a run begins with.
        before: called with the grid as it will be, when all is sound and before workers can see it.

    Raises:
        UserError: a setting does not do, the folder holds something else, or the images have changed.
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
    grid = new if old is None else grown(old, new)
    torch.set_num_threads(threads)
    known = {} if old is None else old.forecast
    found = _forecast(grid, [arm for arm in grid.arms if arm.name not in known], voice, absent or {})
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
        shared: settings of all runs.
        arm: any of them.

    Raises:
        UserError: the images are not there.
    """
    return fingerprint(find_images(_settings(of_verb({**shared, **arm.settings}))))


def store_grid(folder: Path, new: Grid) -> Grid:
    """Write a grid down, on top of what another call may have written meanwhile."""
    folder.mkdir(parents=True, exist_ok=True)
    lock, end = RunLock(folder, "the comparison"), time.monotonic() + PATIENCE
    while True:
        try:
            lock.acquire()
            break
        except UserError:
            if time.monotonic() > end:
                raise
            time.sleep(0.2)
    try:
        grid = grown(read_grid(folder), new) if is_grid(folder) else new
        grid.write()
        return grid
    finally:
        lock.release()


def _forecast(grid: Grid, arms: Sequence[Arm], voice: Voice, absent: Mapping[str, Any]) -> dict[str, float]:
    """Put a run of every arm together, which finds mistakes before anything is trained, and time a few of its steps."""
    found: dict[str, float] = {}
    with voice.progress("measuring") as advance:
        for number, arm in enumerate(arms):
            values = {**absent, **of_verb(settings_of(grid.shared, arm)), "seed": grid.seeds[0]}
            values |= {"lr": grid.rates[0]} if grid.rates else {}
            job, given = TrainingJob(), dict.fromkeys(values, "given")
            try:
                settings, origin = job.check(_settings(values), given)
                made = job.assemble(job.pin(settings), origin, voice.progress)
            except UserError as problem:
                raise UserError(f"{arm.name}: {problem}") from problem
            if grid.rates and not len(made.prepared.part("val")):
                raise UserError("--lrs chooses by validation images, and there are none: give --val-fraction.")
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
        raise UserError(f"--output: {str(folder)!r} is not empty and holds no comparison: choose another folder.")
    return folder


def _usual() -> Iterator[Path]:
    """Yield the folders of comparisons that are given none, one after the other."""
    return (DEFAULT / f"compare-{number}" for number in itertools.count(1))


def _claimed() -> Path:
    """Make the first of these folders that is not there; another call may have made some since this one began."""
    for folder in _usual():
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        return folder
    raise AssertionError("there is no end of them")


def threads_of_worker(asked: GridSettings) -> int:
    """Return the threads of each worker: its share of this machine's, or what it asks of another one."""
    wanted = slurm_options(asked.slurm or ()).get("cpus_per_task") if asked.on == "slurm" else None
    return (
        wanted
        if isinstance(wanted, int)
        else max(1, min(torch.get_num_threads(), usable_cores()) // max(1, asked.jobs))
    )


def _pinned(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings that find the same files from any folder; only those that are given."""
    own = of_verb(values)
    made = TrainingJob().pin(plain_init(_settings(own)))
    found = {**values, **{name: getattr(made, name) for name in own}}
    if values.get("init") == NONE:
        found["init"] = NONE
    return {**found, **({} if made.data_root is None else {"data_root": made.data_root})}


def _settings(values: Mapping[str, Any]) -> TrainSettings:
    return TrainSettings(**values)


def _require_used(shared: Mapping[str, Any], arms: Sequence[Arm]) -> None:
    used = {name for arm in arms for name in settings_of(shared, arm)}
    if idle := sorted(set(shared) - used):
        raise UserError(f"{flag(idle[0])} has no effect on any of {', '.join(arm.name for arm in arms)}: leave it out.")
