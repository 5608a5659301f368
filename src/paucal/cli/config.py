"""Read the YAML file that `--config` names; the file contains settings by name."""

from collections.abc import Mapping
from typing import Any

from paucal.reading import MAX_CONFIG_BYTES, expand_user_path, parse_yaml, read_decoded
from paucal.settings.origins import is_automatic
from paucal.settings.values import convert_setting
from paucal.types import UserError
from paucal.wording import did_you_mean

# Settings in a run's `config.yaml` that are ignored when the file is given to `--config` to repeat the run.
_IGNORED_ON_REPEAT = ("output", "overwrite", "time_limit")


def read_config(name: str, hints: Mapping[str, Any], verb: str) -> dict[str, Any]:
    """Return the settings in a config file, converted to their types.

    Settings without a value are left out. If the file is the `config.yaml` of a run, settings for which the run itself
    chose None stay None.

    Args:
        name: Path of the file.
        hints: Type hint of each valid setting, by name.
        verb: Name of the command, for messages.
    """
    settings = {}
    content, chosen_by_run = _read_settings(name)
    for key, value in content.items():
        setting = str(key).replace("-", "_")
        if setting not in hints:
            suggestion = did_you_mean(setting, hints)
            raise UserError(f"unknown key {str(key)!r} in the config{suggestion}; see 'paucal {verb} --help'.")
        if value is not None:
            settings[setting] = convert_setting(setting, value, hints[setting], verb, parse_text=True)
        elif key in chosen_by_run:
            settings[setting] = None
    return settings


def _read_settings(name: str) -> tuple[dict[Any, Any], set[Any]]:
    """Return the settings in a config file and, for the `config.yaml` of a run, the names of settings the run chose.

    In the `config.yaml` of a run, the settings are below the key "settings".
    """
    path = expand_user_path(name, "--config")
    try:
        content = parse_yaml(read_decoded(path, MAX_CONFIG_BYTES).text, as_text=True)
    except FileNotFoundError:
        raise UserError(f"--config: the file {name!r} does not exist; check the path.") from None
    except ValueError as problem:
        raise UserError(f"--config: {name!r} cannot be read ({problem}); correct the file.") from None
    if not content or not isinstance(content, dict):
        raise UserError(f"--config: {name!r} contains no settings; expected lines such as 'epochs: 30'.")
    if not isinstance(content.get("settings"), dict) or not isinstance(content.get("origin"), dict):
        return content, set()
    settings = {key: value for key, value in content["settings"].items() if key not in _IGNORED_ON_REPEAT}
    # A run without `init` started from random weights. A repetition of the run must not choose pretrained weights.
    if content.get("verb", "train") in ("train", "segment", "detect") and settings.get("init") is None:
        settings["init"] = "none"
    return settings, {key for key, origin in content["origin"].items() if is_automatic(str(origin))}
