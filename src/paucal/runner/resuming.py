"""Reopen the folder of a stopped run: its stored settings and split, and which settings a resumed run may change."""

import os
import shlex
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment

from paucal.data.images import ImageSet
from paucal.data.sources.joining import split_location
from paucal.data.splits.split import Split
from paucal.data.splits.split_csv import read_split
from paucal.runner.processes import launched_process_counts
from paucal.runs import RunFolder, open_run
from paucal.settings.options import check_ranges, earlier_names, flag, setting_fields, with_current_names
from paucal.settings.shared import JobSettings
from paucal.settings.values import convert_setting, setting_types
from paucal.types import UserError
from paucal.wording import counted, short_repr

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from paucal.runner.job import AnyJob

# Settings that may change when a run is resumed; on the CPU, only the number of processes changes the results.
CHANGEABLE = ("workers", "device", "devices", "nodes", "time_limit", "hang_after", "logger")
S = TypeVar("S", bound="DataclassInstance")
J = TypeVar("J", bound=JobSettings)


def resumed_process_counts(changes: Mapping[str, Any], settings: JobSettings) -> tuple[int, int]:
    """Return (processes per node, nodes) of a resumed run, from `changes`, or else the launcher, or else `settings`."""
    single_process = (1, 1) if TorchElasticEnvironment.detect() else None  # torchrun started a single process
    devices, nodes = launched_process_counts() or single_process or (settings.devices, settings.nodes)
    return changes.get("devices", devices), changes.get("nodes", nodes)


