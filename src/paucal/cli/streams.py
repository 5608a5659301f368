"""Output of the command line: any text can be written to any stream, and a closed pipe ends a call silently."""

import codecs
import io
import os
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from paucal.runner.plain_console import discard, unread

ESCAPED = "paucal.escaped"  # name of the error handler
CLOSED_PIPE = 141  # exit code of a program ended by SIGPIPE


def restart_in_utf8() -> None:
    """Restart the command in Python's UTF-8 mode if file names are decoded as ASCII.

    So it is in the C locale with Python's own measures against it switched off. A name in a table would then never be
    that of a file. Python cannot change its mind later, and processes that are started from here need it too.
    """
    if codecs.lookup(sys.getfilesystemencoding()).name == "ascii" and not sys.flags.utf8_mode:
        os.environ["PYTHONUTF8"] = "1"
        os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])


@contextmanager
def tolerant_streams() -> Iterator[None]:
    """Escape characters that a stream cannot encode, and flush all output within; a closed reader is not an error."""
    unread.clear()
    codecs.register_error(ESCAPED, _escape)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # it was closed before: the next file that is opened would take its place
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=ESCAPED)
    try:
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except BrokenPipeError:
                discard(stream)


def is_read() -> bool:
    """Return whether the output may still be read; False if the reader closed the pipe."""
    try:
        descriptor = sys.stdout.fileno()
        poll = select.poll()
    except (AttributeError, OSError, ValueError):  # Windows has no poll, a captured stream no descriptor
        return True
    poll.register(descriptor, 0)
    return descriptor not in unread and not any(event & select.POLLERR for _, event in poll.poll(0))


def _escape(problem: UnicodeError) -> tuple[str | bytes, int]:
    """Return the replacement of a character: the original byte of a file name, or a backslash escape."""
    if not isinstance(problem, UnicodeEncodeError):
        raise problem
    place, wide = problem.start, problem.encoding.replace("_", "-").startswith(("utf-16", "utf-32"))
    byte = ord(problem.object[place]) - 0xDC00
    if 0x80 <= byte <= 0xFF and not wide:  # names on Linux may be any bytes
        return bytes([byte]), place + 1
    one = UnicodeEncodeError(problem.encoding, problem.object, place, place + 1, problem.reason)
    return codecs.backslashreplace_errors(one)
