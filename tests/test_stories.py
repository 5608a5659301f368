"""The stories of docs/stories/ are followed word by word, on the real images that they speak of."""

import re
import shlex
import textwrap
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

import story_images
from paucal.cli.main import main

STORIES = Path(__file__).parents[1] / "docs/stories"
TAB = re.compile(r"^    ```(python)?\n(.*?)^    ```", re.DOTALL | re.MULTILINE)
LENGTHS = {"15m": "90s", "90s": "20s", "2m": "20s", "3": "1"}  # what the test gives a training instead
SHORTER = re.compile(r"\b(?:15m|90s|2m)\b|(?<=epochs[ =])3\b")

WRITERS: dict[str, Callable[[Path], None]] = {
    "boxes": story_images.write_boards,
    "few_labels": partial(story_images.write_few_labels, more=300),
    "microscope": story_images.write_cells,
    "shop_photographs": story_images.write_clothes,
    "transformer": story_images.write_things,
}


def steps(story: str) -> list[tuple[str, str]]:
    """Return the commands and Python blocks of the tabs in their order, as (language, text)."""
    text = (STORIES / f"{story}.md").read_text()
    return [(found[1] or "shell", textwrap.dedent(found[2])) for found in TAB.finditer(text)]


def test_stories__each_is_tried():
    assert {page.stem for page in STORIES.glob("*.md")} == set(WRITERS)


@pytest.mark.parametrize("story", WRITERS)
def test_stories__say_what_to_see_and_what_to_do(story):
    text = (STORIES / f"{story}.md").read_text()
    assert "You should see" in text or "you should see" in text
    assert "## If it goes wrong" in text
    languages = [language for language, _ in steps(story)]
    assert languages.count("python") >= languages.count("shell") > 2


@pytest.mark.slow
@pytest.mark.parametrize("story", WRITERS)
def test_stories__work_in_their_order(story, tmp_path, monkeypatch):
    if not story_images.SHARED.exists():
        pytest.skip(f"{story_images.SHARED} with the real images is not here")
    monkeypatch.chdir(tmp_path)
    WRITERS[story](tmp_path)
    for language, text in steps(story):
        text = SHORTER.sub(lambda length: LENGTHS[length[0]], text)
        if language == "python":
            exec(compile(text, story, "exec"), {"__name__": "__main__"})
            continue
        for line in text.replace("\\\n", " ").splitlines():
            words = shlex.split(line)[1:]
            code = main(words)
            assert code == 0 or (code, words[0]) == (1, "check"), line  # a set may mislead, as the page says
