"""The published numbers: YAML files of this package, read into studies with every entry checked."""

import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, fields
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from paucal.reading import parse_yaml, read_text
from paucal.studies.checking import check_study, known
from paucal.studies.study import (
    NETWORKS,
    SCALES,
    TRAINED,
    Architecture,
    Column,
    DataSet,
    Lesson,
    Model,
    Row,
    Scale,
    Start,
    Study,
    Teacher,
)
from paucal.types import UserError
from paucal.wording import did_you_mean

MOST_BYTES = 1 << 20
T = TypeVar("T")
_SHARED = ("paper", "source", "recipe", "epochs", "full", "telling")  # of all studies of a file
_BY_KIND = ("telling", "scales")  # of all studies of a kind, whichever paper they are of
_TUNE = "tune"  # among the kinds there: studies of kind "train" whose rows begin with something
_ENLARGE = "enlarge"  # likewise, where a study says `like: enlarge`: they begin with the same images at fewer pixels


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


def read_by_kind(path: Path) -> dict[str, Any]:
    """Read what studies of a kind share, whichever paper they are of; it takes the place of what their file shares.

    Raises:
        UserError: the file cannot be read, or an entry is wrong.
    """
    content = _mapping(path)
    for kind, entry in content.items():
        known(kind, (*TRAINED, _TUNE, _ENLARGE), f"{path.name}: the kind")
        for name in entry:
            known(name, _BY_KIND, f"{path.name}: {kind}: the entry")
    return content


def read_studies(
    path: Path, data_sets: Mapping[str, DataSet], by_kind: Mapping[str, Mapping[str, Any]] | None = None
) -> dict[str, Study]:
    """Read the studies of a paper.

    Args:
        path: of its file.
        data_sets: that columns and rows may name.
        by_kind: what studies of a kind share, see `read_by_kind`.

    Raises:
        UserError: the file cannot be read, or an entry is wrong; the message has the study and the row.
    """
    content = _mapping(path)
    entries = {*_SHARED, "title", "models", "scales", "columns", "studies"}
    if unknown := sorted(set(content) - entries):
        raise UserError(f"{path.name} has an unknown entry {unknown[0]!r}{did_you_mean(unknown[0], entries)}.")
    models = {name: _model(entry, f"{path.name}: {name}") for name, entry in content.get("models", {}).items()}
    shared = {name: content[name] for name in _SHARED if name in content}
    found = {}
    for name, entry in content.get("studies", {}).items():
        where = f"{path.name}: {name}"
        entry, alike = _without_like(entry, by_kind or {}, where)
        entry["columns"] = _columns(entry.get("columns", []), content.get("columns", {}), where)
        entry = _with_rows_of(entry, found, where)
        own = {"scales": content.get("scales", {}), **shared, **(by_kind or {}).get(alike, {})}
        scales = _scales(own.pop("scales"), entry, where)
        found[name] = _study(name, {**own, **entry, "scales": scales}, models, where)
        check_study(found[name], data_sets, where)
        for column in found[name].columns:
            if column.study:
                known(column.study, found, f"{where}: the study of {column.name!r}")
    return found


def _with_rows_of(entry: dict[str, Any], found: Mapping[str, Study], where: str) -> dict[str, Any]:
    """Return a study's entry with the rows of an earlier one, where it names one: `rows: {of: NAME}`.

    Values are those of the columns that both have; `models` names models that the other does not train, and `against`
    the row that sets the scale of times.
    """
    rows = entry.get("rows")
    if not isinstance(rows, dict):
        return entry
    known(str(rows.get("of")), found, f"{where}: the study whose rows it has")
    other, models = found[str(rows["of"])], rows.get("models", {})
    for name in models:
        known(name, [row.name for row in other.rows], f"{where}: the row of a model")
    places = {column.name: place for place, column in enumerate(other.columns)}
    own = [places.get(column["name"]) for column in entry["columns"]]
    made = []
    for row in other.rows:
        model = models.get(row.name, row.model)
        against = {"against": rows["against"]} if model and row.name != rows.get("against") else {}
        values = [None if place is None else row.values[place] for place in own]
        made.append({"name": row.name, "model": model, "args": list(row.args), "values": values, **against})
    return {**entry, "rows": made}


