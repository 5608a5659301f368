"""Suppression of the output of converters, which print progress, warnings and banners."""

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator


@contextlib.contextmanager
def discard_output() -> Iterator[None]:
    """Discard what the code in a `with` block prints, warns and logs."""
    previous_level = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(previous_level)


def first_line(problem: Exception) -> str:
    """Return the type and the first line of an exception as text for a message."""
    lines = [line for line in str(problem).splitlines() if line.strip()]
    return f"{type(problem).__name__}: {lines[0][:300] if lines else 'no reason'}"
