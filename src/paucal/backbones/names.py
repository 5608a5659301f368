"""Builds timm's models by name; checks names, arguments and whether weights can be fetched, with messages for the user.

Whether the Hugging Face Hub can be reached is checked by a single request with a short timeout, because the hub's
client would otherwise retry for almost a minute without a network, and log each attempt.
"""

import difflib
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import huggingface_hub
import timm
from huggingface_hub import constants
from huggingface_hub.errors import EntryNotFoundError, GatedRepoError
from timm.models import PretrainedCfg
from torch import nn

from paucal.types import UserError
from paucal.wording import did_you_mean

TIMEOUT_SECONDS = 5.0  # time limit of the request that checks whether the hub can be reached
_FILE_NAMES = ("model.safetensors", "pytorch_model.bin")  # file names that timm tries, in this order
_LOGGER_NAMES = ("huggingface_hub", "timm", "httpx", "httpx2", "urllib3", "filelock")
# Arguments that make timm read files, fetch weights or return something other than a classifier. These arguments are
# not allowed, since the description of a model may come from an untrusted file.
_FORBIDDEN_ARGUMENTS = {
    *("cache_dir", "checkpoint_path", "device", "dtype", "drop_connect_rate", "exportable", "feature_cfg"),
    *("feature_cls", "features_only", "out_indices", "pretrained_cfg", "pretrained_cfg_overlay", "pretrained_strict"),
    "scriptable",
}
# Largest values of arguments that count blocks or heads, and of all other arguments. Even on the meta device, building
# a million blocks would take hours.
MAX_BLOCKS, MAX_ARGUMENT_VALUE = 1000, 1 << 20
_BLOCK_COUNT = re.compile(r"depth|layers|blocks|num_heads|stages")  # names of arguments that count blocks or heads
# Messages of a TypeError that a model's constructor raises.
_REPEATED_ARGUMENT = re.compile(r"multiple values for keyword argument '(\w+)'")
_UNKNOWN_ARGUMENT = re.compile(r"unexpected keyword argument '(\w+)'")


def require_reachable(config: Any) -> None:
    """Check with one request that the hub can be reached, unless the weights are cached or not on the hub.

    `config` is timm's configuration of the weights.

    Raises:
        ConnectionError: the weights are not in the cache, and the hub cannot be reached. The message is a clause for
            the caller's error message.
    """
    if not getattr(config, "hf_hub_id", None) or getattr(config, "file", None) or is_cached(config):
        return
    name, revision, files = _repository_of(config)
    if constants.is_offline_mode():
        raise ConnectionError("they are not in the cache, and HF_HUB_OFFLINE forbids fetching them")
    url = huggingface_hub.hf_hub_url(name, files[0], revision=revision)
    try:
        with quiet_logs():
            huggingface_hub.get_hf_file_metadata(url, timeout=TIMEOUT_SECONDS)
    except (EntryNotFoundError, GatedRepoError):
        return  # the hub can be reached; the download will show whether the hub has the weights
    except Exception as problem:  # whatever the client's HTTP library raises
        raise ConnectionError(f"{constants.ENDPOINT} cannot be reached: {error_reason(problem)}") from problem


def is_cached(config: Any) -> bool:
    """Return whether published weights are in the hub's cache on this machine, without a request."""
    if config is None or not getattr(config, "hf_hub_id", None):
        return False
    name, revision, files = _repository_of(config)
    return any(isinstance(huggingface_hub.try_to_load_from_cache(name, file, revision=revision), str) for file in files)


def _repository_of(config: Any) -> tuple[str, str | None, Sequence[str]]:
    """Return the hub's repository, the revision (None for the newest) and the possible file names of weights."""
    name, _, revision = str(config.hf_hub_id).partition("@")
    return name, revision or None, [config.hf_hub_filename] if getattr(config, "hf_hub_filename", None) else _FILE_NAMES


