"""The start method of loader processes, and the `__main__` guard that some start methods require in scripts."""

import ast
import multiprocessing
import sys
from pathlib import Path
from types import FrameType

from paucal.types import UserError


def start_method() -> str:
    """Return the start method set by the user, else "fork" on Linux and Python's default elsewhere."""
    if method := multiprocessing.get_start_method(allow_none=True):
        return method
    # Python 3.14 no longer forks on Linux. Processes that are not forked import torch and copy images again.
    return "fork" if sys.platform == "linux" else multiprocessing.get_all_start_methods()[0]


def require_main_guard(workers: int | None) -> None:
    """Raise a UserError if loader processes are started in a script that each process would run again."""
    main_module = sys.modules.get("__main__")
    file = getattr(main_module, "__file__", None)  # None in a notebook, which processes do not rerun
    if not workers or file is None or start_method() == "fork":
        return
    frame: FrameType | None = sys._getframe()
    while frame is not None and not (frame.f_code.co_name == "<module>" and frame.f_globals is vars(main_module)):
        frame = frame.f_back
    if frame is None:
        return
    try:
        nodes = list(ast.walk(ast.parse(Path(file).read_bytes())))
    except OSError:  # a script from standard input, which processes cannot rerun
        nodes = []
    except (SyntaxError, ValueError):  # a compiled script
        return
    line = frame.f_lineno
    conditions = [node for node in nodes if isinstance(node, ast.If) and node.lineno <= line <= (node.end_lineno or 0)]
    names = [name for node in conditions for name in ast.walk(node.test) if isinstance(name, ast.Name)]
    if not any(name.id == "__name__" for name in names):
        raise UserError(
            f"line {line} of {file} starts processes that load images, and each process would run the script "
            'again: put the call below if __name__ == "__main__":, or set workers=0.'
        )
