"""Sentences about a study: whether it can be run, its cost, and the limits of its scale."""

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from paucal.settings.options import flag_words
from paucal.studies.cost import gpu_hours, run_hours
from paucal.studies.parts import DataSet
from paucal.studies.plan import Planned
from paucal.studies.scale import Scale
from paucal.studies.study import COUNTED, TIMED, Study, Value
from paucal.verbs.compare.cells.cell import of_verb
from paucal.verbs.compare.cells.grid import Grid
from paucal.wording import counted

# What is made of a row, by the kind of its study.
MADE = {
    "train": "train",
    "pretrain": "pre-train",
    "frozen": "evaluate",
    "detect": "train a detector",
    "segment": "train a segmenter",
}


def status(study: Study, data_sets: Mapping[str, DataSet]) -> str:
    """Return whether a study can be run as published, in a few words.

    Example:
        >>> from paucal.studies.registry import data_sets, find_study
        >>> status(find_study("drloc-table-2a"), data_sets()), status(find_study("drloc-table-12"), data_sets())
        ('runnable', 'needs data: ade20k; trained weights')
    """
    if any(column.metric in TIMED for column in study.columns):
        return "runnable (timed on this device, nothing is trained)"
    if study.kind == "count":
        return "runnable (counted, nothing is trained)"
    if study.kind == "facts":
        return "reference table; nothing to run"
    if study.kind in ("pictures", "command"):
        return "by hand"
    missing = missing_sets(study, data_sets)
    needs = [f"data: {', '.join(missing)}"] if missing else []
    needs += ["trained weights"] if any(not one.init for one in study.starts.values()) else []
    needs += ["label maps"] if any(row.maps for row in study.trained_rows) else []
    return f"needs {'; '.join(needs)}" if needs else "runnable"


def missing_sets(study: Study, data_sets: Mapping[str, DataSet]) -> list[str]:
    """Return the data sets of its runs at full scale that have to be downloaded by hand."""
    return [name for name in study.data_sets if data_sets[name].how]


def going_on(command: str) -> str:
    """Return the command without `--jobs 0`, which computes the runs.

    Example:
        >>> going_on("paucal study drloc-table-9 --jobs 0 --seeds 0 1")
        'paucal study drloc-table-9 --seeds 0 1'
    """
    return re.sub(r" --jobs[ =]0(?= |$)", "", command)


def cost_of(study: Study, runs: Sequence[Planned], seeds: int, data_sets: Mapping[str, DataSet]) -> str:
    """Return a sentence on the cost of runs at full scale."""
    hours = seeds * sum(run_hours(study, run, data_sets[run.data].train) for run in runs)
    return f"these runs take about {_hours(hours)} GPU hours by arithmetic"


def cost_words(study: Study, data_sets: Mapping[str, DataSet]) -> str:
    """Return the cost at full scale for a table."""
    hours = gpu_hours(study, data_sets)
    if not hours:
        return "-"
    return _hours(hours)


def _hours(hours: float) -> str:
    return f"{hours:.1f}" if hours < 10 else f"{hours:,.0f}"


def how_to_get(study: Study, data_sets: Mapping[str, DataSet]) -> list[str]:
    """Return a sentence for each data set, start or label map that has to be provided at full scale."""
    lines = [f"{data_sets[name].title} ({name}): {data_sets[name].how}" for name in missing_sets(study, data_sets)]
    lines += [
        f"{name} begins with {one.words}: " + (f"by itself, or --init {name}=RUN" if one.init else f"--init {name}=RUN")
        for name, one in study.starts.items()
    ]
    if any(row.maps for row in study.trained_rows):
        lines.append("label maps of the training images: 'paucal label DATA --teacher ...', then --labels FOLDER")
    return lines


def scale_words(study: Study, small: Scale | None, runs: Sequence[Planned], seeds: int) -> str:
    """Return a sentence on the runs to make.

    Args:
        study: any that trains.
        small: the scale; None for the full one.
        runs: of it.
        seeds: how many of each.
    """
    models, each = f"{counted(len(runs), 'way')} to {MADE[study.kind]}", f"{counted(seeds, 'seed')} each"
    if small is None:
        return f"{study.name} as published: {models}, {each}"
    words = f"{study.name} with stand-ins: {models}{_size_words(study, small, runs)}, {each}"
    starts, lesson = list(dict.fromkeys(run.row.start for run in runs if run.row.start)), small.lesson
    if not starts or lesson is None:
        return words
    images = f"up to {lesson.images} images of" if lesson.data else "the same images at"
    return f"{words}; first what they begin with ({', '.join(starts)}), on {images} {lesson.side} pixels"


