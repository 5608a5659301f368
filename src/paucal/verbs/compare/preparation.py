"""Preparation of a grid: check every arm, compute the fingerprint of the images, and estimate the duration of runs."""

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from paucal.cores import count_usable_cores
from paucal.runner.console import Console
from paucal.runner.elsewhere.packages import slurm_options
from paucal.runner.images import with_absolute_data_paths
from paucal.runner.initial_weights import NONE, without_none_init
from paucal.runner.outputs import output_path, refuse_inside_images
from paucal.runner.writable import check_folder_writable
from paucal.runs.folder import RUNS_FOLDER, is_grid_folder
from paucal.runs.lock import lock_folder
from paucal.settings.options import flag
from paucal.settings.shared import DataSettings
from paucal.tasks.table import job_of
from paucal.types import UserError
from paucal.verbs.compare.grid import EVAL, START, Grid, merge_grids, read_grid, verb_settings
from paucal.verbs.compare.jobs import GridImages, open_images, seconds_of_run
from paucal.verbs.compare.settings import Arm, GridSettings

SEEDS = (0, 1, 2)  # default seeds
LOCK_TIMEOUT = 30.0  # seconds to wait while another call extends the same grid


def prepare_grid(
    grid_settings: GridSettings,
    arms: Sequence[Arm],
    shared: Mapping[str, Any],
    command: str,
    console: Console,
    images: GridImages | None = None,
    estimate_seconds: Callable[[Mapping[str, Any]], float] | None = None,
    before: Callable[[Grid], object] | None = None,
) -> Grid:
    """Check every arm, measure how long its runs take, and store the grid or extend the stored grid.

    By default, the images of `paucal train` are opened, and a few steps of each run are timed; `estimate_seconds` is a
    function from the settings of a run to its expected seconds. `before` is called with the new grid after all checks,
    before workers can see the grid.
    """
    folder, verb = _comparison_folder(grid_settings, shared), "train" if images is None else images.verb
    stored_grid = read_grid(folder) if is_grid_folder(folder) else None
    arms = tuple(
        replace(arm, settings=_make_paths_absolute(verb, arm.settings, shared.get("data_root"))) for arm in arms
    )
    shared = _make_paths_absolute(verb, shared)
    threads = stored_grid.threads if stored_grid is not None else _threads_of_worker(grid_settings)
    seeds, rates = tuple(dict.fromkeys(grid_settings.seeds or SEEDS)), tuple(dict.fromkeys(grid_settings.lrs or ()))
    new_grid = Grid(folder, "", shared, arms, seeds, rates, threads, {}, (command,), verb)
    if unused := sorted(set(shared).difference(*map(new_grid.settings_of, arms))):
        names = ", ".join(arm.name for arm in arms)
        raise UserError(f"{flag(unused[0])} has no effect on any of the arms ({names}): remove {flag(unused[0])}.")
    if images is None:
        images = open_images(verb, {**shared, **arms[0].settings}, console)
        if images.images.multi_hot is not None:
            raise UserError(
                "paucal compare supports only one label per image, but these images have several labels each: train "
                "each arm with paucal train, and compare the scores with paucal runs."
            )
    new_grid = replace(new_grid, fingerprint=images.fingerprint())
    grid = new_grid if stored_grid is None else merge_grids(stored_grid, new_grid)
    torch.set_num_threads(threads)
    forecast = _forecast_seconds(grid, {} if stored_grid is None else stored_grid.forecast, estimate_seconds, console)
    if before is not None:
        before(grid)
        torch.set_num_threads(threads)
    if grid_settings.output is None:
        for folder in _default_folders():  # safe if other calls create folders too
            with suppress(FileExistsError):
                folder.mkdir(parents=True)
                break
    return _store_grid(replace(new_grid, folder=folder, forecast=forecast))


