"""Classes that format, size or mode alone tell apart are noted, and chance is not."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from paucal.data.checking.findings import CheckedSet
from paucal.data.checking.pictures import MIN_IMAGES, classes_given_away, format_of, giveaway_findings
from paucal.data.checking.survey import survey_images
from paucal.data.sources.opening import open_images


def told(root: Path) -> list[str]:
    images = open_images(root)
    checked = CheckedSet(images, np.full(len(images), "train"), False)
    return [one.text for one in giveaway_findings(checked, survey_images(images))]


def save(path: Path, size: tuple[int, int], mode: str = "RGB", seed: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 255, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(pixels).convert(mode).save(path)


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        (("jpg", (64, 48), "RGB"), ("png", (32, 32), "RGB"), ["format of the files (cat jpg, dog png)", "cat 64 x 48"]),
        (("png", (32, 32), "L"), ("png", (32, 32), "RGB"), ["the pixel mode of the files (cat L, dog RGB)"]),
        (("jpg", (32, 32), "RGB"), ("JPEG", (32, 32), "RGB"), []),
    ],
)
def test_classes_of_one_kind_each__are_noted(tmp_path: Path, first, second, words):
    for name, (ending, size, mode) in (("cat", first), ("dog", second)):
        for number in range(6):
            save(tmp_path / name / f"{number}.{ending}", size, mode, number)
    found = told(tmp_path)
    assert len(found) == bool(words)
    assert all(word in found[0] for word in words)


def test_formats__are_told_by_the_ending():
    keys = ("a/b.JPG", "a.jfif", "x.tar/c-00000001.png", "a.csv", "a")
    assert [format_of(key) for key in keys] == ["jpg", "jpg", "png", "", ""]


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), max_size=40))
def test_told_classes__are_those_of_a_plain_loop(pairs: list[tuple[int, int]]):
    """Each image is guessed by the others alone."""
    guesses = []
    for place, (value, _) in enumerate(pairs):
        others = [label for other, (like, label) in enumerate(pairs) if like == value and other != place]
        guesses.append(max(sorted(set(others)), key=others.count) if others else None)
    right = []
    for label in sorted({label for _, label in pairs}):
        own = [guess == label for guess, (_, one) in zip(guesses, pairs, strict=True) if one == label]
        rest = [guess != label for guess, (_, one) in zip(guesses, pairs, strict=True) if one != label]
        named = guesses.count(label)
        if (
            len(own) >= MIN_IMAGES
            and rest
            and sum(own) >= 0.95 * max(len(own), named)
            and sum(rest) >= 0.95 * len(rest)
        ):
            right.append(label)
    assert (
        classes_given_away([value for value, _ in pairs], np.asarray([label for _, label in pairs], dtype=np.int64))
        == right
    )


def test_sizes_that_are_all_different__tell_nothing():
    assert classes_given_away(list(range(40)), np.arange(40) % 2) == []
    assert classes_given_away(["a"] * 40, np.asarray([0] * 39 + [1])) == []
