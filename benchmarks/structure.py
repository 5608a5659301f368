"""Measure how easily the source can be read: its size, its small pieces, and how many files one has to open.

    python benchmarks/structure.py                  # measure, print
    python benchmarks/structure.py --store NAME     # and keep it in results/structure.json under NAME

The files are those of `paucal train` on the built-in digits, from the command to the first optimizer step: files whose
functions run, and files and functions that are handed the run's settings. A step is upward where a function with the
settings calls one that lies in a folder that may import the caller's. Only functions and methods with a name count: no
lambdas and comprehensions, no bodies of modules and classes, and nothing that runs while a module of the package is
being imported, such as a function that builds a constant.
"""

import argparse
import ast
import inspect
import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import is_dataclass
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "paucal"
STORED = Path(__file__).parent / "results" / "structure.json"
SMALL_BODY = 6  # lines
# From the lowest folder to the highest; a folder may import those before it.
ORDER = (
    *(
        "types",
        "wording",
        "memory",
        "cores",
        "signals",
        "reading",
        "writing",
        "distributed",
        "losses",
        "backbones",
        "data",
    ),
    *("runs", "models", "metrics", "evaluation", "objectives", "labeling", "training", "explain", "export"),
    *("report", "settings", "recipes", "rules", "methods", "runner", "tasks", "verbs", "studies", "cli"),
)


def measure() -> dict[str, int]:
    """Return all figures."""
    trees = {path: ast.parse(path.read_text()) for path in sorted(SOURCE.rglob("*.py"))}
    return {**_sizes(trees), **_walk()}


