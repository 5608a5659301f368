"""Which runs a study is made of at a scale, and with which settings."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from paucal.studies.study import SCALES, Architecture, Column, DataSet, Row, Scale, Start, Study
from paucal.types import UserError
from paucal.wording import did_you_mean

# What measures a metric of frozen features, where that has another name.
PROTOCOLS = {"correspondence_distance": "correspondence"}
BY_EPOCH = ("region_after",)  # settings that count epochs, and shrink with them


@dataclass(frozen=True)
class Planned:
    """One run of a study, for any seed.

    Attributes:
        row: that it is of.
        columns: that it gives numbers for.
        name: what tells it from the other runs on the same images.
        data: the set it trains on, by its name among the data sets; at a smaller scale the images in its place.
        judged: the set that frozen features are judged on, likewise.
        epochs: it trains.
        settings: of the verb, without images and seed.
        against: the name of the run that it is compared with; "" for none.
    """

    row: Row
    columns: tuple[Column, ...]
    name: str
    data: str
    judged: str
    epochs: int
    settings: Mapping[str, Any] = field(hash=False)
    against: str = ""


def plan(
    study: Study,
    scale: str,
    data_sets: Mapping[str, DataSet],
    rows: Sequence[str] = (),
    columns: Sequence[str] = (),
) -> list[Planned]:
    """Return the runs of a study, each once, in the order of its table.

    At a smaller scale one set of images takes the place of all, so only the columns of the first set are run. What a
    run is called, and what it is compared with, does not depend on which others are wanted.

    Args:
        study: that trains.
        scale: "tiny", "small" or "full".
        data_sets: by name.
        rows: names of the rows that are wanted; () for all.
        columns: names of the columns that are wanted; () for all.

    Raises:
        UserError: the study is not run, has no such scale, row or column, or nothing is left of it.
    """
    runs = plan_whole(study, scale, data_sets, columns)
    small = find_scale(study, scale)
    known = [row for row in study.trained_rows if small is None or not small.rows or row.name in small.rows]
    wanted_rows = _chosen(known, [row.name for row in study.rows], rows, "--rows", study)
    wanted = _chosen(study.trained_columns, [one.name for one in study.columns], columns, "--columns", study)
    kept = []
    for run in runs:
        own = tuple(column for column in run.columns if column in wanted)
        if own and run.row in wanted_rows:
            kept.append(replace(run, columns=own))
    if not kept:
        raise UserError(f"nothing is left of {study.name} to run: leave --rows and --columns out, or choose others.")
    return kept


def plan_whole(
    study: Study, scale: str, data_sets: Mapping[str, DataSet], columns: Sequence[str] = ()
) -> list[Planned]:
    """Return all runs of a scale, whichever are wanted; see `plan`.

    Args:
        study: that trains.
        scale: "tiny", "small" or "full".
        data_sets: by name.
        columns: that are wanted, of which the first says at a smaller scale whose images are stood in for.

    Raises:
        UserError: the study is not run, or has no such scale or column.
    """
    small = find_scale(study, scale)
    chosen = [row for row in study.trained_rows if small is None or not small.rows or row.name in small.rows]
    wanted = _chosen(study.trained_columns, [one.name for one in study.columns], columns, "--columns", study)
    fields = [one for one in study.trained_columns if small is None or one.data == wanted[0].data]
    if small is not None:
        chosen = [row for row in chosen if row.data == study.trained_rows[0].data]
    made: dict[str, Planned] = {}
    for row in chosen:
        for column in fields:
            one = _planned(study, row, column, small, data_sets)
            key = json.dumps([row.name, one.data, one.judged, dict(one.settings)], sort_keys=True)
            known = made.get(key)
            made[key] = one if known is None else replace(known, columns=(*known.columns, column))
    return _named(list(made.values()))


def start_settings(study: Study, start: Start, small: Scale) -> dict[str, Any]:
    """Return the settings of the verb that makes a start at a smaller scale, without images and seed.

    Raises:
        UserError: the scale has no lesson, or the start's model no stand-in.
    """
    standin, lesson = study.models[start.model].standin, small.lesson
    if standin is None or lesson is None:
        raise UserError(f"what {start.words} is has no stand-in in {study.name}: use --scale full.")
    shared = {"init": "none", **lesson.set} if start.verb == "train" else lesson.pretrain
    size = {"img_size": [lesson.side], "epochs": lesson.epochs}
    return {**size, **shared, **_architecture(standin), **start.set}


def with_given_start(study: Study, run: Planned, place: str) -> Planned:
    """Return a run of the full scale that begins with a given run or file, in the place of what it has by itself."""
    model = study.models[run.row.model].full.name  # without the tag of weights that are not taken
    return replace(run, settings={**run.settings, "model": model, "init": place})


def find_scale(study: Study, scale: str) -> Scale | None:
    """Return a smaller scale of a study, None for the full one.

    Raises:
        UserError: the study is not run, or not at this scale.
    """
    if scale not in SCALES:
        raise UserError(f"--scale is {scale!r}{did_you_mean(scale, SCALES)}; expected one of {', '.join(SCALES)}.")
    if not study.trains:
        raise UserError(f"{study.name} trains nothing, so it has no scales: 'paucal study show {study.name}'.")
    if scale == "full":
        return None
    if scale not in study.scales:
        have = ", ".join((*study.scales, "full"))
        raise UserError(f"{study.name} has no scale {scale!r} ({study.without or 'it has others'}): use {have}.")
    return study.scales[scale]


def _planned(study: Study, row: Row, column: Column, small: Scale | None, data_sets: Mapping[str, DataSet]) -> Planned:
    data = row.data or column.data
    epochs = row.epochs or column.epochs or study.epochs
    if study.kind == "frozen":
        images = (data, column.data) if small is None else (small.data, small.data)
        return Planned(row, (column,), "", *images, 1, _judged(study, row, column, small))
    if small is None:
        settings = {**data_sets[data].settings, **_full(study, row, column)}
        return Planned(row, (column,), "", data, column.data, epochs, settings)
    epochs = max(1, round(small.epochs * epochs / study.epochs))
    settings = _standin(study, row, column, small, epochs)
    return Planned(row, (column,), "", small.data, small.data, epochs, settings)


def _judged(study: Study, row: Row, column: Column, small: Scale | None) -> dict[str, Any]:
    """Return the settings of `paucal eval` that a column of frozen features asks for."""
    model = study.models[row.model]
    one = model.full if small is None or model.standin is None else model.standin
    known = study.starts[row.start].init if small is None else ""
    begin = {"init": known} if known else {}
    return {"protocol": [PROTOCOLS.get(column.metric, column.metric)], "model": one.name, **begin}


def _full(study: Study, row: Row, column: Column) -> dict[str, Any]:
    own = row.epochs or column.epochs
    length = {} if own is None else {"epochs": own, **({"schedule_epochs": own} if study.kind == "train" else {})}
    begin = {"init": "none"} if study.kind == "train" and not row.start else {}
    model = study.models[row.model].full
    if row.start and (start := study.starts[row.start]).init:
        begin = {"init": start.init}
        model = replace(model, name=f"{model.name}.{start.tag}") if start.tag else model
    recipe = {"recipe": study.recipe} if study.recipe else {}
    said = {**study.full, **length, **row.set, **column.set, **row.full, **column.full}
    return _settled({**begin, **recipe, **_architecture(model, row), **said})


def _standin(study: Study, row: Row, column: Column, small: Scale, epochs: int) -> dict[str, Any]:
    standin = study.models[row.model].standin
    if standin is None:
        raise UserError(f"{row.name!r} of {study.name} has no model for a smaller scale: use --scale full.")
    begin = {"init": "none"} if study.kind == "train" and not row.start else {}
    said = {**row.set, **column.set, **row.standin, **column.standin}
    share = epochs / (row.epochs or column.epochs or study.epochs)
    said |= {name: max(1, round(share * said[name])) for name in BY_EPOCH if name in said}
    size = {"img_size": [small.side], "epochs": epochs}
    return _settled({**begin, **small.set, **size, **_architecture(standin, row), **said})


def _architecture(model: Architecture, row: Row | None = None) -> dict[str, Any]:
    """Return the settings of a model; what a row says of an argument wins over the model's own word."""
    args = {word.partition("=")[0]: word for word in (*model.args, *(row.args if row else ()))}
    return {"model": model.name, **({"model_args": list(args.values())} if args else {})}


