"""A call of `paucal study NAME`: the checked settings, the images of the runs, the output folder, the workers."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from paucal.runner.console import Console
from paucal.runner.outputs import output_path, refuse_inside_images
from paucal.runner.writable import check_folder_writable
from paucal.runs.folder import GRID_FILE, RUNS_FOLDER, is_grid_folder
from paucal.studies.numbers import RESULTS_FILE
from paucal.studies.plan import PlannedRun, with_given_start
from paucal.studies.reading import data_sets
from paucal.studies.scenes import UNFINISHED
from paucal.studies.settings import StudySettings
from paucal.studies.study import Scale, Study
from paucal.studies.tables import FIGURE_FILE
from paucal.types import UserError
from paucal.verbs.compare.settings import GridSettings
from paucal.wording import did_you_mean

PAGE_FILE = "study.html"
RESERVED = ("teacher", "maps", "starts", "drawn")  # names of folders that a study writes, which no data set may have
MAX_NAME_LENGTH = 60  # largest number of characters of a folder's name


@dataclass(frozen=True)
class DataLocations:
    """Where the images of a study's runs are."""

    by_name: Mapping[str, str]  # location of the images (DATA on the command line) by the name of the data set
    shared: Mapping[str, Any]  # other settings for reading images, such as `data_root`, which all runs share
    # Location of the images on which initial weights are trained at a smaller scale; "" if no initial weights are
    # trained, or if they are trained on the images of the rows.
    start_images: str = ""


@dataclass(frozen=True)
class Call:
    """One call of `paucal study NAME`."""

    study: Study
    runs: Sequence[PlannedRun]
    small: Scale | None  # the smaller scale that was requested; None at full scale
    settings: StudySettings
    locations: DataLocations
    folder: Path
    command: str  # command line or Python call that repeats this call
    console: Console

    @property
    def seeds(self) -> list[int]:
        """The seeds with which every run is trained: `--seeds`, or by default the seeds of the scale or the paper."""
        if self.settings.seeds is not None:
            return self.settings.seeds
        return list((self.small or self.study).seeds)

    @property
    def workers(self) -> GridSettings:
        """The settings of the workers, without seeds and output folder."""
        settings = self.settings
        return GridSettings(jobs=settings.jobs, on=settings.on, slurm=settings.slurm, retry=settings.retry)

    def grid_settings(self, output: Path, seeds: Sequence[int] | None = None) -> GridSettings:
        """Return the settings of the grid in the folder `output`, by default with the seeds of the call."""
        return replace(self.workers, seeds=self.seeds if seeds is None else list(seeds), output=str(output))


def require_runnable(study: Study, settings: StudySettings) -> None:
    """Raise a UserError if a study has no runs, or if a setting does not apply to the study or its scale."""
    if not study.trains:
        advice = f"'paucal study show {study.name}' prints its published numbers"
        if study.kind == "facts":
            raise UserError(f"{study.name} is a reference table; there is nothing to run: {advice}.")
        raise UserError(f"{study.name} cannot be run, only reproduced by hand: {study.see}; {advice}.")
    only_full = [name for name in ("recipe", "init", "labels") if getattr(settings, name)]
    if only_full and settings.scale != "full":
        flag = f"--{only_full[0]}"
        raise UserError(f"{flag} needs --scale full, but --scale is {settings.scale}: remove {flag}.")
    if len(settings.init) > 1 and not study.starts:
        raise UserError(
            f"--init has several values, but all runs of {study.name} have the same initial weights: give one value."
        )
    if study.kind in ("detect", "segment") and (settings.data_root is not None or settings.download):
        name = "data-root" if settings.data_root is not None else "download"
        raise UserError(
            f"--{name} is only for data sets that paucal can open by name, but boxes and masks are read from folders: "
            f"remove --{name}."
        )
    if settings.recipe is not None and study.kind != "train":
        raise UserError("--recipe is only for studies that train with labels: remove --recipe.")


