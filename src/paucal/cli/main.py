"""The `paucal` command: one verb per file. Any text can be printed, and a closed pipe is not an error."""

import codecs
import errno
import importlib
import io
import os
import select
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version

from rich.markup import escape

from paucal.memory import kept_memory
from paucal.runner.clock import begin_command
from paucal.runner.plain_console import PlainConsole, discard, unread
from paucal.signals import stop_signals_as_interrupt
from paucal.types import UserError
from paucal.wording import did_you_mean, sentence

VERBS = {
    "check": "report the content of a data set and its problems",
    "train": "train a model on a folder of images",
    "detect": "train a detector on images with boxes",
    "pretrain": "pre-train a backbone on images without labels",
    "segment": "train a model that classifies every pixel",
    "compare": "test whether one way to train is better than another",
    "study": "reproduce a table of the papers, with published and measured numbers",
    "eval": "evaluate a trained model on labelled images",
    "runs": "list runs with their settings and scores",
    "predict": "classify images, detect objects or segment them, with a trained model",
    "explain": "draw attention, attributions and features of a trained model in images",
    "export": "write a trained model for other programs",
    "serve": "open a page to try a trained model on",
    "next": "choose the unlabelled images that are worth labelling next",
    "label": "make label maps for token labeling",
    "shard": "write images into shards, for sets of millions",
    "convert": "write a set in another layout: yolo, coco, voc, masks, csv, ...",
    "cache": "show or remove cached files",
    "weights": "list pretrained weights, and move them to another machine",
    "models": "list backbones",
    "recipes": "list named settings",
    "completion": "print a script for shell completion",
}
PURPOSES = {  # the verbs, grouped by purpose
    "a model for your images": ("check", "train", "predict"),
    "objects and areas in your images": ("detect", "segment"),
    "evaluation and explanation": ("eval", "explain"),
    "comparisons": ("compare", "study", "runs"),
    "deployment": ("export", "serve"),
    "images without labels, labels for each patch": ("next", "pretrain", "label"),
    "overviews and housekeeping": ("models", "weights", "recipes", "cache", "shard", "convert", "completion"),
}
_CHECK = "free some space or check the permissions"
_ADVICE = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "free some space"),
    **dict.fromkeys((errno.EACCES, errno.EPERM), "check the permissions"),
    **dict.fromkeys((errno.ENXIO, errno.ENODEV), "give a regular file"),
    errno.EFBIG: "choose another disk",
    errno.EROFS: "choose a folder that can be written",
    errno.ELOOP: "remove the link that leads to itself, or give another path",
    errno.ENAMETOOLONG: "give a shorter name",
    errno.EINVAL: "give another name",
    errno.EMFILE: "close other programs, or allow more open files (ulimit -n)",
    errno.ENFILE: "close other programs",
    errno.ENOMEM: "free some memory",
    errno.EIO: "check the disk",
}
_MISPLACED = (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError)
USAGE = "paucal VERB [SUBJECT] [DATA...] [--flags]"
ESCAPED = "paucal.escaped"  # name of the error handler
CLOSED_PIPE = 141  # exit code of a program ended by SIGPIPE


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code.

    The code is 0 for success, 1 for a check that finds misleading data or a comparison with failed runs, 2 for a user
    error, 130 after an interrupt, 141 if the reader of the output has closed the pipe.
    """
    begin_command()
    if argv is None:
        restart_in_utf8()
    with tolerant_streams():
        code = _exit_code(list(sys.argv[1:] if argv is None else argv))
        return code if code in (0, 2, 130) or is_read() else CLOSED_PIPE


def _exit_code(arguments: list[str]) -> int:
    """Run the command line, and turn errors into a message and an exit code."""
    console = PlainConsole(stderr=True)
    try:
        with stop_signals_as_interrupt():
            return _dispatch(arguments)
    except UserError as problem:
        console.print(f"[bold red]error:[/] {escape(str(problem))}", soft_wrap=True)
        return 2
    except KeyboardInterrupt:
        console.print("interrupted.")
        return 130
    except OSError as problem:
        if isinstance(problem, BrokenPipeError) and not is_read():
            return CLOSED_PIPE
        if problem.filename is None and problem.errno is None:
            raise
        console.print(f"[bold red]error:[/] {escape(_os_sentence(problem))}", soft_wrap=True)
        return 2


def _dispatch(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        width = max(map(len, VERBS))
        purposes = [
            "\n".join((f"{purpose}:", *(f"  {name:<{width}}  {VERBS[name]}" for name in names)))
            for purpose, names in PURPOSES.items()
        ]
        print("\n\n".join((f"usage: {USAGE}", *purposes, "'paucal VERB --help' explains each.")))
        return 0
    if arguments[0] == "--version":
        print(version("paucal"))
        return 0
    verb = arguments[0]
    if verb not in VERBS:
        raise UserError(f"unknown verb {verb!r}{did_you_mean(verb, VERBS)}; expected one of {', '.join(VERBS)}.")
    # Verbs are imported when used: torch takes seconds to load, and help should not.
    module = importlib.import_module(f"paucal.cli.{verb}")
    if verb == "serve":  # a server that is mostly idle
        return module.run(arguments[1:])
    with kept_memory():
        return module.run(arguments[1:])


def _os_sentence(problem: OSError) -> str:
    name = problem.filename
    file_text = f" ({os.fsdecode(name) if isinstance(name, str | bytes | os.PathLike) else name})" if name else ""
    advice = "check the path" if isinstance(problem, _MISPLACED) else _ADVICE.get(problem.errno or 0, _CHECK)
    return sentence(f"{problem.strerror or problem}{file_text}: {advice}, then run again.")


def restart_in_utf8() -> None:
    """Restart the command in Python's UTF-8 mode if file names are decoded as ASCII.

    This happens in the C locale if Python's UTF-8 mode and locale coercion are switched off. Names in tables would then
    not match file names. Python cannot change the mode later, and child processes need it too.
    """
    if codecs.lookup(sys.getfilesystemencoding()).name == "ascii" and not sys.flags.utf8_mode:
        os.environ["PYTHONUTF8"] = "1"
        os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])


@contextmanager
def tolerant_streams() -> Iterator[None]:
    """Escape characters that a stream cannot encode, and flush all output in the end; a closed pipe is not an error."""
    unread.clear()
    codecs.register_error(ESCAPED, _replace_character)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed already: the next file to be opened would get its descriptor
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
    except (AttributeError, OSError, ValueError):  # Windows lacks poll, a captured stream lacks a descriptor
        return True
    poll.register(descriptor, 0)
    return descriptor not in unread and not any(event & select.POLLERR for _, event in poll.poll(0))


def _replace_character(problem: UnicodeError) -> tuple[str | bytes, int]:
    """Return the replacement of a character: the original byte of a file name, or a backslash escape."""
    if not isinstance(problem, UnicodeEncodeError):
        raise problem
    place, is_wide = problem.start, problem.encoding.replace("_", "-").startswith(("utf-16", "utf-32"))
    byte = ord(problem.object[place]) - 0xDC00
    if 0x80 <= byte <= 0xFF and not is_wide:  # file names on Linux may be any bytes
        return bytes([byte]), place + 1
    error_of_one = UnicodeEncodeError(problem.encoding, problem.object, place, place + 1, problem.reason)
    return codecs.backslashreplace_errors(error_of_one)


if __name__ == "__main__":
    sys.exit(main())
