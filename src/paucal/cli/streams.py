"""Output of the command line: any text can be written to any stream, and a closed pipe ends a call without a word."""

import codecs
import io
import os
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from paucal.verbs.run.plain_console import discard, unread

ESCAPED = "paucal.escaped"  # what `errors` of a stream is called
CLOSED_PIPE = 141  # as a shell says of a program that SIGPIPE has ended


def restart_in_utf8() -> None:
    """Begin the command anew in Python's UTF-8 mode where names of files are taken for ASCII.

    So it is in the C locale with Python's own measures against it switched off. A name in a table would then never be
    that of a file. Python cannot change its mind later, and processes that are started from here need it too.
    """
    if codecs.lookup(sys.getfilesystemencoding()).name == "ascii" and not sys.flags.utf8_mode:
        os.environ["PYTHONUTF8"] = "1"
        os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])


@contextmanager
def tolerant_streams() -> Iterator[None]:
    """Escape what the encoding of a stream lacks, and flush all output within; a reader that has gone is no error."""
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
    """Return whether somebody may still read the output; False where a pipe was closed at its other end."""
    try:
        descriptor = sys.stdout.fileno()
        poll = select.poll()
    except (AttributeError, OSError, ValueError):  # Windows has no poll, a captured stream no descriptor
        return True
    poll.register(descriptor, 0)
    return descriptor not in unread and not any(event & select.POLLERR for _, event in poll.poll(0))


def _escape(problem: UnicodeError) -> tuple[str | bytes, int]:
    """Return what stands for one character: the byte that a name holds, or a backslash and its number."""
    if not isinstance(problem, UnicodeEncodeError):
        raise problem
    place, wide = problem.start, problem.encoding.replace("_", "-").startswith(("utf-16", "utf-32"))
    byte = ord(problem.object[place]) - 0xDC00
    if 0x80 <= byte <= 0xFF and not wide:  # names on Linux may be any bytes
        return bytes([byte]), place + 1
    one = UnicodeEncodeError(problem.encoding, problem.object, place, place + 1, problem.reason)
    return codecs.backslashreplace_errors(one)
