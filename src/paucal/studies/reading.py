"""Reading the published numbers: YAML files of this package into studies, with every entry looked at."""

import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, TypeVar

from paucal.reading import parse_yaml, read_text
from paucal.studies.study import (
    KINDS,
    METRICS,
    NETWORKS,
    SCALES,
    Architecture,
    Column,
    DataSet,
    Model,
    Part,
    Row,
    Scale,
    Study,
    Teacher,
)
from paucal.types import UserError
from paucal.wording import did_you_mean

MOST_BYTES = 1 << 20
T = TypeVar("T")
_SHARED = ("paper", "source", "recipe", "epochs", "full", "telling")  # of all studies of a file


def read_data_sets(path: Path) -> dict[str, DataSet]:
    """Read the sets of images.

    Raises:
        UserError: the file cannot be read, or an entry is none.
    """
    found = {name: _made(DataSet, entry, f"{path.name}: {name}") for name, entry in _mapping(path).items()}
    for name, one in found.items():
        if not one.named and not one.how:
            raise UserError(f"{path.name}: {name} has neither a name in paucal nor a word on how it is had: add one.")
    return found


def read_studies(path: Path, data_sets: Mapping[str, DataSet]) -> dict[str, Study]:
    """Read the studies of a paper.

    Args:
        path: of its file.
        data_sets: that columns and rows may name.

    Raises:
        UserError: the file cannot be read, or an entry is wrong; the message has the study and the row.
    """
    content = _mapping(path)
    known = {*_SHARED, "title", "models", "scales", "studies"}
    if unknown := sorted(set(content) - known):
        raise UserError(f"{path.name} has an unknown entry {unknown[0]!r}{did_you_mean(unknown[0], known)}.")
    models = {name: _model(entry, f"{path.name}: {name}") for name, entry in content.get("models", {}).items()}
    shared = {name: content[name] for name in _SHARED if name in content}
    found = {}
    for name, entry in content.get("studies", {}).items():
        where = f"{path.name}: {name}"
        scales = _scales(content.get("scales", {}), entry, where)
        found[name] = _study(name, {**shared, **entry, "scales": scales}, models, where)
        check_study(found[name], data_sets, where)
    return found


def check_study(study: Study, data_sets: Mapping[str, DataSet], where: str) -> None:
    """Look whether the entries of a study fit each other.

    Raises:
        UserError: they do not.
    """
    _known(study.kind, KINDS, f"{where}: the kind")
    for column in study.columns:
        _known(column.metric, METRICS, f"{where}: the metric of {column.name!r}")
        if column in study.trained_columns and not column.data:
            raise UserError(f"{where}: the column {column.name!r} is trained and names no data.")
    for row in study.rows:
        _check_row(study, row, f"{where}: {row.name!r}")
    _check_names(study.columns, data_sets, where)
    _check_names(study.rows, data_sets, where)
    for scale in study.scales.values():
        for name in scale.rows:
            _known(name, [row.name for row in study.trained_rows], f"{where}: the row of a scale")
    _check_sense(study, where)


def _check_names(parts: Sequence[Part], data_sets: Mapping[str, DataSet], where: str) -> None:
    names = [part.name for part in parts]
    for part in parts:
        if names.count(part.name) > 1:
            raise UserError(f"{where}: {part.name!r} is there twice: rename one.")
        if part.data:
            _known(part.data, data_sets, f"{where}: the data of {part.name!r}")
        if part.against:
            _known(part.against, names, f"{where}: what {part.name!r} is compared with")


def _check_sense(study: Study, where: str) -> None:
    if study.trains and not (study.trained_rows and study.trained_columns):
        raise UserError(f"{where}: it trains, and has no row or no column that does.")
    if study.trains and not study.scales and not study.without:
        raise UserError(f"{where}: it has no smaller scale and does not say why: add 'without'.")
    if not study.see and not study.rows:
        raise UserError(f"{where}: nothing is published of it and nothing is said of how it is made: add 'see'.")


def _check_row(study: Study, row: Row, where: str) -> None:
    if len(row.values) != len(study.columns):
        raise UserError(f"{where} has {len(row.values)} values, and there are {len(study.columns)} columns.")
    if row.deviations and len(row.deviations) != len(row.values):
        raise UserError(f"{where} has {len(row.deviations)} deviations for {len(row.values)} values.")
    if row.model:
        _known(row.model, study.models, f"{where}: the model")
    for scale in study.scales.values():
        needed = row in study.trained_rows and (not scale.rows or row.name in scale.rows)
        if needed and study.models[row.model].standin is None:
            raise UserError(f"{where}: {row.model} has no stand-in for the smaller scales.")
        if needed and row.maps and scale.teacher is None:
            raise UserError(f"{where} wants label maps, and a smaller scale has no teacher.")


