"""The `paucal` program, which runs the module of a command and turns errors into messages and exit codes."""

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

from paucal.memory import keep_freed_memory
from paucal.runner.plain_console import PlainConsole, closed_descriptors, redirect_to_null
from paucal.runner.run_time import begin_command
from paucal.signals import stop_signals_as_interrupt
from paucal.types import UserError
from paucal.wording import did_you_mean, one_line_message

COMMAND_SUMMARIES = {
    "check": "report the content of a data set and its problems",
    "train": "train a model on a folder of images",
    "detect": "train a detector on images with boxes",
    "pretrain": "pre-train a backbone on images without labels",
    "segment": "train a model that classifies every pixel",
    "compare": "compare training settings over several seeds",
    "study": "reproduce a table of a paper, with published and measured numbers",
    "eval": "evaluate a trained model on labelled images",
    "runs": "list runs with their settings and scores",
    "predict": "classify images, detect objects or predict masks, with a trained model",
    "explain": "draw attention, attributions and features of a trained model in images",
    "export": "write a trained model for other programs",
    "serve": "open a web page to try a trained model, or to label images",
    "next": "choose the unlabelled images that are worth labelling next",
    "label": "make label maps for token labeling",
    "shard": "write images into shards, for millions of images",
    "convert": "write a data set in another layout: yolo, coco, voc, masks, csv, ...",
    "cache": "show or remove cached files",
    "weights": "list pretrained weights, and copy weights to another machine",
    "models": "list backbones",
    "recipes": "list recipes: settings of published trainings",
    "completion": "print a script for shell completion",
}
COMMAND_GROUPS = {  # names of commands by purpose
    "a model for your images": ("check", "train", "predict"),
    "objects and areas in your images": ("detect", "segment"),
    "evaluation and explanation": ("eval", "explain"),
    "comparisons": ("compare", "study", "runs"),
    "deployment": ("export", "serve"),
    "images without labels, labels for each patch": ("next", "pretrain", "label"),
    "overviews and housekeeping": ("models", "weights", "recipes", "cache", "shard", "convert", "completion"),
}
_DEFAULT_ADVICE = "free some space or check the permissions"
_ADVICE_BY_ERRNO = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "free some space"),
    **dict.fromkeys((errno.EACCES, errno.EPERM), "check the permissions"),
    **dict.fromkeys((errno.ENXIO, errno.ENODEV), "give a regular file"),
    errno.EFBIG: "choose another disk",
    errno.EROFS: "choose a folder that can be written",
    errno.ELOOP: "remove the symbolic link that leads to itself, or give another path",
    errno.ENAMETOOLONG: "give a shorter name",
    errno.EINVAL: "give another name",
    errno.EMFILE: "close other programs, or allow more open files (ulimit -n)",
    errno.ENFILE: "close other programs",
    errno.ENOMEM: "free some memory",
    errno.EIO: "check the disk",
}
_PATH_ERRORS = (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError)
USAGE = "paucal COMMAND [SUBJECT] [DATA...] [--flags]"
ERROR_HANDLER = "paucal.escaped"  # name under which `_replace_character` is registered with `codecs`
CLOSED_PIPE_CODE = 141  # the exit code that shells report for a program that was ended by SIGPIPE


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code.

    The code is 0 for success, 1 if a check finds that scores would be misleading or a comparison has failed runs, 2 for
    a user error, 130 after an interrupt, and 141 if the program that reads the output closed the pipe.
    """
    begin_command()
    if argv is None:
        restart_in_utf8()
    with tolerant_streams():
        code = _run_and_report_errors(list(sys.argv[1:] if argv is None else argv))
        return code if code in (0, 2, 130) or can_write_output() else CLOSED_PIPE_CODE


def _run_and_report_errors(arguments: list[str]) -> int:
    """Run a command and return its exit code; if an error is raised, print its message and return the error's code."""
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
        if isinstance(problem, BrokenPipeError) and not can_write_output():
            return CLOSED_PIPE_CODE
        if problem.filename is None and problem.errno is None:
            raise
        console.print(f"[bold red]error:[/] {escape(_describe_os_error(problem))}", soft_wrap=True)
        return 2


def _dispatch(arguments: list[str]) -> int:
    """Run a command, or print the help or the version; return the exit code."""
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        width = max(map(len, COMMAND_SUMMARIES))
        group_texts = [
            "\n".join((f"{purpose}:", *(f"  {name:<{width}}  {COMMAND_SUMMARIES[name]}" for name in names)))
            for purpose, names in COMMAND_GROUPS.items()
        ]
        print("\n\n".join((f"usage: {USAGE}", *group_texts, "'paucal COMMAND --help' shows the flags of a command.")))
        return 0
    if arguments[0] == "--version":
        print(version("paucal"))
        return 0
    verb = arguments[0]
    if verb not in COMMAND_SUMMARIES:
        raise UserError(
            f"unknown command {verb!r}{did_you_mean(verb, COMMAND_SUMMARIES)}; "
            f"expected one of {', '.join(COMMAND_SUMMARIES)}."
        )
    # Only this command's module is imported, since some other modules import torch, which is slow.
    module = importlib.import_module(f"paucal.cli.{verb}")
    if verb == "serve":  # a server is mostly idle and should then return its freed memory to the system
        return module.run(arguments[1:])
    with keep_freed_memory():
        return module.run(arguments[1:])


def _describe_os_error(problem: OSError) -> str:
    name = problem.filename
    file_text = f" ({os.fsdecode(name) if isinstance(name, str | bytes | os.PathLike) else name})" if name else ""
    advice = (
        "check the path"
        if isinstance(problem, _PATH_ERRORS)
        else _ADVICE_BY_ERRNO.get(problem.errno or 0, _DEFAULT_ADVICE)
    )
    return one_line_message(f"{problem.strerror or problem}{file_text}: {advice}, then run again.")


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


if __name__ == "__main__":
    sys.exit(main())