def _without_like(entry: Mapping[str, Any], by_kind: Mapping[str, Any], where: str) -> tuple[dict[str, Any], str]:
    """Return a study's entry without `like`, and with which others it shares: what it says, or those of its kind."""
    own = dict(entry)
    kind = str(own.get("kind"))
    said = own.pop("like", None)
    if said is not None:
        known(said, by_kind, f"{where}: what it is like")
    return own, said or (_TUNE if kind == "train" and own.get("starts") else kind)


def _columns(entries: Any, groups: Mapping[str, Any], where: str) -> list[Any]:
    """Return the columns of a study, with those of a group of its file in the place of the group's name."""
    if not isinstance(entries, list):
        raise UserError(f"{where}: columns is no list.")
    found = []
    for entry in entries:
        if isinstance(entry, str):
            known(entry, groups, f"{where}: the group of columns")
        found += groups[entry] if isinstance(entry, str) else [entry]
    return found


def _study(name: str, entry: Mapping[str, Any], models: Mapping[str, Model], where: str) -> Study:
    made = dict(entry)
    for part, kind in (("columns", Column), ("rows", Row)):
        entries = made.get(part, [])
        if not isinstance(entries, list):
            raise UserError(f"{where}: {part} is no list.")
        made[part] = [_made(kind, one, f"{where}: {part[:-1]} {number}") for number, one in enumerate(entries, 1)]
    starts = entry.get("starts", {})
    made["starts"] = {key: _made(Start, one, f"{where}: the start {key!r}") for key, one in starts.items()}
    return _made(Study, {**made, "name": name, "models": models}, where)


def _scales(shared: Mapping[str, Any], entry: Mapping[str, Any], where: str) -> dict[str, Scale]:
    """Return the smaller scales of a study: those of its file, changed by its own; None leaves one out."""
    if entry.get("kind") not in TRAINED:
        return {}
    own = entry.get("scales", {})
    found = {}
    for name in {**shared, **own}:
        known(name, SCALES[:-1], f"{where}: the scale")
        if name in own and own[name] is None:
            continue
        values = {**shared.get(name, {}), **own.get(name, {})}
        for part, kind in (("teacher", Teacher), ("lesson", Lesson)):
            entry_of = values.get(part)
            values[part] = None if entry_of is None else _made(kind, entry_of, f"{where}: the {part} of {name}")
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
    known(made.network, NETWORKS, f"{where}: the network")
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


def _mapping(path: Path) -> dict[str, Any]:
    try:
        content = parse_yaml(read_text(path, MOST_BYTES))
    except (OSError, ValueError) as problem:
        raise UserError(f"{str(path)!r} cannot be read ({problem}): install paucal anew.") from problem
    if not isinstance(content, dict):
        raise UserError(f"{str(path)!r} holds no entries: install paucal anew.")
    return content


FOLDER = Path(__file__).parent / "published"
PAPERS = ("drloc", "token_labeling", "dhvt", "esvit", "networks")


@cache
def data_sets() -> Mapping[str, DataSet]:
    """Return the sets of images that studies name."""
    return read_data_sets(FOLDER / "data_sets.yaml")


@cache
def studies() -> Mapping[str, Study]:
    """Return all studies, paper after paper, in the order of their tables.

    Raises:
        UserError: a file is damaged.
    """
    found: dict[str, Study] = {}
    by_kind = read_by_kind(FOLDER / "by_kind.yaml")
    for paper in PAPERS:
        found.update(read_studies(FOLDER / f"{paper}.yaml", data_sets(), by_kind))
    return found


def find_study(name: str) -> Study:
    """Return a study by its name.

    Raises:
        UserError: there is none; the message has the nearest.
    """
    known = studies()
    if name not in known:
        raise UserError(f"there is no study {name!r}{did_you_mean(name, known)}; 'paucal study list' shows all.")
    return known[name]