def _settled(settings: dict[str, Any]) -> dict[str, Any]:
    """Leave out when the region task joins, where it never does."""
    idle = BY_EPOCH if settings.get("tasks") == "view" else ()
    return {name: value for name, value in settings.items() if name not in idle}


def _chosen(parts: Sequence[Any], known: Sequence[str], wanted: Sequence[str], flag: str, study: Study) -> list[Any]:
    for name in wanted:
        if name not in known:
            raise UserError(f"{flag}: {study.name} has no {name!r}{did_you_mean(name, known)}: {'; '.join(known)}.")
    found = [part for part in parts if not wanted or part.name in wanted]
    if not found:
        raise UserError(f"{flag}: nothing of {', '.join(wanted)} is run by {study.name} at this scale: choose others.")
    return found


def _named(runs: Sequence[Planned]) -> list[Planned]:
    """Name runs after their rows, and after their columns where a row has several on the same images."""
    several = {(one.row.name, one.data) for n, one in enumerate(runs) for two in runs[:n] if _same_images(one, two)}
    named = [
        replace(one, name=f"{one.row.name}, {_label(one)}" if (one.row.name, one.data) in several else one.row.name)
        for one in runs
    ]
    return [replace(one, against=_against(one, named)) for one in named]


def _same_images(one: Planned, two: Planned) -> bool:
    return one.row == two.row and one.data == two.data


def _label(one: Planned) -> str:
    """Return what the names of a run's columns have in common at their beginning, in words."""
    words = [column.name.split() for column in one.columns]
    common = []
    for same in zip(*words, strict=False):
        if len(set(same)) > 1:
            break
        common.append(same[0])
    return " ".join(common) or one.columns[0].name


def _against(one: Planned, runs: Sequence[Planned]) -> str:
    names = {column.name for column in one.columns}
    if one.row.against:
        alike = [two for two in runs if two.row.name == one.row.against and two.data == one.data]
        same = [two for two in alike if names & {column.name for column in two.columns}]
        return same[0].name if same else ""
    wanted = {column.against for column in one.columns}
    for two in runs:
        if _same_images(one, two) and wanted & {column.name for column in two.columns}:
            return two.name
    return ""
