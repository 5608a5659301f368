"""Standard output and error that accept any text, and that a reader may close before the end."""

import codecs
import io
import os
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from paucal.runner.plain_console import closed_descriptors, redirect_to_null

ERROR_HANDLER = "paucal.escaped"  # name under which `_replace_character` is registered with `codecs`


def restart_in_utf8() -> None:
    """Restart the command in Python's UTF-8 mode if file names are decoded as ASCII.

    File names are decoded as ASCII in the C locale if Python's UTF-8 mode and locale coercion are switched off. Image
    names in tables would then not match file names. A running Python cannot change the mode, and child processes need
    UTF-8 mode too.
    """
    if codecs.lookup(sys.getfilesystemencoding()).name == "ascii" and not sys.flags.utf8_mode:
        os.environ["PYTHONUTF8"] = "1"
        os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])


@contextmanager
def tolerant_streams() -> Iterator[None]:
    """Let the block print any text: escape characters that a stream cannot encode, and ignore closed pipes."""
    closed_descriptors.clear()
    codecs.register_error(ERROR_HANDLER, _replace_character)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed before the start; without devnull, the next opened file would reuse the descriptor
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=ERROR_HANDLER)
    try:
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except BrokenPipeError:
                redirect_to_null(stream)


def can_write_output() -> bool:
    """Return whether standard output still has a reader; False if the reader closed the pipe."""
    try:
        descriptor = sys.stdout.fileno()
        poll = select.poll()
    except (AttributeError, OSError, ValueError):  # Windows has no poll, and captured streams have no descriptor
        return True
    poll.register(descriptor, 0)
    return descriptor not in closed_descriptors and not any(event & select.POLLERR for _, event in poll.poll(0))


def _replace_character(problem: UnicodeError) -> tuple[str | bytes, int]:
    """Return a replacement for a character that cannot be encoded, and the position after it.

    If a byte of a Linux file name is not UTF-8, Python represents the byte by a surrogate character. The surrogate is
    replaced by the original byte. Any other character is replaced by a backslash escape.
    """
    if not isinstance(problem, UnicodeEncodeError):
        raise problem
    position, is_wide = problem.start, problem.encoding.replace("_", "-").startswith(("utf-16", "utf-32"))
    byte = ord(problem.object[position]) - 0xDC00
    if 0x80 <= byte <= 0xFF and not is_wide:
        return bytes([byte]), position + 1
    character_error = UnicodeEncodeError(problem.encoding, problem.object, position, position + 1, problem.reason)
    return codecs.backslashreplace_errors(character_error)
