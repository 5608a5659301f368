"""Checks that weights published for timm can be fetched from the Hugging Face Hub, and silences logs meanwhile.

The check is a single request with a short timeout, because the hub's client would otherwise retry for almost a minute
without a network, and log each attempt.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import huggingface_hub
from huggingface_hub import constants
from huggingface_hub.errors import EntryNotFoundError, GatedRepoError

TIMEOUT_SECONDS = 5.0  # for the request that checks whether the hub can be reached
_FILE_NAMES = ("model.safetensors", "pytorch_model.bin")  # file names that timm tries, in this order
_LOGGER_NAMES = ("huggingface_hub", "timm", "httpx", "httpx2", "urllib3", "filelock")


def require_reachable(config: Any) -> None:
    """Check with one request that the hub can be reached, unless the weights are cached or not on the hub.

    Args:
        config: timm's configuration of the weights (`timm.get_pretrained_cfg`).

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
        raise ConnectionError(f"{constants.ENDPOINT} cannot be reached: {_error_reason(problem)}") from problem


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


def _error_reason(problem: Exception) -> str:
    return (str(problem).split("\n")[0].split(". ")[0] or type(problem).__name__).rstrip(".")
