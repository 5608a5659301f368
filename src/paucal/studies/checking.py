"""Checks of a study's entries: whether names exist, and whether rows, columns and scales fit each other."""

from collections.abc import Iterable, Mapping, Sequence

from paucal.studies.study import DERIVED, DRAWN, KINDS, METRICS, DataSet, Part, Row, Study
from paucal.types import UserError
from paucal.wording import did_you_mean

STARTED = ("detect", "segment", "frozen")  # kinds whose rows have a start


def require_name(word: str, names: Iterable[str], where: str) -> None:
    """Raise a UserError for a word that is not among the names."""
    names = list(names)
    if word not in names:
        raise UserError(f"{where} is {word!r}{did_you_mean(word, names)}; expected one of {', '.join(names)}.")


def check_study(study: Study, data_sets: Mapping[str, DataSet], where: str) -> None:
    """Check the entries of a study."""
    require_name(study.kind, KINDS, f"{where}: the kind")
    for column in study.columns:
        require_name(column.metric, METRICS, f"{where}: the metric of {column.name!r}")
        if column.metric in DERIVED and study.kind != "frozen":
            raise UserError(f"{where}: the column {column.name!r} is only for frozen features.")
        if column in study.trained_columns and not column.data:
            raise UserError(f"{where}: the column {column.name!r} is trained and names no data.")
    for row in study.rows:
        _check_row(study, row, f"{where}: {row.name!r}")
    for parts in (study.columns, study.rows):
        _check_names(parts, data_sets, where)
    _check_scales(study, where)
    for name, start in study.starts.items():
        require_name(start.model, study.models, f"{where}: the model of the start {name!r}")
        require_name(start.verb, ("train", "pretrain"), f"{where}: the verb of the start {name!r}")
        if start.tag and start.init != "timm":
            raise UserError(f"{where}: the start {name!r} has the tag {start.tag!r}, which belongs to init: timm.")
    if study.draws and set(study.draws) != set(DRAWN):
        raise UserError(f"{where}: its figure draws {', '.join(study.draws)}; expected {', '.join(DRAWN)}.")
    for name in study.draws.values():
        require_name(name, [column.name for column in study.columns], f"{where}: the column that is drawn")
    _check_completeness(study, where)


def _check_completeness(study: Study, location: str) -> None:
    if study.trains and not (study.trained_rows and study.trained_columns):
        raise UserError(f"{location}: a study that trains needs at least one trained row and one trained column.")
    if study.trains and not study.scales and not study.without:
        raise UserError(f"{location}: it has no smaller scale and no reason: add 'without'.")
    if not study.see and not study.rows:
        raise UserError(f"{location}: it has neither published rows nor a description of how it is made: add 'see'.")


def _check_row(study: Study, row: Row, location: str) -> None:
    if len(row.values) != len(study.columns):
        raise UserError(f"{location} has {len(row.values)} values, but there are {len(study.columns)} columns.")
    if row.deviations and len(row.deviations) != len(row.values):
        raise UserError(f"{location} has {len(row.deviations)} deviations for {len(row.values)} values.")
    if row.model:
        require_name(row.model, study.models, f"{location}: the model")
    if row.start or ((study.starts or study.kind in STARTED) and row in study.trained_rows):
        require_name(row.start, study.starts, f"{location}: the start")
        model = study.starts[row.start].model
        if model in study.models and study.models[row.model].standin != study.models[model].standin:
            raise UserError(f"{location} starts from {row.start!r}, whose stand-in {model} is another model.")
    for scale in study.scales.values():
        if row in study.rows_at(scale):
            if study.models[row.model].standin is None:
                raise UserError(f"{location}: {row.model} has no stand-in for the smaller scales.")
            if row.maps and scale.teacher is None:
                raise UserError(f"{location} needs label maps, but a smaller scale has no teacher.")


def _check_names(parts: Sequence[Part], data_sets: Mapping[str, DataSet], location: str) -> None:
    names = [part.name for part in parts]
    for part in parts:
        if names.count(part.name) > 1:
            raise UserError(f"{location}: {part.name!r} occurs twice: rename one.")
        if part.data:
            require_name(part.data, data_sets, f"{location}: the data of {part.name!r}")
        if part.against:
            require_name(part.against, names, f"{location}: the baseline of {part.name!r}")


def _check_scales(study: Study, location: str) -> None:
    for scale in study.scales.values():
        for name in scale.rows:
            require_name(name, [row.name for row in study.trained_rows], f"{location}: the row of a scale")
        if study.starts and scale.start_training is None:
            raise UserError(f"{location}: its rows have starts, but a smaller scale has no 'start_training'.")
        if scale.start_training is not None and not scale.start_training.data and scale.teacher is None:
            raise UserError(
                f"{location}: a smaller scale trains starts on its rows' images, but has no teacher to split them."
            )
