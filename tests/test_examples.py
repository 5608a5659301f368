"""Every example of the documentation runs: those in docstrings, and the Python blocks of the pages."""

import doctest
import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import paucal

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
