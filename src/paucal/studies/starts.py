"""The initial weights of the rows of a study. In code, one set of initial weights is called a "start".

At full scale, initial weights are published weights or the weights of `--init`. At a smaller scale, the initial weights
are trained first, in separate grids of runs, and never on the test images of a row.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from paucal.runner.console import Console
from paucal.runs.grid_files import is_grid_folder
from paucal.studies.call import Call, DataLocations
from paucal.studies.plan import PlannedRun, initial_weights_settings, with_given_start
from paucal.studies.scenes import DRAWN_FOLDER, OTHER_DIGITS, SCENES, START_DIGITS, draw_data_sets
from paucal.studies.settings import StudySettings
from paucal.studies.study import Scale, Study
from paucal.types import UserError
from paucal.verbs.compare.grid import START, STARTS, Grid, read_grid
from paucal.verbs.compare.jobs import GridImages, open_images
from paucal.verbs.compare.preparation import prepare_grid
from paucal.verbs.compare.settings import Arm

START_COMMANDS = ("train", "pretrain")  # commands that train initial weights
# All images of a data set are used if they are at most this many times the number of images that a scale asks for.
MAX_SIZE_RATIO = 1.05


def with_starts(call: Call) -> Call:
    """Return a call whose runs start from the weights given with `--init`, or otherwise from published weights.

    The call is returned unchanged if its scale is a smaller scale, since the initial weights are then trained first, or
    if the rows of the study have no initial weights.
    """
    study, runs = call.study, call.runs
    if not study.starts or call.small is not None:
        return call
    init_of_start: dict[str, str] = {}
    for argument in call.settings.init:
        name, _, init = argument.partition("=")
        if name not in study.starts or not init:
            raise UserError(f"--init: expected NAME=RUN with NAME one of {', '.join(study.starts)}, got {argument!r}.")
        if name in init_of_start:
            raise UserError(f"--init: {name!r} is given twice: give it once.")
        init_of_start[name] = init
    _require_starts(study, runs, init_of_start)
    inits = [init_of_start.get(run.row.start) for run in runs]
    started = [with_given_start(study, run, init) if init else run for run, init in zip(runs, inits, strict=True)]
    return replace(call, runs=started)


def _require_starts(study: Study, runs: Sequence[PlannedRun], init_of_start: Mapping[str, str]) -> None:
    incomplete = [run for run in runs if run.row.start not in init_of_start and not study.starts[run.row.start].init]
    missing = list(dict.fromkeys(run.row.start for run in incomplete))
    if not missing:
        return
    rows = list(dict.fromkeys(run.row.name for run in incomplete))
    needed_starts = " and ".join(f"{name} ({study.starts[name].words})" for name in missing)
    flags = " ".join(f"{name}=RUN_OR_FILE" for name in missing)
    verb_text, pronoun = "needs" if len(rows) == 1 else "need", "it" if len(missing) == 1 else "them"
    has_others = any(run.row.name not in rows for run in runs)
    leave_text = f", or exclude the rows that need {pronoun} with --rows" if has_others else ""
    raise UserError(
        f"{', '.join(rows)} of {study.name} {verb_text} the initial weights {needed_starts}: give --init {flags}"
        f"{leave_text}."
    )


def with_start_images(locations: DataLocations, small: Scale, settings: StudySettings, folder: Path) -> DataLocations:
    """Return the locations, including the location of the images on which initial weights are trained.

    If the scale uses drawn scenes or digits and DATA is not given, the images are drawn into the study's folder.
    """
    start_training = small.start_training
    if start_training is None or not start_training.data:
        return locations
    if settings.data and settings.data[0] == start_training.data:
        raise UserError(
            f"--data: the initial weights are trained on {start_training.data} at --scale {settings.scale}, so the "
            "rows must be tested on other images: remove --data, or give other images."
        )
    if settings.data or small.data not in (SCENES, OTHER_DIGITS):
        return replace(locations, start_images=start_training.data)
    image_root = draw_data_sets(folder / DRAWN_FOLDER, small.images, small.side).resolve()
    location_of = {**locations.by_name, small.data: str(image_root / small.data)}
    return replace(locations, by_name=location_of, start_images=str(image_root / START_DIGITS))


def read_starts(folder: Path) -> list[Grid]:
    """Return the stored grids of runs that train initial weights; the grid that trains with labels comes first."""
    return [read_grid(folder / STARTS / verb) for verb in START_COMMANDS if is_grid_folder(folder / STARTS / verb)]


def prepare_starts(call: Call, rows: Grid) -> None:
    """Check the initial weights that the rows need, estimate the training time, and store the grids that train them.

    There is one grid for each command that trains initial weights. `rows` is the grid of the runs that need the initial
    weights. The grid `rows` includes unfinished runs of earlier calls, since any worker may compute these runs.
    """
    study, small, console = call.study, call.small, call.console
    if small is None or (start_training := small.start_training) is None:
        text = f"{study.name} has no images for training initial weights at --scale {call.settings.scale}"
        raise UserError(f"{text}: use --scale full.")
    shared = {**call.locations.shared, "data": call.locations.start_images or rows.shared["data"]}
    for verb in START_COMMANDS:
        settings = {}
        for arm in rows.arms:
            start_verb, name = arm.settings[START]
            if start_verb == verb and name not in settings:
                # Initial weights that are trained on the images of the rows use the split and label maps of the rows.
                like_rows = () if start_training.data else ("split", "labels")
                parts = {name: value for name, value in arm.settings.items() if name in like_rows}
                settings[name] = {**initial_weights_settings(study, study.starts[name], small), **parts}
        if not settings:
            continue
        fraction = {}
        if verb == "train" and start_training.data:
            labelled = open_labelled_images(shared, start_training.set.get("classes"), console)
            fraction = fraction_setting(labelled, start_training.images)
        arms = [Arm(name, None, None, {**values, **fraction}) for name, values in settings.items()]
        grid_settings = call.grid_settings(call.folder / STARTS / verb, rows.seeds)
        images = None if verb == "train" else open_images(verb, shared, console)
        prepare_grid(grid_settings, arms, shared, call.command, console, images)


def open_labelled_images(shared: Mapping[str, Any], classes: str | None, console: Console) -> GridImages:
    """Open the labelled images of all classes, or of `classes` (see `paucal train --classes`)."""
    location = {name: shared[name] for name in ("data", "data_root", "download") if name in shared}
    return open_images("train", {**location, "classes": classes}, console)


def fraction_setting(images: GridImages, count: int) -> dict[str, float]:
    """Return the setting `fraction` that limits training to `count` images; an empty dict if all images are used."""
    return (
        {}
        if images.n_training_images <= MAX_SIZE_RATIO * count
        else {"fraction": round(count / images.n_training_images, 6)}
    )
