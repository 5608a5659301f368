"""The rich console with which all commands print to the terminal."""

import os
from typing import IO, Any

from rich.console import Console
from rich.text import Text

from paucal.wording import escape_controls

FILE_WIDTH = 160  # width of output to a file or a pipe, in characters
closed_descriptors: set[int] = set()  # file descriptors of streams that their reader, such as `head`, has closed


class PlainConsole(Console):
    """Prints text literally: without highlighting, without emoji for `:x:`, and with control characters escaped.

    Strings in tables pass through `render_str`, so that callers need not escape names of files and classes. Output to
    a file or a pipe is wrapped at `FILE_WIDTH` characters instead of the width of a terminal.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, emoji=False, **options)
        if not self.is_terminal and "COLUMNS" not in os.environ:
            self.width = FILE_WIDTH

    def render_str(self, text: str, **options: Any) -> Text:  # type: ignore[override]
        """Convert a string to text with control characters escaped."""
        return super().render_str(escape_controls(text), **options)

    def on_broken_pipe(self) -> None:
        """Continue after the reader has closed the pipe, so that the run still writes all files."""
        redirect_to_null(self.file)


def redirect_to_null(stream: IO[str]) -> None:
    """Redirect a stream that was closed by its reader to the null device."""
    closed_descriptors.add(stream.fileno())
    null_descriptor = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null_descriptor, stream.fileno())
    os.close(null_descriptor)