def with_processes(settings: J, devices: int, nodes: int) -> tuple[J, dict[str, str]]:
    """Return settings for another number of processes, and the reason for each changed setting.

    Each step still uses the same images, in an order that depends only on seed and epoch. A process takes at most as
    many images per forward pass as before, since more might not fit in its memory, but makes more passes per step.
    """
    batch, processes = settings.effective_batch, devices * nodes
    images_per_process, remainder = divmod(batch, processes)
    if remainder or not images_per_process:
        divisors = [n for n in range(1, batch + 1) if batch % n == 0]
        nearest = sorted(sorted(divisors, key=lambda n: abs(n - processes))[:2])
        raise UserError(
            f"{counted(processes, 'process', 'processes')} cannot share the {counted(batch, 'image')} of a step of "
            f"this run equally: the number of processes must be {' or '.join(map(str, nearest))}."
        )
    max_batch_size = min(images_per_process, settings.batch_size_or_1)
    batch_size = max(n for n in range(1, max_batch_size + 1) if images_per_process % n == 0)
    text = f"{counted(processes, 'process shares', 'processes share')} the {batch} images of a step"
    strategy = "auto" if processes == 1 else settings.strategy if settings.strategy == "fsdp" else "ddp"
    new_settings: dict[str, Any] = {"devices": devices, "nodes": nodes, "strategy": strategy}
    new_settings |= {"batch_size": batch_size, "accumulate": images_per_process // batch_size}
    return replace(settings, **new_settings), dict.fromkeys(new_settings, f"resumed: {text}")


def reopen(path: str | Path, changes: Mapping[str, Any], job: "AnyJob") -> tuple[RunFolder, Any, dict[str, str]]:
    """Return a run to resume, its settings after `changes`, and the origin of each setting, without writing a file."""
    allowed = (*CHANGEABLE, *input_names(job))
    refused = [name for name in changes if name not in allowed]
    if refused:
        raise UserError(
            f"--resume uses the settings stored in the run: remove {', '.join(map(flag, refused))} "
            f"(only {', '.join(map(flag, CHANGEABLE))} may change, and if files have moved, "
            f"{', '.join(map(flag, input_names(job)))})."
        )
    run = open_run(path)
    if run.finished:
        raise UserError(f"the run {str(run.path)!r} is finished: start a new run with 'paucal {job.verb}'.")
    settings, origins = stored_settings(run, job.settings_type, job.verb)
    if set(changes) & set(input_names(job)):
        # `init` is left out, since its path may no longer exist.
        moved = job.with_absolute_paths(replace(settings, init=None, **changes))
        settings = replace(moved, init=settings.init)
    direct_names = set(CHANGEABLE) - {"devices", "nodes"}
    settings = replace(settings, **{name: value for name, value in changes.items() if name in direct_names})
    check_ranges(settings)
    for name in input_names(job):
        for place in split_location(getattr(settings, name) or ""):
            # A relative value is the name of a published data set.
            if os.path.isabs(place) and not os.path.exists(place):
                new_location = "DATA" if name == "data" else f"{flag(name)} PLACE"
                raise UserError(
                    f"{place!r} of the run {str(run.path)!r} does not exist: give the new location, as in 'paucal "
                    f"{job.verb} --resume {shlex.quote(str(run.path))} {new_location}'."
                )
    origins = {**origins, **dict.fromkeys(changes, "flag of --resume")}
    devices, nodes = resumed_process_counts(changes, settings)
    if (devices, nodes) != (settings.devices, settings.nodes):
        settings, reasons = with_processes(settings, devices, nodes)
        origins |= reasons
    return run, settings, origins


def input_names(job: "AnyJob") -> tuple[str, ...]:
    """Return the names of the settings for files and folders that a resumed run reads, and that may have moved."""
    return tuple(name for name in job.reads if name not in ("init", "split"))


def store_changes(run: RunFolder, settings: Any, origins: Mapping[str, str]) -> None:
    """Store changed settings in the run's config."""
    config = run.read_yaml(run.config.name)
    run.write_yaml(run.config.name, {**config, "settings": asdict(settings), "origin": dict(origins)})


def stored_split(run: RunFolder, images: ImageSet) -> Split:
    """Return the stored split of a run, with the description from the run's config."""
    split = read_split(run.split, images)
    description = run.read_yaml(run.config.name).get("split")
    return Split(split.strings, str(description), split.groups) if description else split


def typed_settings(values: Any, settings_type: type[S]) -> S:
    """Build settings from the values in a file; raise a TypeError for an unknown name or a value of a wrong type."""
    if not isinstance(values, dict):
        raise TypeError("not a mapping of settings")
    known_fields, hints, values_by_name = setting_fields(settings_type), setting_types(settings_type), {}
    for name, value in values.items():
        if name not in hints:
            raise TypeError(f"there is no setting {short_repr(name)}")
        if value is None and name in known_fields and known_fields[name].default is not None:
            raise TypeError(f"{name} cannot be empty")
        try:
            values_by_name[name] = None if value is None else convert_setting(name, value, hints[name], "")
        except UserError as problem:
            raise TypeError(f"{name} cannot be {short_repr(value)}") from problem
    return settings_type(**with_current_names(values_by_name, settings_type))


def stored_settings(run: RunFolder, settings_type: type[S], verb: str) -> tuple[S, dict[str, str]]:
    """Return the stored settings of a run, and the origin of each setting by name."""
    config = run.read_yaml(run.config.name)
    if run.verb != verb:
        raise UserError(f"the run {str(run.path)!r} was made by 'paucal {run.verb}': use 'paucal {run.verb} --resume'.")
    try:
        current_names = {name: current_name for name, (current_name, _) in earlier_names(settings_type).items()}
        origins = {current_names.get(name, str(name)): str(text) for name, text in dict(config["origin"]).items()}
        if unknown := origins.keys() - setting_fields(settings_type).keys():
            raise TypeError(f"there is no setting {short_repr(min(unknown))}")
        values = config["settings"]
        values = run.with_kept_frame(values) if isinstance(values, dict) else values
        return typed_settings(values, settings_type), origins
    except KeyError as problem:
        raise UserError(
            f"{str(run.config)!r} is damaged ({problem} is missing): restore the file or train again."
        ) from problem
    except (TypeError, ValueError) as problem:
        raise UserError(
            f"{str(run.config)!r} is damaged or from another version of paucal ({problem}): restore the file or train "
            "again."
        ) from problem
