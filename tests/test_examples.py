"""Every example of the documentation runs: those in docstrings, and the Python blocks of the pages."""

import doctest
import importlib
import pkgutil
import re
import shlex
from pathlib import Path

import pytest

import paucal
from fuzz.flags import flags_of
from paucal.cli.main import main

ROOT = Path(__file__).parents[1]
MODULES = sorted(module.name for module in pkgutil.walk_packages(paucal.__path__, "paucal."))
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


def blocks() -> list[tuple[str, str]]:
    """Python blocks by page and number; those that train on the reader's own photos are left to the CLI tests."""
    found = [(f"{page.name}-{i}", code) for page in PAGES for i, code in enumerate(BLOCK.findall(page.read_text()))]
    return [(name, code) for name, code in found if '"photos/"' not in code]


@pytest.mark.parametrize("name", ["paucal", *MODULES])
def test_docstrings__examples_give_what_they_say(name):
    module = importlib.import_module(name)
    assert doctest.testmod(module, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE).failed == 0


def test_docstrings__there_are_examples_of_the_public_interface():
    finder = doctest.DocTestFinder(recurse=False)
    verbs = (paucal.train, paucal.pretrain, paucal.evaluate, paucal.predict, paucal.label, paucal.load)
    for owner in (paucal.drloc_loss, paucal.LocalizationHead, paucal.DrLoc, *verbs):
        assert any(test.examples for test in finder.find(owner)), owner


@pytest.mark.parametrize(("name", "code"), blocks(), ids=lambda value: value if len(value) < 40 else "")
def test_pages__python_blocks_run(name, code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(code, name, "exec"), {"__name__": "example"})


def test_pages__links_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\((?!http|#)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_index__leads_to_every_page():
    docs = ROOT / "docs"
    linked = {(docs / target).resolve() for target in re.findall(r"\]\(([^)#]+)", (docs / "index.md").read_text())}
    assert {page for page in docs.rglob("*.md") if page.name != "index.md"} <= linked


def commands() -> list[list[str]]:
    """The commands of the README, as words after `paucal`."""
    lines = re.findall(r"^uv run (paucal [^#\n]*)", (ROOT / "README.md").read_text(), re.MULTILINE)
    return [shlex.split(line)[1:] for line in lines]


def test_readme__commands_name_verbs_and_flags_that_there_are():
    assert {words[0] for words in commands()} >= {"train", "pretrain", "label", "eval"}
    for verb, *words in commands():
        assert {word for word in words if word.startswith("-")} <= {flag.name for flag in flags_of(verb)}, words


@pytest.mark.slow
def test_readme__commands_work_in_their_order(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for words in commands():
        assert main(words) == 0, words
