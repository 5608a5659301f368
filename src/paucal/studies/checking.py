"""Whether the entries of a study fit each other."""

from collections.abc import Iterable, Mapping, Sequence

from paucal.studies.study import DERIVED, DRAWN, KINDS, METRICS, Column, DataSet, Part, Row, Study
from paucal.types import UserError
from paucal.wording import did_you_mean

BEGUN = ("detect", "segment", "frozen")  # kinds whose rows begin with a start


def check_study(study: Study, data_sets: Mapping[str, DataSet], where: str) -> None:
    """Look whether the entries of a study fit each other.

    Raises:
        UserError: they do not.
    """
    known(study.kind, KINDS, f"{where}: the kind")
    for column in study.columns:
        _check_column(study, column, where)
    for row in study.rows:
        _check_row(study, row, f"{where}: {row.name!r}")
    _check_names(study.columns, data_sets, where)
    _check_names(study.rows, data_sets, where)
    for scale in study.scales.values():
        for name in scale.rows:
            known(name, [row.name for row in study.trained_rows], f"{where}: the row of a scale")
        if study.starts and scale.lesson is None:
            raise UserError(f"{where}: its rows begin with something, and a smaller scale has no lesson for it.")
        if scale.lesson is not None and not scale.lesson.data and scale.teacher is None:
            raise UserError(f"{where}: a smaller scale has a lesson of its rows' images, and no teacher to part them.")
    for name, start in study.starts.items():
        known(start.model, study.models, f"{where}: the model of the start {name!r}")
        known(start.verb, ("train", "pretrain"), f"{where}: the verb of the start {name!r}")
        if start.tag and start.init != "timm":
            raise UserError(f"{where}: the start {name!r} has the tag {start.tag!r}, which belongs to init: timm.")
    if study.draws:
        _check_drawing(study, where)
    _check_sense(study, where)


def _check_drawing(study: Study, where: str) -> None:
    if set(study.draws) != set(DRAWN):
        raise UserError(f"{where}: what it draws is {', '.join(study.draws)}; expected {', '.join(DRAWN)}.")
    for name in study.draws.values():
        known(name, [column.name for column in study.columns], f"{where}: the column that is drawn")


def _check_column(study: Study, column: Column, where: str) -> None:
    known(column.metric, METRICS, f"{where}: the metric of {column.name!r}")
    if column.metric in DERIVED and study.kind != "frozen":
        raise UserError(f"{where}: the column {column.name!r} is one of frozen features alone.")
    if column in study.trained_columns and not column.data:
        raise UserError(f"{where}: the column {column.name!r} is trained and names no data.")


def _check_names(parts: Sequence[Part], data_sets: Mapping[str, DataSet], where: str) -> None:
    names = [part.name for part in parts]
    for part in parts:
        if names.count(part.name) > 1:
            raise UserError(f"{where}: {part.name!r} is there twice: rename one.")
        if part.data:
            known(part.data, data_sets, f"{where}: the data of {part.name!r}")
        if part.against:
            known(part.against, names, f"{where}: what {part.name!r} is compared with")


def _check_sense(study: Study, where: str) -> None:
    if study.trains and not (study.trained_rows and study.trained_columns):
        raise UserError(f"{where}: it trains, and has no row or no column that does.")
    if study.trains and not study.scales and not study.without:
        raise UserError(f"{where}: it has no smaller scale and does not say why: add 'without'.")
    if not study.see and not study.rows:
        raise UserError(f"{where}: nothing is published of it and nothing is said of how it is made: add 'see'.")


def _check_start(study: Study, row: Row, where: str) -> None:
    known(row.start, study.starts, f"{where}: the start")
    before = study.starts[row.start].model
    if before in study.models and study.models[row.model].standin != study.models[before].standin:
        raise UserError(f"{where} begins with {row.start!r}, whose stand-in {before} is another model.")


def _check_row(study: Study, row: Row, where: str) -> None:
    if len(row.values) != len(study.columns):
        raise UserError(f"{where} has {len(row.values)} values, and there are {len(study.columns)} columns.")
    if row.deviations and len(row.deviations) != len(row.values):
        raise UserError(f"{where} has {len(row.deviations)} deviations for {len(row.values)} values.")
    if row.model:
        known(row.model, study.models, f"{where}: the model")
    begun = (study.starts or study.kind in BEGUN) and row in study.trained_rows
    if row.start or begun:
        _check_start(study, row, where)
    for scale in study.scales.values():
        needed = row in study.trained_rows and (not scale.rows or row.name in scale.rows)
        if needed and study.models[row.model].standin is None:
            raise UserError(f"{where}: {row.model} has no stand-in for the smaller scales.")
        if needed and row.maps and scale.teacher is None:
            raise UserError(f"{where} wants label maps, and a smaller scale has no teacher.")


def known(word: str, names: Iterable[str], where: str) -> None:
    """Raise a UserError where a word is none of the names there are."""
    names = list(names)
    if word not in names:
        raise UserError(f"{where} is {word!r}{did_you_mean(word, names)}; expected one of {', '.join(names)}.")
