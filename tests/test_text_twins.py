"""The text beside the site: `llms.txt` has a sentence on each page, and the reference its signatures."""

import importlib.util
from types import ModuleType

import pytest

from test_examples import PAGES, ROOT

HOOK = ROOT / "docs/site/text_twins.py"


@pytest.fixture(scope="module")
def twins() -> ModuleType:
    for package in ("griffe", "mkdocs"):
        pytest.importorskip(package, reason="the group docs is not installed")
    spec = importlib.util.spec_from_file_location("text_twins", HOOK)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_description__is_the_first_sentence_without_links(twins):
    text = "# Title\n\n```\ncode\n```\n\n| a | b |\n\n![A picture](a.png)\n\nReads [tables](t.md), and\nlists. More.\n"
    assert twins.description(text) == "Reads tables, and lists."
    assert twins.description("# Title\n\nTake one:\n\n- a list\n") == "Take one."
    assert twins.description("# Title\n\n| a | b |\n") == ""


@pytest.mark.parametrize("page", [page for page in PAGES if page.parent.name != "lab"], ids=lambda page: page.stem)
def test_pages__begin_with_a_sentence_that_describes_them(twins, page):
    words = twins.description(page.read_text())
    assert words.endswith((".", "?"))
    assert 25 < len(words) < 260, words


def test_reference__has_signature_and_docstring_of_what_a_page_names(twins):
    text = twins.with_reference("# Verbs\n\nWords.\n\n::: paucal.predict\n    options:\n      x: 1\n\nMore.\n")
    assert text.startswith("# Verbs\n\nWords.\n\n## predict\n\n```python\npredict(")
    assert ") -> Predictions\n```\n\n" in text
    assert "\nArgs:\n" in text
    assert text.endswith("\nMore.\n")
    assert ":::" not in text


def test_reference__has_fields_methods_and_members(twins):
    settings = twins.entry("paucal.methods.training_settings.TrainSettings")
    assert "\nlabel_smoothing: float = 0.1  # label smoothing\n" in settings
    assert "\nScore(value: float, low: float | None = None, " in twins.entry("paucal.metrics.intervals.Score")
    assert "\n### probabilities\n\n```python\nprobabilities(" in twins.entry("paucal.models.trained.TrainedModel")
    assert "\n## drloc_loss\n\n```python\ndrloc_loss(" in twins.entry("paucal.losses")
