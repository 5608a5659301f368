"""Runs converters without their progress, warnings and banners, and reports any failure in one message."""

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator

from paucal.types import UserError


@contextlib.contextmanager
def discard_output() -> Iterator[None]:
    """Discard what the code in a `with` block prints, warns and logs."""
    previous_level = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with (
            warnings.catch_warnings(action="ignore"),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            yield
    finally:
        logging.disable(previous_level)


@contextlib.contextmanager
def quiet_conversion(failure: str, advice: str) -> Iterator[None]:
    """Discard the output of the code in a `with` block, and turn any error into a UserError with these texts."""
    try:
        with discard_output():
            yield
    except Exception as problem:  # torch and converters raise dozens of exception types, depending on the network
        raise UserError(f"{failure} ({describe_exception(problem)}): {advice}.") from problem


def describe_exception(problem: Exception) -> str:
    """Return the type and the first line of an exception as text for a message."""
    lines = [line for line in str(problem).splitlines() if line.strip()]
    return f"{type(problem).__name__}: {lines[0][:300] if lines else 'no reason'}"
