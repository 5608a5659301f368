"""Resuming a run: its stored settings, and those that may change."""

import os
import shlex
import typing
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from jsonargparse import ArgumentParser

from paucal.data.images import ImageSet
from paucal.data.sources.several import roots_of
from paucal.data.splits.file import read_split
from paucal.data.splits.split import Split
from paucal.runs import RunFolder, open_run
from paucal.settings.options import check_ranges, flag
from paucal.types import UserError
from paucal.wording import shortened

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from paucal.runner.job import Job

MOST_SHOWN = 80  # characters of a value
# Settings that may change when a run goes on: on the CPU none of them changes the result.
CHANGEABLE = ("workers", "device", "time_limit", "logger")
S = TypeVar("S", bound="DataclassInstance")


def reopen(path: str | Path, changes: Mapping[str, Any], job: "Job[Any, Any]") -> tuple[RunFolder, Any, dict[str, str]]:
    """Open a run to resume; return it with its changed settings and their origins, without writing anything.

    Raises:
        UserError: There is no such run, it is finished, a setting may not change, or files it needs are missing.
    """
    allowed = (*CHANGEABLE, *places_of(job))
    refused = [name for name in changes if name not in allowed]
    if refused:
        raise UserError(
            f"--resume uses the settings stored in the run; leave out {', '.join(map(flag, refused))} "
            f"(only {', '.join(map(flag, CHANGEABLE))} may change, and where files have moved "
            f"{', '.join(map(flag, places_of(job)))})."
        )
    run = open_run(path)
    if run.finished:
        raise UserError(f"the run {str(run.path)!r} is finished; start another with 'paucal {job.verb}'.")
    settings, origin = stored_settings(run, job.kind, job.verb)
    if set(changes) & set(places_of(job)):
        pinned = job.pin(replace(settings, init=None, **changes))
        settings = replace(pinned, init=settings.init)
    settings = replace(settings, **{name: value for name, value in changes.items() if name in CHANGEABLE})
    check_ranges(settings)
    _require_places(run, settings, job)
    return run, settings, {**origin, **dict.fromkeys(changes, "flag of --resume")}


def places_of(job: "Job[Any, Any]") -> tuple[str, ...]:
    """Return the settings that name inputs which a run reads until its end, and which may have moved."""
    return tuple(name for name in job.reads if name not in ("init", "split"))


def _require_places(run: RunFolder, settings: Any, job: "Job[Any, Any]") -> None:
    """Refuse to resume a run whose stored inputs are missing, and explain how to give their new place."""
    for name in places_of(job):
        for place in roots_of(getattr(settings, name) or ""):
            if os.path.isabs(place) and not os.path.exists(place):  # names of published sets are relative
                new = "DATA" if name == "data" else f"{flag(name)} PLACE"
                raise UserError(
                    f"{place!r} of the run {str(run.path)!r} does not exist: give its new place, as in 'paucal "
                    f"{job.verb} --resume {shlex.quote(str(run.path))} {new}'."
                )


def store_changes(run: RunFolder, settings: Any, origin: Mapping[str, str]) -> None:
    """Store changed settings in the run's config."""
    config = run.read_yaml(run.config.name)
    run.write_yaml(run.config.name, {**config, "settings": asdict(settings), "origin": dict(origin)})


def stored_split(run: RunFolder, images: ImageSet) -> Split:
    """Return the stored split of a run with its description.

    Raises:
        UserError: The file cannot be read, or the images are not those of the run.
    """
    split = read_split(run.split, images)
    description = run.read_yaml(run.config.name).get("split")
    return replace(split, description=str(description)) if description else split


def typed_settings(values: Any, kind: type[S]) -> S:
    """Build settings from the values of a file, each of which must have its setting's type.

    Raises:
        TypeError: A name is unknown, or a value has another type.
    """
    if not isinstance(values, dict):
        raise TypeError("no mapping of settings")
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(kind)
    known = {item.name for item in fields(kind)}
    if unknown := [name for name in values if name not in known]:
        raise TypeError(f"there is no setting {shortened(repr(unknown[0]), MOST_SHOWN)}")
    hints = typing.get_type_hints(kind)
    for name, value in values.items():
        if value is None and type(None) not in typing.get_args(hints[name]):  # the parser accepts None everywhere
            raise TypeError(f"{name} cannot be empty")
    try:
        checked = parser.parse_object(values)
    except Exception as problem:  # the parser raises several types with its own messages
        raise TypeError(_describe_invalid(parser, values)) from problem
    return kind(**vars(checked))


def _describe_invalid(parser: ArgumentParser, values: Mapping[str, Any]) -> str:
    """Return which value is invalid."""
    for name, value in values.items():
        try:
            parser.parse_object({name: value})
        except Exception:  # as above
            return f"{name} cannot be {shortened(repr(value), MOST_SHOWN)}"
    return "its settings contradict each other"


def stored_settings(run: RunFolder, kind: type[S], verb: str) -> tuple[S, dict[str, str]]:
    """Return the settings of a run and the origin of each.

    Raises:
        UserError: They cannot be read, or belong to another verb.
    """
    config = run.read_yaml(run.config.name)
    if run.verb != verb:
        raise UserError(f"the run {str(run.path)!r} was made by 'paucal {run.verb}': use 'paucal {run.verb} --resume'.")
    try:
        origin = {str(name): str(text) for name, text in dict(config["origin"]).items()}
        return typed_settings(config["settings"], kind), origin
    except KeyError as problem:
        raise UserError(f"{str(run.config)!r} is damaged (it lacks {problem}): restore it or train anew.") from problem
    except (TypeError, ValueError) as problem:
        raise UserError(
            f"{str(run.config)!r} is damaged or not of this version of paucal ({problem}): restore it or train anew."
        ) from problem