def _size_words(study: Study, small: Scale, runs: Sequence[Planned]) -> str:
    if study.kind == "frozen":
        return ""
    length = _span(run.epochs for run in runs)
    sides = _span(max(run.settings.get("img_size", [small.side])) for run in runs)
    fewer = "" if study.kind == "train" else " (of a larger set fewer epochs, but one at least)"
    return f", {sides} pixels, {length} epochs of up to {small.images} images{fewer}"


def _span(numbers: Iterable[int]) -> str:
    found = sorted(set(numbers))
    return f"{found[0]}" if len(found) == 1 else f"{found[0]} to {found[-1]}"


def caveats(study: Study, small: Scale | None, seeds: int = 1) -> list[str]:
    """Return caveats about the numbers.

    Args:
        study: any.
        small: the scale; None for the full one.
        seeds: that the runs have.
    """
    lines = [] if small is None else [study.telling]
    if small is not None and seeds == 1:
        told = (
            "the numbers say"
            if study.kind in ("pretrain", "frozen")
            else "intervals are those of other test images, and say"
        )
        lines.append(f"One seed for each row: {told} nothing of the luck of training; --seeds 0 1 2 does.")
    if small is not None:
        left = [one.name for one in study.trained_columns if one.data != study.trained_columns[0].data]
        if left:
            lines.append(
                f"One set of images stands for all, so {', '.join(left)} are not run: they differ by data alone."
            )
        if any(one.metric in COUNTED for one in study.columns):
            lines.append("Parameters and multiply-adds are counted on the published models, not on stand-ins.")
    lines += [f"Of the published numbers: {text}" for text in study.misprints]
    return [
        *lines,
        *([study.note] if study.note else []),
        *(f"{row.name}: {row.note}" for row in study.rows if row.note),
    ]


def run_words(run: Planned) -> str:
    """Return the name of a run, and what it starts from."""
    return f"{run.name}, begun with {run.row.start}" if run.row.start else run.name


def settings_words(settings: Mapping[str, Any]) -> str:
    """Return the settings of a run as flags."""
    return shlex.join(
        word for name, value in settings.items() if value is not False for word in flag_words(name, value)
    )


def shown_settings(runs: Sequence[Planned], starts: Sequence[Grid], grids: Sequence[Grid]) -> list[dict[str, str]]:
    """Return name, images and settings of every run for the page: what runs begin with, what all share, their own.

    Args:
        runs: that are wanted.
        starts: grids of what they begin with.
        grids: of the runs; settings are those that these hold.
    """
    begun = {run.row.start for run in runs}
    found = [
        {
            "run": f"{arm.name}, a start",
            "images": Path(str(grid.shared["data"])).name,
            "settings": f"paucal {grid.verb} {settings_words(of_verb(arm.settings))}",
        }
        for grid in starts
        for arm in grid.arms
        if arm.name in begun
    ]
    arms = {(grid.folder.name, arm.name): of_verb(arm.settings) for grid in grids for arm in grid.arms}
    own = [arms[run.data, run.name] for run in runs]
    shared = _shared(own)
    if shared:
        images = ", ".join(dict.fromkeys(run.data for run in runs))
        found.append({"run": "all of these", "images": images, "settings": settings_words(shared)})
    for run, settings in zip(runs, own, strict=True):
        words = settings_words({name: value for name, value in settings.items() if name not in shared})
        found.append({"run": run_words(run), "images": run.data, "settings": words or "nothing else"})
    return found


def _shared(own: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the common settings of several runs."""
    if len(own) < 2:
        return {}
    return {name: value for name, value in own[0].items() if all(name in one and one[name] == value for one in own)}


def published(value: Value, deviation: float | None = None) -> str:
    """Return a published value as text.

    Example:
        >>> published(85.62, 0.05), published(1281167.0), published(None), published("cosine")
        ('85.62 ± 0.05', '1281167', '-', 'cosine')
    """
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    text = f"{value:.0f}" if value == int(value) else f"{value:.10g}"
    return text if deviation is None else f"{text} ± {deviation:g}"