def _sizes(trees: dict[Path, ast.Module]) -> dict[str, int]:
    uses = Counter(name for tree in trees.values() for name in _names(tree))
    functions = [node for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    private = [f for f in functions if f.name.startswith("_") and not f.name.startswith("__")]
    importers = Counter(module for path, tree in trees.items() for module in _imported(tree, trees))
    once = [f for f in private if uses[f.name] == 1]
    return {
        "lines": sum(len(path.read_text().splitlines()) for path in trees),
        "files": len(trees),
        "functions": len(functions),
        "median body lines": sorted(map(_body_lines, functions))[len(functions) // 2],
        "private functions": len(private),
        "private functions called once": len(once),
        f"private functions called once, at most {SMALL_BODY} lines": sum(_body_lines(f) <= SMALL_BODY for f in once),
        "files with one importer": sum(count == 1 for count in importers.values()),
        "places that give a setting its default again": sum(map(_second_defaults, trees.values())),
    }


def _names(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute):
            yield node.id if isinstance(node, ast.Name) else node.attr


def _body_lines(function: ast.FunctionDef) -> int:
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return (function.end_lineno or 0) - body[0].lineno + 1 if body else 0


def _imported(tree: ast.Module, trees: dict[Path, ast.Module]) -> set[Path]:
    """Return the files of the package that a module imports."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("paucal"):
            for name in (node.module, *(f"{node.module}.{alias.name}" for alias in node.names)):
                path = SOURCE.joinpath(*name.split(".")[1:]).with_suffix(".py")
                found |= {path} & trees.keys()
    return found


def _second_defaults(tree: ast.Module) -> int:
    """Count `settings.x or y` and `y if settings.x is None else settings.x`, of anything called settings or chosen.

    Not counted, as nothing gets a value in place of None: an `or` that is a condition, `None if settings.x is None
    else ...`, and a choice by `settings.x is None` between values that do not hold the setting.
    """
    conditions = set(_conditions(tree))
    count = 0
    for node in ast.walk(tree):
        if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.Or) and node not in conditions:
            count += _is_setting(node.values[0]) and not isinstance(node.values[-1], ast.Compare)
        elif isinstance(node, ast.IfExp) and isinstance(node.test, ast.Compare) and _is_setting(node.test.left):
            absent, present = node.body, node.orelse
            if isinstance(node.test.ops[0], ast.IsNot):
                absent, present = present, absent
            holds_setting = ast.dump(node.test.left) in map(ast.dump, ast.walk(present))
            count += holds_setting and not (isinstance(absent, ast.Constant) and absent.value is None)
    return count


def _conditions(tree: ast.Module) -> Iterator[ast.expr]:
    """Yield the expressions of which only the truth counts."""
    for node in ast.walk(tree):
        tests = [node.test] if isinstance(node, ast.If | ast.IfExp | ast.While | ast.Assert) else []
        tests += node.ifs if isinstance(node, ast.comprehension) else []
        while tests:
            test = tests.pop()
            yield test
            tests += test.values if isinstance(test, ast.BoolOp) else []
            tests += [test.operand] if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not) else []


def _is_setting(node: ast.expr) -> bool:
    if not isinstance(node, ast.Attribute):
        return False
    owner = node.value
    name = owner.id if isinstance(owner, ast.Name) else owner.attr if isinstance(owner, ast.Attribute) else ""
    return name in ("settings", "chosen", "asked", "made")


def _walk() -> dict[str, int]:
    """Run the built-in run in a process of its own up to its first optimizer step."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "walk.json"
        command = [sys.executable, __file__, "--walk", str(output)]
        subprocess.run(command, check=True, cwd=folder, stdout=subprocess.DEVNULL)
        return json.loads(output.read_text())


class _FirstStep(BaseException):
    """Ends the walk."""


def _trace(output: Path) -> None:
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    from paucal.cli.main import main
    from paucal.settings.shared import JobSettings

    opened: set[str] = set()
    carriers: set[tuple[str, str]] = set()
    upward: set[tuple[str, str]] = set()
    importing = 0  # modules of the package whose bodies are running

    def has_settings(frame: FrameType) -> bool:
        names = frame.f_code.co_varnames[: frame.f_code.co_argcount + frame.f_code.co_kwonlyargcount]
        return any(_holds(frame.f_locals.get(name), JobSettings) for name in names)

    def on_event(frame: FrameType, event: str, _: Any) -> None:
        nonlocal importing
        place, name = frame.f_code.co_filename, frame.f_code.co_name
        if event not in ("call", "return") or not place.startswith(str(SOURCE)):
            return
        if name == "<module>":
            importing += 1 if event == "call" else -1
        is_function = frame.f_code.co_flags & inspect.CO_OPTIMIZED and not name.startswith("<")
        if event != "call" or importing or not is_function:
            return
        opened.add(place)
        caller = frame.f_back
        if not has_settings(frame):
            return
        carriers.add((place, frame.f_code.co_qualname))
        above = caller is not None and caller.f_code.co_filename.startswith(str(SOURCE))
        if caller is not None and above and _rank(place) > _rank(caller.f_code.co_filename):
            upward.add((caller.f_code.co_qualname, frame.f_code.co_qualname))

    def stop(*_: Any) -> None:
        raise _FirstStep

    register_optimizer_step_pre_hook(stop)
    sys.setprofile(on_event)
    try:
        main(["train", "--workers", "0", "--output", "run"])
    except _FirstStep:
        pass
    finally:
        sys.setprofile(None)
    figures = {
        "files run up to the first step": len(opened),
        "files that are handed the settings": len({place for place, _ in carriers}),
        "functions that are handed the settings": len(carriers),
        "upward calls with the settings": len(upward),
    }
    output.write_text(json.dumps(figures))


def _holds(value: Any, kind: type) -> bool:
    """Whether a value is settings, or a dataclass that holds them."""
    held = vars(value).get("settings") if is_dataclass(value) and hasattr(value, "__dict__") else None
    return isinstance(value, kind) or isinstance(held, kind)


def _rank(place: str) -> int:
    part = Path(place).relative_to(SOURCE).parts[0].removesuffix(".py")
    return ORDER.index(part) if part in ORDER else len(ORDER)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", help="name under which the figures are kept")
    parser.add_argument("--walk", type=Path, help=argparse.SUPPRESS)
    values = parser.parse_args()
    if values.walk is not None:
        _trace(values.walk)
        return
    figures = measure()
    print("\n".join(f"{name:58} {value:>8,}" for name, value in figures.items()))
    if values.store:
        stored = json.loads(STORED.read_text()) if STORED.exists() else {}
        STORED.write_text(json.dumps({**stored, values.store: figures}, indent=1) + "\n")


if __name__ == "__main__":
    main()
