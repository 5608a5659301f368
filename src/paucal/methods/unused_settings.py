"""Find and refuse settings that belong to methods and losses that a run does not use."""

from collections.abc import Iterable, Mapping
from typing import Any

from paucal.methods.contract import MethodOrLoss
from paucal.settings.options import flag, setting_fields
from paucal.types import UserError


def unused_settings(
    used_entries: Iterable[MethodOrLoss], all_entries: Iterable[MethodOrLoss]
) -> dict[str, MethodOrLoss]:
    """Return the settings that have no effect in a run, as a dict from the setting's name to its entry.

    `used_entries` are the entries of the run; `all_entries` are all entries.
    """
    in_use = {name for entry in used_entries for name in entry.own_settings}
    return {name: entry for entry in all_entries for name in sorted(entry.own_settings - in_use)}


def refuse_unused(
    settings: Any, origins: Mapping[str, str], used_entries: Iterable[MethodOrLoss], all_entries: Iterable[MethodOrLoss]
) -> None:
    """Raise a UserError if the user has given a setting that has no effect in the run.

    A config file may contain every setting, so default values in a config file are accepted; a flag is refused even if
    it gives the default. `origins` has the origin of each given setting; see `unused_settings` for `used_entries` and
    `all_entries`.
    """
    unused, declared = unused_settings(used_entries, all_entries), setting_fields(settings)
    for name, origin in origins.items():
        is_default_of_config = origin == "config" and getattr(settings, name) == declared[name].default
        if name in unused and not is_default_of_config:
            entry = unused[name]
            advice = entry.advice.format(flag=flag(name), method=settings.method, name=entry.name)
            raise UserError(f"{flag(name)} has no effect {advice}.")
