"""Every example of the documentation runs: those in docstrings, and the Python blocks of the pages."""

import doctest
import importlib
import inspect
import pkgutil
import re
import shlex
import typing
from pathlib import Path

import pytest

import paucal
from fuzz.flags import flags_of, spellings_of
from paucal.cli.main import main

ROOT = Path(__file__).parents[1]
MODULES = sorted(module.name for module in pkgutil.walk_packages(paucal.__path__, "paucal."))
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
USER_PAGES = [page for page in PAGES if page.parent.name not in ("lab", "stories")]
STEPS = re.compile(r"^(STEPS(?:, \w+)? = )\d+", re.MULTILINE)  # the training steps of a demonstration
GAINED = re.compile(r"^assert .*[<>] .*$", re.MULTILINE)  # what they have brought
FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)  # language and content of a block
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


def blocks() -> list[tuple[str, str]]:
    """Python blocks by page and number; those that train on the reader's own photos are left to the CLI tests."""
    found = [(f"{page.name}-{i}", code) for page in PAGES for i, code in enumerate(BLOCK.findall(page.read_text()))]
    return [(name, code) for name, code in found if '"photos/"' not in code]


def with_examples() -> list[str]:
    """Modules whose text has an example, as looking for examples takes longer than most of them."""
    files = {name: ROOT.joinpath("src", *name.split(".")) for name in ("paucal", *MODULES)}
    sources = {name: path / "__init__.py" if path.is_dir() else path.with_suffix(".py") for name, path in files.items()}
    return [name for name, source in sources.items() if ">>>" in source.read_text()]


@pytest.mark.parametrize("name", with_examples())
def test_docstrings__examples_give_what_they_say(name):
    module = importlib.import_module(name)
    assert doctest.testmod(module, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE).failed == 0


def test_modules__can_all_be_imported():
    for name in MODULES:
        importlib.import_module(name)


def test_docstrings__there_are_examples_of_the_public_interface():
    finder = doctest.DocTestFinder(recurse=False)
    verbs = (paucal.train, paucal.pretrain, paucal.evaluate, paucal.predict, paucal.label, paucal.load)
    for owner in (paucal.drloc_loss, paucal.LocalizationHead, paucal.DrLoc, *verbs):
        assert any(test.examples for test in finder.find(owner)), owner


@pytest.mark.parametrize(("name", "code"), blocks(), ids=lambda value: value if len(value) < 40 else "")
def test_pages__python_blocks_run(name, code, tmp_path, monkeypatch):
    """A demonstration takes two steps here, after which nothing is better than anything else."""
    monkeypatch.chdir(tmp_path)
    if STEPS.search(code):
        code = GAINED.sub("", STEPS.sub(r"\g<1>2", code))
    exec(compile(code, name, "exec"), {"__name__": "example"})


@pytest.mark.slow
@pytest.mark.parametrize(("name", "code"), [(name, code) for name, code in blocks() if STEPS.search(code)])
def test_pages__demonstrations_show_what_they_say(name, code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(code, name, "exec"), {"__name__": "example"})


def without_code(text: str) -> str:
    return re.sub(r"^ *```.*?^ *```", "", text, flags=re.DOTALL | re.MULTILINE)


def test_pages__links_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\((?!http|#)([^)#]+)", without_code(page.read_text())):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def links_of(page: Path) -> set[Path]:
    return {(page.parent / target).resolve() for target in re.findall(r"\]\(([^)#]+)", page.read_text())}


def test_index__leads_to_every_page():
    docs = ROOT / "docs"
    linked = links_of(docs / "index.md") | links_of(docs / "lab/index.md")
    assert {page for page in docs.rglob("*.md") if page != docs / "index.md"} <= linked


def test_lab__pages_have_a_date_and_a_verdict():
    pages = [page for page in sorted((ROOT / "docs/lab").glob("*.md")) if page.name != "index.md"]
    for page in pages:
        assert re.match(r"2026-\d\d-\d\d-", page.name), page
        assert "**Verdict:**" in page.read_text(), page


def test_reference__has_every_public_name():
    documented = set()
    for page in (ROOT / "docs/reference").glob("*.md"):
        for name in re.findall(r"^::: (\S+)", page.read_text(), re.MULTILINE):
            thing = pkgutil.resolve_name(name)
            documented |= {id(thing), *(id(getattr(thing, one)) for one in getattr(thing, "__all__", ()))}
    assert not {name for name in paucal.__all__ if id(getattr(paucal, name)) not in documented} - {"__version__"}


def test_reference__has_what_every_function_returns():
    pages = "".join(page.read_text() for page in (ROOT / "docs/reference").glob("*.md"))
    missing = {}
    for name in paucal.__all__:
        function = getattr(paucal, name)
        hints = inspect.get_annotations(function, eval_str=True) if inspect.isfunction(function) else {}
        answer = hints.get("return")
        for each in (answer, *typing.get_args(answer)):
            if isinstance(each, type) and re.match(r"paucal\.(?!losses)", each.__module__):
                missing |= {name: each.__name__} if f".{each.__name__}\n" not in pages else {}
    assert missing == {}


def word_count(page: Path) -> int:
    return len(re.findall(r"\w[\w'.%-]*", without_code(page.read_text())))


def test_pages__outside_the_laboratory_are_short():
    assert {page.name: word_count(page) for page in USER_PAGES if word_count(page) > 900} == {}


def commands() -> list[list[str]]:
    """Commands of the README and of the page with every method, as words after `paucal`, without those on photos."""
    text = (ROOT / "README.md").read_text() + (ROOT / "docs/every_method.md").read_text()
    lines = [shlex.split(line)[1:] for line in re.findall(r"^uv run (paucal [^#\n]*)", text, re.MULTILINE)]
    return [words for words in lines if "photos/" not in words]


def shown_commands() -> list[tuple[str, list[str]]]:
    """Every command that a page shows in a block, as words after `paucal`."""
    found = []
    for page in PAGES:
        for language, block in FENCE.findall(page.read_text()):
            if language not in ("", "text"):
                continue
            for line in re.findall(r"^ *(?:uv run )?paucal ([a-z](?:.*\\\n)*.*)", block, re.MULTILINE):
                words = shlex.split(line.replace("\\\n", " ").split(" -- ")[0], comments=True)
                found.append((str(page.relative_to(ROOT)), words))
    return found


@pytest.mark.parametrize("page", sorted({name for name, _ in shown_commands()}))
def test_pages__commands_name_verbs_and_flags_that_there_are(page):
    for verb, *words in [words for name, words in shown_commands() if name == page]:
        flags = {word.split("=")[0] for word in words if re.match(r"--[a-z]|-[a-z]$", word)}
        assert flags <= spellings_of(verb), (verb, words)


def test_readme__is_short_and_says_the_two_commands():
    text = (ROOT / "README.md").read_text()
    assert len(text.split()) < 600
    assert "\nuv run paucal train\n" in text
    assert "`uv run pytest -n auto`" in text


def test_readme__commands_name_verbs_and_flags_that_there_are():
    assert {words[0] for words in commands()} >= {"train", "pretrain", "label", "eval"}
    for verb, *words in commands():
        assert {word for word in words if word.startswith("-")} <= {flag.name for flag in flags_of(verb)}, words


@pytest.mark.slow
def test_readme__commands_work_in_their_order(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for words in commands():
        assert main(words) == 0, words
