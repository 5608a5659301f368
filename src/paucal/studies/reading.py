"""Studies with their published numbers, read from YAML files in this package. Every entry is checked."""

import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, fields
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from paucal.reading import parse_yaml, read_text
from paucal.studies.study import (
    DERIVED_METRICS,
    FIGURE_AXES,
    KINDS,
    METRICS,
    NETWORKS,
    RUN_METRICS,
    SCALES,
    Architecture,
    Column,
    DataSet,
    InitialWeights,
    Model,
    Row,
    RowOrColumn,
    Scale,
    StartTraining,
    Study,
    Teacher,
)
from paucal.types import UserError
from paucal.wording import did_you_mean

FOLDER = Path(__file__).parent / "published"
PAPERS = ("drloc", "token_labeling", "dhvt", "esvit", "networks")
MAX_BYTES = 1 << 20  # largest size of a YAML file
# SHARED are the top-level entries of a paper's YAML file that apply to all studies of the paper. SHARED_BY_KIND are the
# entries in `by_kind.yaml`, which apply to all studies of a kind.
SHARED = ("paper", "source", "recipe", "epochs", "full", "telling")
SHARED_BY_KIND = ("telling", "scales")
# Two additional kinds in `by_kind.yaml`: TUNING_KIND is for studies of kind "train" whose rows start from trained
# weights. ENLARGING_KIND is for studies that fine-tune at a larger image size (`like: enlarge`): their initial weights
# are trained on the same images at a smaller size.
TUNING_KIND = "tune"
ENLARGING_KIND = "enlarge"
KINDS_WITH_STARTS = ("detect", "segment", "frozen")  # kinds of studies in which every trained row needs initial weights
T = TypeVar("T")


@cache
def data_sets() -> Mapping[str, DataSet]:
    """Return the data sets of all studies by the names that the studies use."""
    return read_data_sets(FOLDER / "data_sets.yaml")


@cache
def studies() -> Mapping[str, Study]:
    """Return all studies by name. Studies of the same paper follow each other, in the order of the paper's tables."""
    by_kind = read_by_kind(FOLDER / "by_kind.yaml")
    files = [read_studies(FOLDER / f"{paper}.yaml", data_sets(), by_kind) for paper in PAPERS]
    return {name: study for file in files for name, study in file.items()}


def find_study(name: str) -> Study:
    """Return a study by its name."""
    names = studies()
    if name not in names:
        text = f"there is no study {name!r}{did_you_mean(name, names)}"
        raise UserError(f"{text}: 'paucal study list' shows all studies.")
    return names[name]


def read_data_sets(path: Path) -> dict[str, DataSet]:
    """Read a YAML file of data sets; return the data sets by name."""
    entries = _read_mapping(path)
    sets = {name: _make_dataclass(DataSet, entry, f"{path.name}: {name}") for name, entry in entries.items()}
    for name, data_set in sets.items():
        if not data_set.named and not data_set.how:
            raise UserError(f"{path.name}: {name} has neither 'named' nor 'how': add one of these entries.")
    return sets


def read_by_kind(path: Path) -> dict[str, Any]:
    """Read the entries that apply to all studies of a kind, and that override top-level entries of a paper's file."""
    content = _read_mapping(path)
    for kind, entry in content.items():
        _require_name(kind, (*RUN_METRICS, TUNING_KIND, ENLARGING_KIND), f"{path.name}: the kind")
        for name in entry:
            _require_name(name, SHARED_BY_KIND, f"{path.name}: {kind}: the entry")
    return content