def study_folder(study: Study, settings: StudySettings, locations: Mapping[str, str]) -> Path:
    """Return the output folder of a study, which may not exist yet; refuse other files and runs on other images."""
    default = f"study-{study.name}-{settings.scale}" if study.trains else f"study-{study.name}"
    folder = output_path(settings.output, RUNS_FOLDER / default)
    for path in locations.values():
        refuse_inside_images(folder, {"DATA": path}, settings.data_root)
    check_folder_writable(folder)
    if not folder.is_dir():
        return folder
    expected = (PAGE_FILE, RESULTS_FILE, FIGURE_FILE, *RESERVED, *locations)
    names = [path.name for path in folder.iterdir() if not is_grid_folder(path)]
    if foreign := [name for name in names if name not in expected and not name.startswith(UNFINISHED)]:
        text = f"--output: {str(folder)!r} contains {foreign[0]!r}, which is not part of a study"
        raise UserError(f"{text}: choose another folder.")
    names = [path.parent.name for path in folder.glob(f"*/{GRID_FILE}")]
    grids = [name for name in names if name not in (*RESERVED, *locations)]
    if grids and settings.scale != "full":  # the page shows the numbers of one data set
        raise UserError(
            f"--output: {str(folder)!r} contains the study on {grids[0]!r}, but the requested images are "
            f"{', '.join(locations)}: choose another folder."
        )
    return folder


def with_given_images(runs: Sequence[PlannedRun], settings: StudySettings) -> list[PlannedRun]:
    """Return the runs; at a smaller scale, the images of `--data` replace the images of the scale."""
    if settings.scale == "full" or not settings.data:
        return list(runs)
    name, replaced = folder_name(settings.data[0]), []
    for run in runs:
        # The scale's `classes` are not classes of the given images.
        values = {key: value for key, value in run.settings.items() if key != "classes"}
        replaced.append(replace(run, data=name, evaluated=name, settings=values))
    return replaced


def folder_name(data: str) -> str:
    """Return the name of the folder for runs on DATA: the last part of its path, with "-" for special characters.

    Example:
        >>> folder_name("/data/my photos/"), folder_name("cifar10"), folder_name("teacher")
        ('my-photos', 'cifar10', 'images-teacher')
    """
    name = re.sub(r"[^\w.-]+", "-", Path(os.path.realpath(data)).name).strip("-.")[:MAX_NAME_LENGTH]
    return name if name and name not in RESERVED else f"images-{name}".rstrip("-")


def find_locations(settings: StudySettings, runs: Sequence[PlannedRun]) -> DataLocations:
    """Return the locations of the images of all runs, from `--data` or, by default, from the data sets' names."""
    needed_data = list(dict.fromkeys(name for run in runs for name in (run.data, run.evaluated)))
    values = {name: getattr(settings, name) for name in ("data_root", "device", "workers")}
    shared = {name: value for name, value in values.items() if value is not None}
    if settings.download:
        shared["download"] = True
    if settings.scale != "full":
        if len(settings.data) > 1 or any("=" in argument for argument in settings.data):
            raise UserError(
                f"--data: at --scale {settings.scale}, a single DATA replaces all data sets: give only one DATA."
            )
        return DataLocations({name: settings.data[0] if settings.data else name for name in needed_data}, shared)
    location_of: dict[str, str] = {}
    for argument in settings.data:
        name, equals, location = argument.partition("=")
        if not equals or not location:
            raise UserError(
                f"--data: at --scale full expected NAME=DATA such as {needed_data[0]}=FOLDER, got {argument!r}."
            )
        if name not in needed_data:
            raise UserError(
                f"--data: no run reads {name!r}{did_you_mean(name, needed_data)}; they read {', '.join(needed_data)}."
            )
        location_of[name] = location
    for name in needed_data:
        if name not in location_of and not (data_set := data_sets()[name]).named:
            raise UserError(f"{data_set.title} cannot be opened by name: {data_set.how}, with --data {name}=DATA.")
    return DataLocations({name: location_of.get(name) or data_sets()[name].named for name in needed_data}, shared)


def with_starts(call: Call) -> Call:
    """Return a full-scale call whose runs start from the weights given with `--init`, else from published weights."""
    study, runs = call.study, call.runs
    if not study.starts or call.small is not None:  # at a smaller scale, the initial weights are trained first
        return call
    init_of_start: dict[str, str] = {}
    for argument in call.settings.init:
        name, _, init = argument.partition("=")
        if name not in study.starts or not init:
            raise UserError(f"--init: expected NAME=RUN with NAME one of {', '.join(study.starts)}, got {argument!r}.")
        if name in init_of_start:
            raise UserError(f"--init: {name!r} is given twice: give it once.")
        init_of_start[name] = init
    incomplete = [run for run in runs if run.row.start not in init_of_start and not study.starts[run.row.start].init]
    if missing := list(dict.fromkeys(run.row.start for run in incomplete)):
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
    inits = [init_of_start.get(run.row.start) for run in runs]
    started = [with_given_start(study, run, init) if init else run for run, init in zip(runs, inits, strict=True)]
    return replace(call, runs=started)
