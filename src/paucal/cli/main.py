"""The `paucal` program, which runs a command and turns errors into messages and exit codes."""

import errno
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from importlib.metadata import version

from rich.markup import escape

from paucal.cli.given_flags import given_flags_in_errors
from paucal.cli.streams import can_write_output, restart_in_utf8, tolerant_streams
from paucal.memory import keep_freed_memory
from paucal.runner.clock import begin_command
from paucal.runner.plain_console import PlainConsole
from paucal.signals import INTERRUPT_CODE, INTERRUPT_MESSAGE, raise_on_interrupt, stop_signals_as_interrupt
from paucal.tasks.table import TRAINING_TASKS
from paucal.types import UserError
from paucal.wording import did_you_mean, one_line_message

SUMMARIES_BY_PURPOSE = {  # summary of each command, by purpose and name
    "a model for your images": {
        "check": "report the content of a data set and its problems",
        "train": "train a model on a folder of images",
        "predict": "classify images, detect objects or predict masks, with a trained model",
    },
    "objects and areas in your images": {
        "detect": "train a detector on images with boxes",
        "segment": "train a model that classifies every pixel",
    },
    "evaluation and explanation": {
        "eval": "evaluate a trained model on labelled images",
        "explain": "draw attention, attributions and features of a trained model in images",
    },
    "comparisons": {
        "compare": "compare training settings over several seeds",
        "study": "reproduce a table of a paper, with published and measured numbers",
        "runs": "list runs with their settings and scores",
    },
    "deployment": {
        "export": "write a trained model for other programs",
        "serve": "open a web page to try a trained model, or to label images",
    },
    "images without labels, labels for each patch": {
        "next": "choose the unlabelled images that are worth labelling next",
        "pretrain": "pre-train a backbone on images without labels",
        "label": "make label maps for token labeling",
    },
    "overviews and housekeeping": {
        "models": "list backbones",
        "weights": "list pretrained weights, and copy weights to another machine",
        "recipes": "list recipes: settings of published trainings",
        "cache": "show or remove cached files",
        "shard": "write images into shards, for millions of images",
        "convert": "write a data set in another layout: yolo, coco, voc, masks, csv, ...",
        "completion": "print a script for shell completion",
    },
}
COMMAND_SUMMARIES = {
    verb: summary for summaries in SUMMARIES_BY_PURPOSE.values() for verb, summary in summaries.items()
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
        return code if code in (0, 2, INTERRUPT_CODE) or can_write_output() else CLOSED_PIPE_CODE


def _run_and_report_errors(arguments: list[str]) -> int:
    """Run a command and return its exit code; if an error is raised, print its message and return the error's code."""
    console = PlainConsole(stderr=True)
    try:
        raise_on_interrupt()
        with stop_signals_as_interrupt():
            return _dispatch(arguments)
    except UserError as problem:
        console.print(f"[bold red]error:[/] {escape(str(problem))}", soft_wrap=True)
        return 2
    except KeyboardInterrupt:
        console.print(INTERRUPT_MESSAGE)
        return INTERRUPT_CODE
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
            "\n".join((f"{purpose}:", *(f"  {verb:<{width}}  {summary}" for verb, summary in summaries.items())))
            for purpose, summaries in SUMMARIES_BY_PURPOSE.items()
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
    run = load_command(verb)
    # A server is mostly idle and should then return its freed memory to the system.
    with given_flags_in_errors(), nullcontext() if verb == "serve" else keep_freed_memory():
        return run(arguments[1:])


def load_command(verb: str) -> Callable[[Sequence[str]], int]:
    """Return the function that runs a command.

    Only the module of this command is imported, since modules of other commands may import torch, which is slow.
    """
    if verb in TRAINING_TASKS:
        return partial(importlib.import_module("paucal.cli.training").run, verb)
    commands = importlib.import_module("paucal.cli.commands")
    if verb in commands.COMMANDS:
        return partial(commands.run, verb)
    return importlib.import_module(f"paucal.cli.{verb}").run


def _describe_os_error(problem: OSError) -> str:
    name = problem.filename
    file_text = f" ({os.fsdecode(name) if isinstance(name, str | bytes | os.PathLike) else name})" if name else ""
    advice = (
        "check the path"
        if isinstance(problem, _PATH_ERRORS)
        else _ADVICE_BY_ERRNO.get(problem.errno or 0, _DEFAULT_ADVICE)
    )
    return one_line_message(f"{problem.strerror or problem}{file_text}: {advice}, then run again.")


if __name__ == "__main__":
    sys.exit(main())