def read_studies(
    path: Path, data_sets: Mapping[str, DataSet], by_kind: Mapping[str, Mapping[str, Any]] | None = None
) -> dict[str, Study]:
    """Read the YAML file of a paper; return the paper's studies by name. `by_kind` comes from `read_by_kind`."""
    content, by_kind = _read_mapping(path), by_kind or {}
    entries = {*SHARED, "title", "models", "scales", "columns", "studies"}
    if unknown := sorted(set(content) - entries):
        raise UserError(f"{path.name} has an unknown entry {unknown[0]!r}{did_you_mean(unknown[0], entries)}.")
    models = {name: _make_model(entry, f"{path.name}: {name}") for name, entry in content.get("models", {}).items()}
    shared = {name: content[name] for name in SHARED if name in content}
    studies_read: dict[str, Study] = {}
    for name, entry in content.get("studies", {}).items():
        location, entry = f"{path.name}: {name}", dict(entry)
        kind = str(entry.get("kind"))
        base_kind = entry.pop("like", None)
        if base_kind is not None:
            _require_name(base_kind, by_kind, f"{location}: the entry 'like'")
        base_kind = base_kind or (TUNING_KIND if kind == "train" and entry.get("starts") else kind)
        groups, columns = content.get("columns", {}), []
        for column in _require_list(entry.get("columns", []), f"{location}: columns"):
            if isinstance(column, str):  # the name of a group of columns
                _require_name(column, groups, f"{location}: the group of columns")
            columns += groups[column] if isinstance(column, str) else [column]
        entry["columns"] = columns
        if isinstance(entry.get("rows"), dict):
            entry["rows"] = _rows_of_other(entry["rows"], entry["columns"], studies_read, location)
        common = {"scales": content.get("scales", {}), **shared, **by_kind.get(base_kind, {})}
        scales = _make_scales(common["scales"], entry, location)
        studies_read[name] = _make_study(name, {**common, **entry, "scales": scales}, models, location)
        _check_study(studies_read[name], data_sets, location)
        for column in studies_read[name].columns:
            if column.study:
                _require_name(column.study, studies_read, f"{location}: the study of {column.name!r}")
    return studies_read


def _rows_of_other(
    rows: Mapping[str, Any], columns: list[Any], studies_read: Mapping[str, Study], location: str
) -> list[Any]:
    """Return the row entries of a study that repeats the rows of an earlier study, written as `rows: {of: NAME}`.

    Values are taken from the columns that both studies have. The optional entry `models` of `rows` maps names of rows
    to models, for rows that have no model in the earlier study. The entry `against` is the name of the reference row
    for times.
    """
    _require_name(str(rows.get("of")), studies_read, f"{location}: the entry 'of' of its rows")
    other, models = studies_read[str(rows["of"])], rows.get("models", {})
    for name in models:
        _require_name(name, [row.name for row in other.rows], f"{location}: the row of a model")
    index_of = {column.name: index for index, column in enumerate(other.columns)}
    sources = [index_of.get(column["name"]) for column in columns]
    entries = []
    for row in other.rows:
        model = models.get(row.name, row.model)
        against = {"against": rows["against"]} if model and row.name != rows.get("against") else {}
        values = [None if index is None else row.values[index] for index in sources]
        entries.append({"name": row.name, "model": model, "args": list(row.args), "values": values, **against})
    return entries


def _make_study(name: str, entry: Mapping[str, Any], models: Mapping[str, Model], location: str) -> Study:
    parts = {}
    for part, kind in (("columns", Column), ("rows", Row)):
        items = enumerate(_require_list(entry.get(part, []), f"{location}: {part}"), 1)
        parts[part] = [_make_dataclass(kind, item, f"{location}: {part[:-1]} {number}") for number, item in items]
    starts = {
        start_name: _make_dataclass(InitialWeights, start, f"{location}: the start {start_name!r}")
        for start_name, start in entry.get("starts", {}).items()
    }
    return _make_dataclass(Study, {**entry, **parts, "starts": starts, "name": name, "models": models}, location)


def _make_scales(shared: Mapping[str, Any], entry: Mapping[str, Any], location: str) -> dict[str, Scale]:
    """Return the smaller scales: the shared ones, updated with the study's own entries; a null entry removes one."""
    if entry.get("kind") not in RUN_METRICS:
        return {}
    own_scales = entry.get("scales", {})
    scales = {}
    for name in {**shared, **own_scales}:
        _require_name(name, SCALES[:-1], f"{location}: the scale")
        if name in own_scales and own_scales[name] is None:
            continue
        values = {**shared.get(name, {}), **own_scales.get(name, {})}
        for part, kind in (("teacher", Teacher), ("start_training", StartTraining)):
            if values.get(part) is not None:
                values[part] = _make_dataclass(kind, values[part], f"{location}: the {part} of {name}")
        scales[name] = _make_dataclass(Scale, values, f"{location}: {name}")
    return scales