def _comparison_folder(grid_settings: GridSettings, shared: Mapping[str, Any]) -> Path:
    default = next(folder for folder in _default_folders() if not folder.exists())
    folder = output_path(grid_settings.output, default)
    refuse_inside_images(folder, {"DATA": shared.get("data")}, shared.get("data_root"))
    check_folder_writable(folder)
    if not is_grid_folder(folder) and folder.exists() and any(folder.iterdir()):
        raise UserError(f"--output: {str(folder)!r} is not empty and is not a comparison: choose another folder.")
    return folder


def _default_folders() -> Iterator[Path]:
    return (RUNS_FOLDER / f"compare-{number}" for number in itertools.count(1))


def _make_paths_absolute(verb: str, values: Mapping[str, Any], data_root: str | None = None) -> dict[str, Any]:
    """Return settings with absolute paths: those of an arm, with the shared `data_root`, or the shared settings."""
    verb_values = verb_settings(values)
    root = {} if data_root is None else {"data_root": data_root}
    if verb == EVAL:
        verb_values = {name: value for name, value in verb_values.items() if name in ("data", "data_root")}
        settings: Any = with_absolute_data_paths(DataSettings(**verb_values))
    else:
        job = job_of(verb)
        settings = job.with_absolute_paths(without_none_init(job.settings_type(**{**root, **verb_values})))
    absolute = {**values, **{name: getattr(settings, name) for name in verb_values}}
    if values.get("init") == NONE:
        absolute["init"] = NONE
    # `data` may be the name of a published set, which is found below the data root.
    has_root = "data" in verb_values and settings.data_root is not None
    return {**absolute, "data_root": settings.data_root} if has_root else absolute


def _threads_of_worker(grid_settings: GridSettings) -> int:
    """Return the number of threads per worker: SLURM's cpus_per_task, or this machine's cores divided by workers."""
    requested = slurm_options(grid_settings.slurm).get("cpus_per_task") if grid_settings.on == "slurm" else None
    if isinstance(requested, int):
        return requested
    return max(1, min(torch.get_num_threads(), count_usable_cores()) // max(1, grid_settings.jobs))


def _forecast_seconds(
    grid: Grid,
    stored_forecast: Mapping[str, float],
    estimate_seconds: Callable[[Mapping[str, Any]], float] | None,
    console: Console,
) -> dict[str, float]:
    """Return the expected duration of a run in seconds, by arm name; invalid settings raise a UserError."""
    arms = [arm for arm in grid.arms if arm.name not in stored_forecast]
    forecast = dict(stored_forecast)
    with console.progress("measuring") as advance:
        for number, arm in enumerate(arms):
            settings = grid.settings_of(arm)
            # The run with the initial weights may not exist yet; training from random weights takes the same time.
            init = {"init": NONE} if START in settings else {}
            values = {**init, **verb_settings(settings), "seed": grid.seeds[0]}
            values |= {"lr": grid.rates[0]} if grid.rates else {}
            try:
                seconds = estimate_seconds(values) if estimate_seconds else _time_run(grid, values, console)
            except UserError as problem:
                raise UserError(f"{arm.name}: {problem}") from problem
            forecast[arm.name] = round(seconds, 2)
            advance(number + 1, len(arms))
    return forecast


def _time_run(grid: Grid, values: Mapping[str, Any], console: Console) -> float:
    job = job_of(grid.verb)
    settings, origins = job.check(job.settings_type(**values), dict.fromkeys(values, "given"))
    setup = job.assemble(job.with_absolute_paths(settings), origins, console.progress)
    if grid.rates and not len(setup.data.split_indices("val")):
        raise UserError("--lrs needs validation images, but the validation split is empty: give --val-fraction.")
    return seconds_of_run(job, setup)


def _store_grid(new_grid: Grid) -> Grid:
    """Store a grid, merged with the arms and seeds that another call may have stored in the meantime."""
    folder, deadline = new_grid.folder, time.monotonic() + LOCK_TIMEOUT
    with ExitStack() as lock:
        while True:
            try:
                lock.enter_context(lock_folder(folder, "the comparison"))
                break
            except UserError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)
        grid = merge_grids(read_grid(folder), new_grid) if is_grid_folder(folder) else new_grid
        grid.write()
        return grid
