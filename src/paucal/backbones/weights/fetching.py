"""Fetch weights that timm publishes, quietly and after one short check that they are available.

Without a network, the hub's client would retry for most of a minute and report every attempt.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import huggingface_hub
from huggingface_hub import constants
from huggingface_hub.errors import EntryNotFoundError, GatedRepoError

SECONDS = 5.0  # maximum seconds to wait for the hub's answer
_FILES = ("model.safetensors", "pytorch_model.bin")  # the files that timm looks for, in this order
_LOGGERS = ("huggingface_hub", "timm", "httpx", "httpx2", "urllib3", "filelock")


def require_reachable(config: Any) -> None:
    """Ask the hub once for published weights; do nothing if they are in its cache or lie elsewhere.

    Args:
        config: timm's description of the weights (`timm.get_pretrained_cfg`).

    Raises:
        ConnectionError: the weights are not in the cache and the hub cannot be reached; the message is a clause for a
            longer sentence.
    """
    if not getattr(config, "hf_hub_id", None) or getattr(config, "file", None) or is_cached(config):
        return
    name, revision, files = _repository_of(config)
    if constants.is_offline_mode():
        raise ConnectionError("they are not in the cache, and HF_HUB_OFFLINE forbids fetching them")
    url = huggingface_hub.hf_hub_url(name, files[0], revision=revision)
    try:
        with quiet_logs():
            huggingface_hub.get_hf_file_metadata(url, timeout=SECONDS)
    except (EntryNotFoundError, GatedRepoError):
        return  # the hub has answered; fetching will show whether it has the weights
    except Exception as problem:  # any exception from the layers below the client
        raise ConnectionError(f"{constants.ENDPOINT} cannot be reached: {_error_reason(problem)}") from problem


def is_cached(config: Any) -> bool:
    """Return whether published weights are in the hub's cache on this machine; uses no network."""
    if config is None or not getattr(config, "hf_hub_id", None):
        return False
    name, revision, files = _repository_of(config)
    return any(isinstance(huggingface_hub.try_to_load_from_cache(name, file, revision=revision), str) for file in files)


def _repository_of(config: Any) -> tuple[str, str | None, Sequence[str]]:
    """Return the repository, the revision and the possible files of published weights."""
    name, _, revision = str(config.hf_hub_id).partition("@")
    return name, revision or None, [config.hf_hub_filename] if getattr(config, "hf_hub_filename", None) else _FILES


@contextmanager
def quiet_logs() -> Iterator[None]:
    """Silence the logs of the libraries that fetch weights; failures are raised, and reported once."""
    loggers = [logging.getLogger(name) for name in _LOGGERS]
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
