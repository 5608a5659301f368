"""Running converters: suppression of their progress, warnings and banners, and one message for any failure."""

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
def converting(failure: str, advice: str) -> Iterator[None]:
    """Discard the output of the code in a `with` block, and turn any error into a UserError with these two clauses."""
    try:
        with discard_output():
            yield
    except Exception as problem:  # torch and converters raise dozens of exception types, depending on the network
        raise UserError(f"{failure} ({first_line(problem)}): {advice}.") from problem


def first_line(problem: Exception) -> str:
    """Return the type and the first line of an exception as text for a message."""
    lines = [line for line in str(problem).splitlines() if line.strip()]
    return f"{type(problem).__name__}: {lines[0][:300] if lines else 'no reason'}"