def _study(name: str, entry: Mapping[str, Any], models: Mapping[str, Model], where: str) -> Study:
    made = dict(entry)
    for part, kind in (("columns", Column), ("rows", Row)):
        entries = made.get(part, [])
        if not isinstance(entries, list):
            raise UserError(f"{where}: {part} is no list.")
        made[part] = [_made(kind, one, f"{where}: {part[:-1]} {number}") for number, one in enumerate(entries, 1)]
    return _made(Study, {**made, "name": name, "models": models}, where)


def _scales(shared: Mapping[str, Any], entry: Mapping[str, Any], where: str) -> dict[str, Scale]:
    """Return the smaller scales of a study: those of its file, changed by its own; None leaves one out."""
    if entry.get("kind") not in ("train", "pretrain"):
        return {}
    own = entry.get("scales", {})
    found = {}
    for name in {**shared, **own}:
        _known(name, SCALES[:-1], f"{where}: the scale")
        if name in own and own[name] is None:
            continue
        values = {**shared.get(name, {}), **own.get(name, {})}
        teacher = values.get("teacher")
        values["teacher"] = None if teacher is None else _made(Teacher, teacher, f"{where}: the teacher of {name}")
        found[name] = _made(Scale, values, f"{where}: {name}")
    return found


def _model(entry: Any, where: str) -> Model:
    if not isinstance(entry, dict):
        raise UserError(f"{where} is no model: give its name and its GMACs.")
    values = {name: value for name, value in entry.items() if name not in ("name", "args")}
    own = {name: value for name, value in entry.items() if name in ("name", "args")}
    if values.get("standin") is not None:
        values["standin"] = _made(Architecture, values["standin"], f"{where}: its stand-in")
    made = _made(Model, {**values, "full": _made(Architecture, own, where)}, where)
    _known(made.network, NETWORKS, f"{where}: the network")
    if made.network and len(made.shape) != 2:
        raise UserError(f"{where}: the images of a network have a height and a width, got {made.shape}.")
    return made


def _made(kind: type[T], entry: Any, where: str) -> T:
    """Make a dataclass of a mapping, each value of the type of its field; lists become tuples."""
    if not isinstance(entry, dict):
        raise UserError(f"{where} is {entry!r}, expected names with values.")
    hints, own = typing.get_type_hints(kind), {item.name: item for item in fields(kind)}  # type: ignore[arg-type]
    values = {}
    for name, value in entry.items():
        if name not in own:
            raise UserError(f"{where} has an unknown entry {name!r}{did_you_mean(str(name), own)}.")
        values[name] = _fitted(value, hints[name], f"{where}: {name}")
    for name, item in own.items():
        if name not in values and item.default is MISSING and item.default_factory is MISSING:
            raise UserError(f"{where} lacks {name!r}.")
    return kind(**values)


def _fitted(value: Any, hint: Any, where: str) -> Any:
    members = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    for member in members:
        origin = typing.get_origin(member) or member
        if origin is tuple and isinstance(value, list):
            inner = typing.get_args(member)[0]
            return tuple(_fitted(one, inner, f"{where}, entry {number}") for number, one in enumerate(value, 1))
        if origin is Mapping and isinstance(value, dict):
            return value
        if isinstance(value, bool) and origin is not bool:
            continue
        if origin is float and isinstance(value, int):
            return float(value)
        if isinstance(origin, type) and isinstance(value, origin):
            return value
    raise UserError(f"{where} is {value!r}, which it cannot be.")


def _known(word: str, names: typing.Iterable[str], where: str) -> None:
    names = list(names)
    if word not in names:
        raise UserError(f"{where} is {word!r}{did_you_mean(word, names)}; expected one of {', '.join(names)}.")


def _mapping(path: Path) -> dict[str, Any]:
    try:
        content = parse_yaml(read_text(path, MOST_BYTES))
    except (OSError, ValueError) as problem:
        raise UserError(f"{str(path)!r} cannot be read ({problem}): install paucal anew.") from problem
    if not isinstance(content, dict):
        raise UserError(f"{str(path)!r} holds no entries: install paucal anew.")
    return content
