"""What pages name within a sentence or a table is there: verbs, flags, functions and their settings."""

import ast
import inspect
import re
import shlex
import textwrap
from collections.abc import Iterator

import pytest

import paucal
from fuzz.flags import spellings_of
from paucal.cli.main import COMMAND_SUMMARIES
from test_examples import PAGES, ROOT, without_code

INLINE = re.compile(r"`([^`\n]*(?:\n[^`\n]*)?)`")
OF_OTHERS = ("--signal", "--backend-store-uri", "--version")  # of sbatch and mlflow; of `paucal` itself
OTHER_PROGRAMS = re.compile(r"(uv|pip|npm|torchrun|pytest|python) ")
OF_FRAMES = {"image", "label", "mask"}  # columns of a DataFrame
USER_PAGES = [page for page in PAGES if page.parent.name != "lab"]


def inline_code(text: str) -> list[str]:
    """Return what stands between backticks, outside of blocks."""
    return [found.replace("\n", " ") for found in INLINE.findall(without_code(text))]


def python_calls(code: str) -> Iterator[tuple[str, set[str]]]:
    """Yield each call of a function of paucal: its name, and its keywords."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Call) and re.fullmatch(r"paucal(\.\w+)+", ast.unparse(node.func)):
            yield ast.unparse(node.func), {keyword.arg for keyword in node.keywords if keyword.arg}


@pytest.mark.parametrize("page", USER_PAGES, ids=lambda page: page.stem)
def test_pages__name_commands_and_flags_that_there_are(page):
    every = frozenset[str]().union(*(spellings_of(verb) for verb in COMMAND_SUMMARIES)).union(OF_OTHERS)
    for code in inline_code(page.read_text()):
        command = re.match(r"(?:uv run )?paucal ([a-z]+)\b(.*)", code)
        words = shlex.split(command[2] if command else "")
        flags = {word.split("=")[0] for word in words if re.match(r"--[a-z]|-[a-z]$", word)}
        assert not command or flags <= spellings_of(command[1]), code
        if not command and not OTHER_PROGRAMS.match(code) and page.stem != "coming_from":
            assert set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", code)) <= every, code


@pytest.mark.parametrize("page", USER_PAGES, ids=lambda page: page.stem)
def test_pages__name_functions_and_settings_that_there_are(page):
    """Also in blocks that are not run, as they train on the reader's photographs."""
    text = page.read_text()
    blocks = [textwrap.dedent(block) for block in re.findall(r"^ *```python\n(.*?)^ *```", text, re.DOTALL | re.M)]
    inline = [code.replace("...", "") for code in inline_code(text) if re.match(r"paucal\.\w+\(.*\)", code)]
    for code in (*blocks, *inline):
        for name, keywords in python_calls(code):
            function = getattr(paucal, name.split(".")[1], None)
            assert function is not None, code
            if name.count(".") == 1:
                assert keywords <= {*inspect.signature(function).parameters, *OF_FRAMES}, code


def test_contributing__names_files_and_functions_that_exist():
    """A path may be below any folder, and a name anywhere in the code."""
    files = [path for folder in ("src", "tests", "benchmarks", "docs") for path in (ROOT / folder).rglob("*")]
    paths = [f"/{path.relative_to(ROOT)}" for path in (*files, *ROOT.glob("*.*"))]
    words = {word for path in files if path.suffix in (".py", ".yaml") for word in re.findall(r"\w+", path.read_text())}
    for code in inline_code((ROOT / "CONTRIBUTING.md").read_text()):
        path = re.sub(r"/(x|NAME|PAPER)\b.*", "", code.split(": ")[0]).rstrip("/")
        if re.fullmatch(r"[\w./]+", path) and ("/" in path or path.endswith((".py", ".yaml", ".md"))):
            assert path.startswith("../") or any(known.endswith(f"/{path}") for known in paths), code
            code = code.partition(": ")[2]
        assert not re.fullmatch(r"[\w.]+", code) or set(code.split(".")) <= words | {""}, code
