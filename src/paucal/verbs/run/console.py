"""The terminal, as all verbs write to it."""

import os
from typing import IO, Any

from rich.console import Console
from rich.text import Text

from paucal.wording import showable

WIDE = 160  # columns of a file or a pipe
unread: set[int] = set()  # descriptors of the streams whose readers have gone, as of `head`


class PlainConsole(Console):
    """Shows text as it is: nothing is coloured by its content, `:x:` is no emoji, control characters are escaped.

    Strings in tables pass `render_str` as well, so that no caller has to think of names of files and classes. What goes
    into a file or a pipe is not squeezed to the width of a terminal that nobody looks at.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, emoji=False, **options)
        if not self.is_terminal and "COLUMNS" not in os.environ:
            self.width = WIDE

    def render_str(self, text: str, **options: Any) -> Text:  # type: ignore[override]
        """Make text of a string, see the class."""
        return super().render_str(showable(text), **options)

    def on_broken_pipe(self) -> None:
        """Let the call go on where nobody reads any more: a run writes files, and its end says how it went."""
        discard(self.file)


def discard(stream: IO[str]) -> None:
    """Send what is still written to a stream nowhere, since its reader has gone."""
    unread.add(stream.fileno())
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