def _make_model(entry: Any, location: str) -> Model:
    if not isinstance(entry, dict):
        raise UserError(f"{location} is not a model: give 'name' and 'gmacs'.")
    values = dict(entry)
    full = {name: values.pop(name) for name in ("name", "args") if name in values}
    if values.get("standin") is not None:
        values["standin"] = _make_dataclass(Architecture, values["standin"], f"{location}: the stand-in")
    model = _make_dataclass(Model, {**values, "full": _make_dataclass(Architecture, full, location)}, location)
    _require_name(model.network, NETWORKS, f"{location}: the network")
    if model.network and len(model.shape) != 2:
        text = "'shape' must be [height, width] for a model with a network"
        raise UserError(f"{location}: {text}, got {list(model.shape)}.")
    return model


def _make_dataclass(kind: type[T], entry: Any, location: str) -> T:
    """Make an object of the dataclass `kind` from a mapping, and check the types of the values. Lists become tuples."""
    if not isinstance(entry, dict):
        raise UserError(f"{location} is {entry!r}, expected a mapping of names to values.")
    hints, field_of = _type_hints(kind), {item.name: item for item in fields(kind)}  # type: ignore[arg-type]
    values = {}
    for name, value in entry.items():
        if name not in field_of:
            raise UserError(f"{location} has an unknown entry {name!r}{did_you_mean(str(name), field_of)}.")
        values[name] = _convert(value, hints[name], f"{location}: {name}")
    for name, item in field_of.items():
        if name not in values and item.default is MISSING and item.default_factory is MISSING:
            raise UserError(f"{location} has no entry {name!r}: add this entry.")
    return kind(**values)


# Cached, since the YAML files define about a thousand objects of a few dataclasses.
_type_hints = cache(typing.get_type_hints)


def _convert(value: Any, hint: Any, location: str) -> Any:
    members = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    for member in members:
        origin = typing.get_origin(member) or member
        if origin is tuple and isinstance(value, list):
            inner = typing.get_args(member)[0]
            return tuple(_convert(entry, inner, f"{location}, entry {number}") for number, entry in enumerate(value, 1))
        if origin is Mapping and isinstance(value, dict):
            return value
        if isinstance(value, bool) and origin is not bool:
            continue
        if origin is float and isinstance(value, int):
            return float(value)
        if isinstance(origin, type) and isinstance(value, origin):
            return value
    raise UserError(f"{location} is {value!r}, which has the wrong type.")


def _require_list(value: Any, location: str) -> list[Any]:
    if not isinstance(value, list):
        raise UserError(f"{location} is not a list.")
    return value


def _read_mapping(path: Path) -> dict[str, Any]:
    try:
        content = parse_yaml(read_text(path, MAX_BYTES))
    except (OSError, ValueError) as problem:
        raise UserError(f"{str(path)!r} cannot be read ({problem}): reinstall paucal.") from problem
    if not isinstance(content, dict):
        raise UserError(f"{str(path)!r} has no entries: reinstall paucal.")
    return content


def _require_name(word: str, names: Iterable[str], where: str) -> None:
    """Raise a UserError that begins with `where`, such as "FILE: the kind", if `word` is not one of `names`."""
    names = list(names)
    if word not in names:
        raise UserError(f"{where} is {word!r}{did_you_mean(word, names)}; expected one of {', '.join(names)}.")


