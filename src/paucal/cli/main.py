"""The `paucal` command: one verb per file."""

import difflib
import importlib
import io
import sys
from collections.abc import Sequence
from importlib.metadata import version

from rich.console import Console
from rich.markup import escape

from paucal.types import UserError

VERBS = {
    "train": "train a model on a folder of images",
    "pretrain": "pre-train a backbone on images without labels",
    "eval": "judge a trained model on labelled images",
    "predict": "classify images with a trained model",
    "label": "make label maps for token labeling",
    "models": "list backbones",
    "recipes": "list named settings",
}
_MISPLACED = (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError)
USAGE = "paucal VERB [SUBJECT] [DATA...] [--flags]"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code: 0, 2 for a mistake of the user, 130 after an interrupt."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):  # file names on Linux may be any bytes
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="surrogateescape")
    console = Console(stderr=True, highlight=False)
    try:
        return _dispatch(arguments)
    except UserError as problem:
        console.print(f"[bold red]error:[/] {escape(str(problem))}", soft_wrap=True)
        return 2
    except KeyboardInterrupt:
        console.print("interrupted.")
        return 130
    except OSError as problem:
        if problem.filename is None and problem.errno is None:
            raise
        console.print(f"[bold red]error:[/] {escape(_os_sentence(problem))}", soft_wrap=True)
        return 2


def _dispatch(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_overview())
        return 0
    if arguments[0] == "--version":
        print(version("paucal"))
        return 0
    verb = arguments[0]
    if verb not in VERBS:
        near = difflib.get_close_matches(verb, VERBS, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise UserError(f"unknown verb {verb!r}{hint}; expected one of {', '.join(VERBS)}.")
    # Verbs are imported where they are used: torch takes seconds to load, and help should not.
    module = importlib.import_module(f"paucal.cli.{verb}")
    return module.run(arguments[1:])


def _overview() -> str:
    width = max(map(len, VERBS))
    verbs = "\n".join(f"  {name:<{width}}  {help}" for name, help in VERBS.items())
    return f"usage: {USAGE}\n\nverbs:\n{verbs}\n\n'paucal VERB --help' explains each."


def _os_sentence(problem: OSError) -> str:
    where = f" ({problem.filename})" if problem.filename else ""
    advice = "check the path" if isinstance(problem, _MISPLACED) else "free some space or check the permissions"
    return f"{problem.strerror or problem}{where}: {advice}, then run again."


if __name__ == "__main__":
    sys.exit(main())
