"""Images that a model is judged on: none that its run, or one it began with, has learned from, wherever they lie."""

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from paucal.data.checking.survey import image_digests
from paucal.data.images import ImageSet
from paucal.data.sources.opening import open_images
from paucal.data.splits.split import PARTS, Split
from paucal.data.splits.split_csv import read_rows, write_split
from paucal.runs import RunFolder
from paucal.types import UserError
from paucal.verbs.eval.images import choose_images, is_data_of_run, report_folder
from paucal.verbs.eval.settings import EvalSettings

CYCLE = ("train", "train", "val", "test", "unused")


def picture(path: Path, number: int) -> None:
    """Write an image that no other number has."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.random.default_rng(number).integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(path)


def folder(root: Path, numbers: Iterable[int], name: str = "{0:03}.png") -> Path:
    """Write images of two classes."""
    for number in numbers:
        picture(root / "ab"[number % 2] / name.format(number), number)
    return root


def run_on(path: Path, images: ImageSet, parts: list[str], digests: bool = True, init: str | None = None) -> RunFolder:
    """Write what a run leaves of its images."""
    run = RunFolder(path)
    path.mkdir()
    run.write_config({"data": images.location, "init": init}, {}, "train", location=images.location)
    split = Split(np.asarray(parts, dtype="<U6"), "")
    write_split(run.split, images, split, image_digests(images) if digests else None)
    return run


def in_turn(images: ImageSet) -> list[str]:
    return [CYCLE[place % len(CYCLE)] for place in range(len(images))]


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return folder(tmp_path / "photos", range(20))


def names(images: ImageSet, positions) -> list[str]:
    return [images.keys[int(place)] for place in positions]


def test_split__has_a_digest_of_each_image_and_is_read_back(photos: Path, tmp_path: Path):
    images = open_images(photos)
    run = run_on(tmp_path / "run", images, in_turn(images))
    rows = read_rows(run.split)
    assert [row["digest"] for row in rows] == list(image_digests(images))
    assert len({row["digest"] for row in rows}) == 20
    assert choose_images(run, images, None, None).positions.tolist() == [3, 8, 13, 18]
    assert open_images(run.split, root=photos).class_counts().tolist() == [8, 8]  # without the unused ones


@pytest.mark.parametrize(
    "spelled",
    ["photos", "./photos/", "run/../photos", "link", "copy", "table.csv", "moved.csv", "joined"],
)
def test_own_images__are_judged_by_the_parts_of_the_run_however_they_are_spelled(
    photos: Path, tmp_path: Path, monkeypatch, spelled: str
):
    images = open_images(photos)
    run = run_on(tmp_path / "run", images, in_turn(images))
    os.symlink(photos, tmp_path / "link")
    shutil.copytree(photos, tmp_path / "copy")
    rows = [f"photos/{key},{key[0]}\n" for key in images.keys]
    (tmp_path / "table.csv").write_text("image,label\n" + "".join(reversed(rows)))
    for number, key in enumerate(images.keys):  # other names in another order
        (tmp_path / "flat").mkdir(exist_ok=True)
        shutil.copy(photos / key, tmp_path / f"flat/{99 - number}.png")
    (tmp_path / "moved.csv").write_text(
        "image,label\n" + "".join(f"flat/{99 - number}.png,{key[0]}\n" for number, key in enumerate(images.keys))
    )
    monkeypatch.chdir(tmp_path)
    if spelled == "joined":
        halves = [
            folder(tmp_path / name, [number for number in range(20) if number % 4 // 2 == place])
            for place, name in enumerate(("one", "two"))
        ]
        spelled = os.pathsep.join(half.name for half in halves)
    given = open_images(spelled)
    parts = dict(zip(image_digests(images), in_turn(images), strict=True))
    for part in (None, "train", "val", "test"):
        found = choose_images(run, given, part, spelled)
        right = [place for place, digest in enumerate(image_digests(given)) if parts[digest] == (part or "test")]
        assert found.positions.tolist() == right
        assert "(8 train, 4 val, 4 test)" in found.notes[0]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(st.integers(0, 14), st.sampled_from(PARTS)), min_size=3, max_size=12, unique_by=lambda p: p[0]),
    st.lists(st.tuples(st.integers(0, 24), st.sampled_from(["same", "other"])), min_size=2, max_size=14),
    st.sampled_from([None, "test"]),
)
def test_images__are_left_out_exactly_where_a_plain_reader_finds_their_bytes_in_the_run(
    tmp_path_factory, of_run: list[tuple[int, str]], of_data: list[tuple[int, str]], part
):
    """Pictures are known by their bytes; names are the same, others, or those of other pictures."""
    root = tmp_path_factory.mktemp("any")
    for number, _ in of_run:
        picture(root / f"photos/c/{number:02}.png", number)
    for place, (number, named) in enumerate(of_data):
        name = f"{number:02}.png" if named == "same" else f"{(number + 1) % 25:02}-{place}.png"
        picture(root / "data/c" / name, number)
    ours, theirs = (open_images(root / name, labelled=False) for name in ("photos", "data"))
    parts = {f"c/{number:02}.png": part for number, part in of_run}
    run = run_on(root / "run", ours, [parts[key] for key in ours.keys])
    content = {(root / "photos" / key).read_bytes(): parts[key] for key in ours.keys}
    known = [content.get((root / "data" / key).read_bytes(), "") for key in theirs.keys]
    right = [
        place
        for place, one in enumerate(known)
        if (one == "test" if all(known) else one not in ("train", "val"))
    ]  # fmt: skip
    if part and not all(known):  # there are no parts that could be meant
        right = []
    try:
        found = choose_images(run, theirs, part, "data").positions.tolist()
    except UserError:
        found = []
    assert found == right


def test_images_beside_those_of_the_run__are_judged_and_the_count_is_told(photos: Path, tmp_path: Path):
    images = open_images(photos)
    run = run_on(tmp_path / "run", images, in_turn(images))
    more = folder(tmp_path / "more", range(10, 30))
    given = open_images(more)
    found = choose_images(run, given, None, "more")
    learned = {key for key, part in zip(images.keys, in_turn(images), strict=True) if part in ("train", "val")}
    left = [key for key in given.keys if key not in learned]
    assert names(given, found.positions) == left
    count = 20 - len(left)
    assert found.notes == (
        f"left out {count} of the 20 images, which {run.path}, or a run that it started from, used for training or "
        f"selection; {len(left)} remain",
    )
    with pytest.raises(UserError, match="--part val: more has no splits: remove --part"):
        choose_images(run, given, "val", "more")


def test_images_that_were_all_learned_from__are_refused_with_the_flag_that_judges_on_them(photos: Path, tmp_path: Path):
    images = open_images(photos)
    run = run_on(tmp_path / "run", images, ["train"] * 20)
    with pytest.raises(UserError, match=r"only images of .*run \(20 train, 0 val, 0 test\): choose another split"):
        choose_images(run, images, None, "photos")
    assert len(choose_images(run, images, "train", "photos").positions) == 20
    for number in range(2):  # declared for the training, so that none is left to judge on
        picture(tmp_path / f"parted/train/{'ab'[number]}/new.png", 900 + number)
    shutil.copytree(photos, tmp_path / "parted/test")
    with pytest.raises(UserError, match="all 20 images of parted are training or validation images"):
        choose_images(run, open_images(tmp_path / "parted"), None, "parted")


def test_parts_of_other_images__are_obeyed(photos: Path, tmp_path: Path):
    images = open_images(photos)
    run = run_on(tmp_path / "run", images, in_turn(images))
    for place, part in enumerate(("train", "val", "test")):
        folder(tmp_path / "new" / part, range(100 * (place + 1), 100 * (place + 1) + 4))
    given = open_images(tmp_path / "new")
    for part in ("train", "val", "test", None):
        found = names(given, choose_images(run, given, part, "new").positions)
        assert {key.split("/")[0] for key in found} == {part or "test"}
        assert len(found) == 4
    shutil.rmtree(tmp_path / "new/test")
    two = open_images(tmp_path / "new")
    for part in (None, "test", "val"):  # the val part is the one that is held out
        assert {key.split("/")[0] for key in names(two, choose_images(run, two, part, "new").positions)} == {"val"}


def test_other_images_of_the_same_names__are_judged_and_said(photos: Path, tmp_path: Path):
    """Cameras count: names say little where the content is known."""
    images = open_images(photos)
    run = run_on(tmp_path / "run", images, in_turn(images))
    others = folder(tmp_path / "others", range(1000, 1020))
    for number in range(20):
        shutil.move(others / f"{'ab'[number % 2]}/{1000 + number}.png", others / f"{'ab'[number % 2]}/{number:03}.png")
    given = open_images(others)
    assert list(given.keys) == list(images.keys)
    found = choose_images(run, given, None, "others")
    assert len(found.positions) == 20
    assert found.notes == (
        f"12 images have the names of training or validation images of {run.path}, but different content, so the run "
        "has not seen these images",
    )


def test_run_without_digests__knows_its_images_by_their_place(photos: Path, tmp_path: Path, monkeypatch):
    images = open_images(photos)
    run = run_on(tmp_path / "run", images, in_turn(images), digests=False)
    monkeypatch.chdir(tmp_path)
    os.symlink(photos, tmp_path / "link")
    for spelled in ("photos", "link"):
        assert choose_images(run, open_images(spelled), None, spelled).positions.tolist() == [3, 8, 13, 18]
    shutil.copytree(photos, tmp_path / "copy")
    found = choose_images(run, open_images("copy"), None, "copy")
    assert len(found.positions) == 20
    assert "12 images have the names" in found.notes[0]
    assert found.notes[0].endswith("if these are the same images, the score is too optimistic")


def test_runs_that_a_run_began_with__count_too(photos: Path, tmp_path: Path):
    first = open_images(photos)
    old = run_on(tmp_path / "old", first, in_turn(first))
    second = open_images(folder(tmp_path / "second", range(100, 110)))
    run = run_on(tmp_path / "run", second, in_turn(second), init=str(old.path))
    found = choose_images(run, first, None, "photos")
    assert found.positions.tolist() == [place for place in range(20) if CYCLE[place % 5] in ("test", "unused")]
    shutil.move(tmp_path / "second", tmp_path / "elsewhere")  # as on another machine
    given = open_images(tmp_path / "elsewhere")
    assert choose_images(run, given, None, "elsewhere").positions.tolist() == [3, 8]


def test_model_without_a_run__says_that_nothing_is_known(photos: Path, tmp_path: Path):
    images = open_images(photos)
    (tmp_path / "alone").mkdir()
    found = choose_images(RunFolder(tmp_path / "alone"), images, None, "photos")
    assert len(found.positions) == 20
    assert found.notes == (
        f"whether the model was trained on these images is unknown: {tmp_path / 'alone'} has no split.csv",
    )
    write_split(tmp_path / "alone/split.csv", images, Split(np.asarray(in_turn(images)), ""), image_digests(images))
    assert len(choose_images(RunFolder(tmp_path / "alone"), images, None, "photos").positions) == 4


def test_same_place__is_opened_as_the_run_opened_it(photos: Path, tmp_path: Path, monkeypatch):
    run = RunFolder(tmp_path / "run")
    run.path.mkdir()
    run.write_config({"data": str(photos), "label_column": "kind", "classes": None}, {}, "train")
    monkeypatch.chdir(tmp_path)
    for spelled, flags, same in (
        ("photos", {}, True),
        ("photos/", {"label_column": "kind"}, True),
        ("photos", {"label_column": "other"}, False),
        ("run", {}, False),
    ):
        assert is_data_of_run(run, spelled, EvalSettings(**flags)) == same  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (["/s/one/val/images", "/s/two/val/images"], ["one-val-images", "two-val-images"]),
        (["/s/one/images", "/s/two/images"], ["one-images", "two-images"]),
        (["/s/a.csv", "/s/a.json"], ["s-a.csv", "s-a.json"]),
        (["/s/test", "/test"], ["s-test", "-test"]),
    ],
)
def test_folders__are_different_for_different_sets(tmp_path, data, expected):
    run = RunFolder(tmp_path)
    folders = [report_folder(run, target, data, EvalSettings()) for target in data]
    assert folders == [run.evaluation(name) for name in expected]