def _check_study(study: Study, data_sets: Mapping[str, DataSet], where: str) -> None:
    _require_name(study.kind, KINDS, f"{where}: the kind")
    for column in study.columns:
        _require_name(column.metric, METRICS, f"{where}: the metric of {column.name!r}")
        if column.metric in DERIVED_METRICS and study.kind != "frozen":
            raise UserError(f"{where}: the metric of {column.name!r} is only for studies of kind 'frozen'.")
        if column in study.trained_columns and not column.data:
            raise UserError(f"{where}: the column {column.name!r} is measured by runs, so it needs an entry 'data'.")
    for row in study.rows:
        _check_row(study, row, f"{where}: {row.name!r}")
    for parts in (study.columns, study.rows):
        _check_names(parts, data_sets, where)
    _check_scales(study, where)
    for name, start in study.starts.items():
        _require_name(start.model, study.models, f"{where}: the model of the start {name!r}")
        _require_name(start.verb, ("train", "pretrain"), f"{where}: the verb of the start {name!r}")
        if start.tag and start.init != "timm":
            raise UserError(f"{where}: the start {name!r} has the tag {start.tag!r}, which needs 'init: timm'.")
    if study.draws and set(study.draws) != set(FIGURE_AXES):
        raise UserError(f"{where}: 'draws' has {', '.join(study.draws)}; expected {', '.join(FIGURE_AXES)}.")
    for name in study.draws.values():
        _require_name(name, [column.name for column in study.columns], f"{where}: the column that is drawn")
    _check_completeness(study, where)


def _check_completeness(study: Study, location: str) -> None:
    if study.trains and not (study.trained_rows and study.trained_columns):
        raise UserError(f"{location}: a study with runs needs at least one row and one column with models to train.")
    if study.trains and not study.scales and not study.without:
        raise UserError(f"{location}: the study has no smaller scale: add 'without' with the reason.")
    if not study.see and not study.rows:
        raise UserError(f"{location}: the study has no rows: add 'rows', or 'see' to say how to reproduce the study.")


def _check_row(study: Study, row: Row, location: str) -> None:
    if len(row.values) != len(study.columns):
        raise UserError(f"{location} has {len(row.values)} values, but there are {len(study.columns)} columns.")
    if row.deviations and len(row.deviations) != len(row.values):
        raise UserError(f"{location} has {len(row.deviations)} deviations for {len(row.values)} values.")
    if row.model:
        _require_name(row.model, study.models, f"{location}: the model")
    if row.start or ((study.starts or study.kind in KINDS_WITH_STARTS) and row in study.trained_rows):
        _require_name(row.start, study.starts, f"{location}: the start")
        model = study.starts[row.start].model
        if model in study.models and study.models[row.model].standin != study.models[model].standin:
            raise UserError(
                f"{location} has the start {row.start!r}, but its model {row.model} and the start's model {model} have "
                "different stand-ins."
            )
    for scale in study.scales.values():
        if row in study.rows_at(scale):
            if study.models[row.model].standin is None:
                raise UserError(f"{location}: {row.model} has no stand-in for the smaller scales.")
            if row.maps and scale.teacher is None:
                raise UserError(f"{location} needs label maps, but a smaller scale has no teacher.")


def _check_names(parts: Sequence[RowOrColumn], data_sets: Mapping[str, DataSet], location: str) -> None:
    names = [part.name for part in parts]
    for part in parts:
        if names.count(part.name) > 1:
            raise UserError(f"{location}: the name {part.name!r} occurs twice: names must be different.")
        if part.data:
            _require_name(part.data, data_sets, f"{location}: the data of {part.name!r}")
        if part.against:
            _require_name(part.against, names, f"{location}: the baseline of {part.name!r}")


def _check_scales(study: Study, location: str) -> None:
    for scale in study.scales.values():
        for name in scale.rows:
            _require_name(name, [row.name for row in study.trained_rows], f"{location}: the row of a scale")
        if study.starts and scale.start_training is None:
            raise UserError(f"{location}: the rows have starts, but a smaller scale has no 'start_training'.")
        if scale.start_training is not None and not scale.start_training.data and scale.teacher is None:
            raise UserError(
                f"{location}: a smaller scale whose 'start_training' has no 'data' needs a 'teacher' for the split."
            )
