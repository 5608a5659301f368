"""Splits that keep groups whole, and folds, for any groups."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from paucal.data.images import ImageSet
from paucal.data.splits.groups import group_numbers, parse_fold, splits_of_fold
from paucal.data.splits.split import make_split
from paucal.data.stores import ArrayStore
from paucal.types import UserError


def made(groups: list[int], labels: list[int], parts: list[str] | None = None, **columns: list[str]) -> ImageSet:
    pairs = list(zip(groups, labels, strict=True))
    keys = [f"c{label}/p{group:03}_{number:04}.png" for number, (group, label) in enumerate(pairs)]
    pixels = np.random.default_rng(0).integers(0, 256, (len(keys), 16, 16), dtype=np.uint8)
    names = tuple("abcd"[: max(labels) + 1])
    declared = parts or [""] * len(keys)
    return ImageSet("made", "there", names, keys, np.asarray(labels), declared, ArrayStore(pixels), columns=columns)


def patients(count: int = 20, each: int = 5, n_classes: int = 2) -> ImageSet:
    groups = [patient for patient in range(count) for _ in range(each)]
    return made(groups, [group % n_classes for group in groups])


PATTERN = r"p\d+"


def sides(images: ImageSet, parts) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for key, part in zip(images.keys, parts.tolist(), strict=True):
        found.setdefault(key.split("/")[1][:4], set()).add(part)
    return found


def test_groups__stay_on_one_side_and_shares_are_kept():
    images = patients()
    split = make_split(images, seed=1, group_by=PATTERN)
    assert all(len(parts) == 1 for parts in sides(images, split.parts).values())
    assert split.counts() == {"train": 70, "val": 10, "test": 20, "unused": 0}
    assert images.class_counts(split.indices("test")).tolist() == [10, 10]
    assert "whole groups by" in split.description
    assert "(20 groups)" in split.description
    assert (make_split(images, seed=1, group_by=PATTERN).parts == split.parts).all()
    assert (make_split(images, seed=2, group_by=PATTERN).parts != split.parts).any()


def test_groups__leave_one_for_each_later_part():
    split = make_split(made([0] * 18 + [1, 2], [0] * 20), val_fraction=0.1, group_by=PATTERN)
    assert split.counts() == {"train": 18, "val": 1, "test": 1, "unused": 0}


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 12), st.integers(0, 2)), min_size=20, max_size=120),
    st.integers(0, 5),
    st.sampled_from([0.0, 0.1, 0.25]),
)
def test_groups__of_any_kind_are_never_torn(pairs, seed, share):
    images = made([group for group, _ in pairs], [label for _, label in pairs])
    assume(all(images.class_counts() > 0))
    try:
        split = make_split(images, seed=seed, val_fraction=share, test_fraction=0.2, group_by=PATTERN)
    except UserError as problem:
        told = str(problem)
    else:
        told = ""
    if told:  # a class lies in a group of its own, so that no part can be cut
        assume("--group-by" in told)
        alone = [set(images.labels[group_numbers(images, PATTERN) == one].tolist()) for one in range(13)]
        assert any(sum(label in found for found in alone) <= 2 for label in range(len(images.classes)))
        return
    assert all(len(parts) == 1 for parts in sides(images, split.parts).values())
    assert (images.class_counts(split.indices("train")) > 0).all()
    assert len(split.indices("test")) > 0
    assert (len(split.indices("val")) > 0) == (share > 0)


def test_groups__by_a_column_of_the_table():
    images = made([0] * 40, [0, 1] * 20, patient=[f"x{number // 4}" for number in range(40)])
    split = make_split(images, group_by="patient")
    torn = Counter()
    for name in set(images.columns["patient"]):
        torn[len({part for part, own in zip(split.parts, images.columns["patient"], strict=True) if own == name})] += 1
    assert torn == {1: 10}


@pytest.mark.parametrize("cell", ["", "nan", " "])
def test_groups__of_a_column_with_empty_cells_are_refused(cell):
    images = made([0] * 12, [0, 1] * 6, patient=["p1", "p1", "p2", "p2", "p3", "p3", *[cell] * 6])
    with pytest.raises(
        UserError, match="6 of 12 images have no value in the column 'patient', so their groups are unknown"
    ):
        make_split(images, group_by="patient")


def test_groups__of_copies():
    images = patients(4, 10)
    pixels = images.store._pixels  # type: ignore[attr-defined]
    pixels[7], pixels[33] = pixels[2], pixels[2]
    numbers = group_numbers(images, "duplicates")
    assert numbers[2] == numbers[7] == numbers[33]
    assert len(np.unique(numbers)) == 38


@pytest.mark.parametrize(
    ("by", "words"),
    [
        ("patient", "is not a column, and as a pattern matches only 0 of 100 names"),
        ("p(", "is neither a column nor a regular expression"),
        ("x" * 400, "has 400 characters"),
        (r"^c\d", "gives 2 groups"),
    ],
)
def test_groups__that_cannot_be_are_refused(by, words):
    with pytest.raises(UserError, match=words):
        make_split(patients(), group_by=by)


@pytest.mark.parametrize("parts", [["train", "test"], ["train", "val", "test"]])
def test_groups__torn_by_the_own_parts_are_refused(parts):
    groups = [number // 3 for number in range(60)]
    torn = made(groups, [group % 2 for group in groups], [parts[number % len(parts)] for number in range(60)])
    with pytest.raises(UserError, match=r"the data's own splits .* divide 20 groups"):
        make_split(torn, group_by=PATTERN)
    whole = made(groups, [group % 2 for group in groups], [parts[group // 2 % len(parts)] for group in groups])
    assert make_split(whole, group_by=PATTERN).counts()["test"] > 0


@pytest.mark.parametrize("by", [None, PATTERN])
def test_folds__test_every_image_once(by):
    images = patients(20, 5)
    tested = np.zeros(len(images), dtype=int)
    for number in range(1, 5):
        split = make_split(images, seed=3, group_by=by, fold=f"{number}/4")
        tested[split.indices("test")] += 1
        assert images.class_counts(split.indices("test")).min() >= 10
        assert len(split.indices("val")) > 0
        if by is not None:
            assert all(len(parts) == 1 for parts in sides(images, split.parts).values())
    assert (tested == 1).all()


def test_folds__do_not_depend_on_the_order_of_the_images():
    images = patients(20, 5)
    order = np.random.default_rng(0).permutation(100)
    parts = splits_of_fold(images, 2, 5, 0, None)
    assert (splits_of_fold(images.select(order), 2, 5, 0, None) == parts[order]).all()


@pytest.mark.parametrize("text", ["2", "0/5", "a/b", "6/5", "1/1", "2/5/1"])
def test_folds__that_are_none_are_refused(text):
    with pytest.raises(UserError, match="--fold is"):
        make_split(patients(), fold=text)


def test_folds__of_too_few_images_are_refused():
    with pytest.raises(UserError, match="too few for 60 folds"):
        make_split(patients(), fold="1/60")
    with pytest.raises(UserError, match="--group-by gives 20 groups, too few for 30 folds"):
        make_split(patients(), fold="1/30", group_by=PATTERN)
    assert parse_fold("12/20") == (12, 20)


@pytest.mark.parametrize("by", [None, PATTERN])
def test_folds__of_unlabelled_images_test_each_once(by):
    images = patients(20, 5)
    unlabelled = ImageSet("made", "there", (), images.keys, np.full(100, -1), images.declared_splits, images.store)
    splits = [make_split(unlabelled, group_by=by, fold=f"{number}/5") for number in range(1, 6)]
    assert sorted(np.concatenate([split.indices("test") for split in splits]).tolist()) == list(range(100))
    with pytest.raises(UserError, match="there has 3 images, too few for 5 folds"):
        make_split(unlabelled.select(np.arange(3)), fold="1/5")


@pytest.mark.parametrize("fold", [1, 2, 3])
def test_folds__that_would_hold_a_whole_class_are_refused(fold):
    images = made([*range(12), 13, 13, 13], [*([0, 1] * 6), 2, 2, 2])
    with pytest.raises(UserError, match="all images of class 'c' are in the same fold of 3"):
        make_split(images, val_fraction=0, group_by=PATTERN, fold=f"{fold}/3")
