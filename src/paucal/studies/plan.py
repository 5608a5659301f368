"""The runs of a study at a scale, and their settings."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any, TypeVar

from paucal.studies.reading import data_sets
from paucal.studies.study import SCALES, Architecture, Column, InitialWeights, Row, RowOrColumn, Scale, Study
from paucal.types import UserError
from paucal.wording import did_you_mean

# Metrics of frozen features that are not named like their evaluation protocol, mapped to the name of the protocol.
PROTOCOL_OF_METRIC = {"correspondence_distance": "correspondence"}
EPOCH_SETTINGS = ("region_after",)  # settings whose value is an epoch, which is scaled with the number of epochs
T = TypeVar("T", bound=RowOrColumn)


@dataclass(frozen=True)
class PlannedRun:
    """One run of a study, which is repeated with each seed."""

    row: Row
    columns: tuple[Column, ...]  # columns whose numbers this run measures
    name: str  # name of the run, unique among the runs on the same images
    data: str  # name of the data set to train on, or of the images that replace it at a smaller scale
    evaluated: str  # name of the data set to evaluate frozen features on, or of its replacement
    epochs: int
    # Settings of the command that computes the run, except the images and the seed.
    settings: Mapping[str, Any] = field(hash=False)
    against: str = ""  # name of the baseline run; "" if there is no baseline


def plan_runs(
    study: Study, scale: str, rows: Sequence[str] | None = None, columns: Sequence[str] | None = None
) -> list[PlannedRun]:
    """Return the runs for the named rows and columns of a study, named as if all runs were requested."""
    wanted_rows = _select_named(study.rows_at(find_scale(study, scale)), study.rows, rows, "--rows", study)
    wanted_columns = _select_named(study.trained_columns, study.columns, columns, "--columns", study)
    runs = [
        replace(run, columns=requested)
        for run in plan_all_runs(study, scale, columns)
        if (requested := tuple(column for column in run.columns if column in wanted_columns)) and run.row in wanted_rows
    ]
    if not runs:
        raise UserError(f"no run of {study.name} has these --rows and --columns: remove these options or change them.")
    return runs


def plan_all_runs(study: Study, scale: str, columns: Sequence[str] | None = None) -> list[PlannedRun]:
    """Return the runs for all rows of a scale, whether requested or not, without duplicates.

    At a smaller scale, one set of images replaces all data sets, so only the columns on one data set are run: the data
    set of the first of `columns`.
    """
    small = find_scale(study, scale)
    wanted_columns = _select_named(study.trained_columns, study.columns, columns, "--columns", study)
    rows, trained_columns = study.rows_at(small), study.trained_columns
    if small is not None:
        rows = [row for row in rows if row.data == study.trained_rows[0].data]
        trained_columns = [column for column in trained_columns if column.data == wanted_columns[0].data]
    runs: dict[str, PlannedRun] = {}
    for row in rows:
        for column in trained_columns:
            run = _plan_run(study, row, column, small)
            # Columns with equal settings share a run.
            key = json.dumps([row.name, run.data, run.evaluated, dict(run.settings)], sort_keys=True)
            runs[key] = replace(runs[key], columns=(*runs[key].columns, column)) if key in runs else run
    return _with_names_and_baselines(list(runs.values()))


def _select_named(
    parts: Sequence[T], all_parts: Sequence[RowOrColumn], names: Sequence[str] | None, flag: str, study: Study
) -> list[T]:
    """Return the rows or columns of `parts` with the given names; if no names are given, return all of `parts`."""
    all_names = [part.name for part in all_parts]
    names = names or all_names
    for name in names:
        if name not in all_names:
            suggestion = did_you_mean(name, all_names)
            raise UserError(f"{flag}: {study.name} has no {name!r}{suggestion}: {'; '.join(all_names)}.")
    selected = [part for part in parts if part.name in names]
    if not selected:
        raise UserError(f"{flag}: {study.name} does not run {', '.join(names)} at this scale: choose other names.")
    return selected


def initial_weights_settings(study: Study, start: InitialWeights, small: Scale) -> dict[str, Any]:
    """Return the settings, except the images and the seed, for training initial weights at a smaller scale."""
    standin, training = study.models[start.model].standin, small.start_training
    if standin is None or training is None:
        raise UserError(f"{study.name} cannot replace {start.words} at a smaller scale: use --scale full.")
    shared = {"init": "none", **training.set} if start.verb == "train" else training.pretrain
    size = {"img_size": [training.side], "epochs": training.epochs}
    return {**size, **shared, **_model_settings(standin), **start.set}


def with_given_start(study: Study, run: PlannedRun, init: str) -> PlannedRun:
    """Return a copy of a full-scale run that starts from `init` (a run or a file) instead of published weights."""
    model = study.models[run.row.model].full.name  # omits the tag of the published weights
    return replace(run, settings={**run.settings, "model": model, "init": init})


def find_scale(study: Study, scale: str) -> Scale | None:
    """Return a smaller scale of a study by its name; None for "full"."""
    if scale not in SCALES:
        raise UserError(f"--scale is {scale!r}{did_you_mean(scale, SCALES)}; expected one of {', '.join(SCALES)}.")
    if not study.trains:
        raise UserError(f"{study.name} has no runs, so it has no scales: see 'paucal study show {study.name}'.")
    if scale == "full":
        return None
    if scale not in study.scales:
        scales = ", ".join((*study.scales, "full"))
        reason = f" ({study.without})" if study.without else ""
        raise UserError(f"{study.name} has no scale {scale!r}{reason}: use {scales}.")
    return study.scales[scale]


def _plan_run(study: Study, row: Row, column: Column, small: Scale | None) -> PlannedRun:
    data, epochs = row.data or column.data, row.epochs or column.epochs or study.epochs
    if study.kind == "frozen":
        settings, epochs = _feature_settings(study, row, column, small), 1
    elif small is None:
        settings = {**data_sets()[data].settings, **_full_settings(study, row, column)}
    else:
        settings = _standin_settings(study, row, column, small, epochs)
        epochs = settings["epochs"]
    images = (data, column.data) if small is None else (small.data, small.data)
    return PlannedRun(row, (column,), "", *images, epochs, settings)


def _feature_settings(study: Study, row: Row, column: Column, small: Scale | None) -> dict[str, Any]:
    model = study.models[row.model]
    name = (model.full if small is None or model.standin is None else model.standin).name
    init = study.starts[row.start].init if small is None else ""
    protocol = PROTOCOL_OF_METRIC.get(column.metric, column.metric)
    return {"protocol": [protocol], "model": name, **({"init": init} if init else {})}


def _full_settings(study: Study, row: Row, column: Column) -> dict[str, Any]:
    epochs = row.epochs or column.epochs
    schedule = {"schedule_epochs": epochs} if study.kind == "train" else {}
    length = {} if epochs is None else {"epochs": epochs, **schedule}
    init = {"init": "none"} if study.kind == "train" and not row.start else {}
    model = study.models[row.model].full
    if row.start and (start := study.starts[row.start]).init:
        init = {"init": start.init}
        model = replace(model, name=f"{model.name}.{start.tag}") if start.tag else model
    recipe = {"recipe": study.recipe} if study.recipe else {}
    specific = {**study.full, **length, **row.set, **column.set, **row.full, **column.full}
    return _without_unused({**init, **recipe, **_model_settings(model, row), **specific})


def _standin_settings(study: Study, row: Row, column: Column, small: Scale, full_epochs: int) -> dict[str, Any]:
    standin = study.models[row.model].standin
    if standin is None:
        raise UserError(f"{row.name!r} of {study.name} has no stand-in model for smaller scales: use --scale full.")
    init = {"init": "none"} if study.kind == "train" and not row.start else {}
    epochs = max(1, round(small.epochs * full_epochs / study.epochs))
    specific = {**row.set, **column.set, **row.standin, **column.standin}
    for name in set(EPOCH_SETTINGS) & specific.keys():
        specific[name] = max(1, round(epochs / full_epochs * specific[name]))
    size = {"img_size": [small.side], "epochs": epochs}
    return _without_unused({**init, **small.set, **size, **_model_settings(standin, row), **specific})


def _model_settings(model: Architecture, row: Row | None = None) -> dict[str, Any]:
    """Return the settings of a model; the arguments of a row take precedence over the model's own arguments."""
    args = {argument.partition("=")[0]: argument for argument in (*model.args, *(row.args if row else ()))}
    return {"model": model.name, **({"model_args": list(args.values())} if args else {})}