@contextmanager
def quiet_logs() -> Iterator[None]:
    """Silence the logs of the libraries that fetch weights; their errors are raised and reported by the caller."""
    loggers = [logging.getLogger(name) for name in _LOGGER_NAMES]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def error_reason(problem: Exception) -> str:
    """Return the first sentence of an error's text; the error's type if there is no text."""
    return (str(problem).split("\n")[0].split(". ")[0] or type(problem).__name__).rstrip(".")


def nearest_model_names(name: str, count: int = 3) -> list[str]:
    """Return the model names most similar to an unknown name.

    Example:
        >>> nearest_model_names("swin_tiny", 1)
        ['swin_tiny_patch4_window7_224']
    """
    names = timm.list_models()
    longer = [other for other in names if other.startswith(name)][:count]
    close = difflib.get_close_matches(name, names, n=count, cutoff=0.5)
    return list(dict.fromkeys([*longer, *close]))[:count]


def require_model_name(name: str) -> None:
    """Check that timm has a model with this name and, if the name has a tag, weights with this tag."""
    if timm.is_model(name):
        timm_config(name)
        return
    near_names = nearest_model_names(name)
    advice = f"did you mean {' or '.join(near_names)}?" if near_names else "see timm.list_models() for the names."
    raise UserError(f"There is no model {name!r}: {advice}")


def timm_config(name: str) -> PretrainedCfg | None:
    """Return timm's configuration of a model's published weights; None if the model has no published weights."""
    try:
        return timm.get_pretrained_cfg(name, allow_unregistered=True)
    except RuntimeError:
        base, _, tag = name.partition(".")
        suggestion = did_you_mean(name, timm.list_pretrained(f"{base}.*"))
        raise UserError(
            f"timm has no weights {tag!r} of {base}{suggestion}: give an existing tag, or only {base}."
        ) from None


def require_harmless_arguments(name: str, arguments: Mapping[str, Any]) -> None:
    """Check that building a model with these arguments reads no files, fetches nothing and does not take hours."""
    for key, value in arguments.items():
        if key in _FORBIDDEN_ARGUMENTS or (key == "pretrained" and value):
            raise UserError(f"Model argument {key!r} of {name} does not describe an architecture; remove it.")
        limit = MAX_BLOCKS if _BLOCK_COUNT.search(key) else MAX_ARGUMENT_VALUE
        if _largest_number(value) > limit:
            raise UserError(f"Model argument {key}={value} of {name} is above the limit of {limit:,}.")


def _largest_number(value: Any) -> float:
    """Return the largest number in a value, which may be a nested list or mapping; 0 if there is no number."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return max(map(_largest_number, value), default=0)
    return value if isinstance(value, int | float) else 0


def create_model(name: str, **arguments: Any) -> nn.Module:
    """Build a timm model; turn errors about its name, weights or arguments into a UserError."""
    require_model_name(name)
    try:
        if not arguments.get("pretrained"):
            return timm.create_model(name, **arguments)
        require_reachable(timm_config(name))
        with quiet_logs():
            return timm.create_model(name, **arguments)
    except ConnectionError as error:
        raise UserError(f"the published weights of {name} could not be downloaded ({error}).") from error
    except TypeError as error:
        unknown, repeated = _UNKNOWN_ARGUMENT.search(str(error)), _REPEATED_ARGUMENT.search(str(error))
        if unknown is not None:
            reason = f"{name} has no argument {unknown[1]!r}; remove it."
        elif repeated is not None:
            reason = f"the argument {repeated[1]!r} of {name} cannot be changed; remove it or choose another model."
        else:
            reason = f"{name} cannot be built with {arguments}: {_first_line(error)}."
        raise UserError(reason) from error
    except (ArithmeticError, AssertionError, AttributeError, LookupError, OSError, RuntimeError, ValueError) as error:
        raise UserError(f"{name} cannot be built with {arguments}: {_first_line(error)}.") from error


def _first_line(error: Exception) -> str:
    """Return the first line of an error's text, without stack traces below; the error's type if there is no text."""
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__).rstrip(".:")
