"""Going on with a run: what is stored of it, and what may change."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from jsonargparse import ArgumentParser

from paucal.data.images import ImageSet
from paucal.data.split_file import read_split
from paucal.data.splits import Split
from paucal.recipes.checks import check_ranges
from paucal.recipes.settings import flag
from paucal.runs import RunFolder, open_run
from paucal.types import UserError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

# Settings that may change when a run goes on: on the CPU none of them changes the result.
CHANGEABLE = ("workers", "device", "time_limit")
S = TypeVar("S", bound="DataclassInstance")
VERBS = {"TrainSettings": "train", "PretrainSettings": "pretrain"}  # which make runs of which settings


def reopen(path: str | Path, changes: Mapping[str, Any], kind: type[S]) -> tuple[RunFolder, S, dict[str, str]]:
    """Open a run that is to go on; return it with its settings as changed and their origins, and write nothing.

    Raises:
        UserError: there is no such run, it is finished, or a setting may not change.
    """
    refused = [name for name in changes if name not in CHANGEABLE]
    if refused:
        raise UserError(
            f"--resume goes on with the settings stored in the run; leave out {', '.join(map(flag, refused))} "
            f"(only {', '.join(map(flag, CHANGEABLE))} may change)."
        )
    run = open_run(path)
    if (run.path / "summary.json").exists():
        raise UserError(f"the run {str(run.path)!r} is finished; start another with 'paucal {VERBS[kind.__name__]}'.")
    settings, origin = stored_settings(run, kind)
    settings = replace(settings, **changes)
    check_ranges(settings)
    return run, settings, {**origin, **dict.fromkeys(changes, "flag of --resume")}


def store_changes(run: RunFolder, settings: Any, origin: Mapping[str, str]) -> None:
    """Write changed settings into the run's config, where the other processes and the next resumption find them."""
    config = run.read_yaml(run.config.name)
    run.write_yaml(run.config.name, {**config, "settings": asdict(settings), "origin": dict(origin)})


def stored_split(run: RunFolder, images: ImageSet) -> Split:
    """Return the split of a run, described as when it was made.

    Raises:
        UserError: the file cannot be read, or the images are not those of the run.
    """
    split = read_split(run.split, images)
    words = run.read_yaml(run.config.name).get("split")
    return replace(split, description=str(words)) if words else split


def typed_settings(values: Any, kind: type[S]) -> S:
    """Build settings of a kind from values of a file, each of which must be of its setting's type.

    Raises:
        TypeError: there is an unknown name or a value of another type.
    """
    if not isinstance(values, dict):
        raise TypeError("no mapping of settings")
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(kind)
    try:
        checked = parser.parse_object(values)
    except Exception as problem:  # the parser has several
        raise TypeError(" ".join(str(problem).split())[:200]) from problem
    return kind(**vars(checked))


def stored_settings(run: RunFolder, kind: type[S]) -> tuple[S, dict[str, str]]:
    """Return the settings of a run and the origin of each.

    Raises:
        UserError: they cannot be read, or are those of another verb.
    """
    config = run.read_yaml(run.config.name)
    verb, wanted = config.get("verb", "train"), VERBS.get(kind.__name__, "train")
    if verb != wanted:
        raise UserError(f"the run {str(run.path)!r} was made by 'paucal {verb}': use 'paucal {verb} --resume'.")
    try:
        origin = {str(name): str(text) for name, text in dict(config["origin"]).items()}
        return typed_settings(config["settings"], kind), origin
    except (KeyError, TypeError, ValueError) as problem:
        raise UserError(f"{str(run.config)!r} is not of this version of paucal ({problem}); train anew.") from problem