def _without_unused(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings without the first epoch of the region task, if the run has no such task."""
    unused = EPOCH_SETTINGS if settings.get("tasks") == "view" else ()
    return {name: value for name, value in settings.items() if name not in unused}


def _with_names_and_baselines(runs: Sequence[PlannedRun]) -> list[PlannedRun]:
    """Set the name and the baseline of each run.

    A run has the name of its row, and the first words of its columns if the row has several runs on the same images.
    """
    counts = Counter((run.row.name, run.data) for run in runs)
    named_runs = []
    for run in runs:
        name = run.row.name
        if counts[name, run.data] > 1:
            by_position = zip(*(column.name.split() for column in run.columns), strict=False)
            common = [words[0] for words in takewhile(lambda words: len(set(words)) == 1, by_position)]
            name = f"{name}, {' '.join(common) or run.columns[0].name}"
        named_runs.append(replace(run, name=name))
    complete_runs = []
    for run in named_runs:
        # The baseline is a run of another row for the same columns, or of the same row for another column.
        baseline_row = run.row.against or run.row.name
        baseline_columns = {column.name if run.row.against else column.against for column in run.columns}
        baselines = (
            other.name
            for other in named_runs
            if other.data == run.data
            and other.row.name == baseline_row
            and baseline_columns & {column.name for column in other.columns}
        )
        complete_runs.append(replace(run, against=next(baselines, "")))
    return complete_runs
