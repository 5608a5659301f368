"""The parts of images with boxes: lists in all spellings, folders, and what belongs to none."""

import random
from pathlib import Path

import pytest

from paucal.data.boxes.opening import read_boxes
from paucal.types import UserError
from tasks.detection.made import write_coco, write_voc

LISTS = "ImageSets/Main"


def write_lists(root: Path, folder: str = LISTS, encoding: str = "utf-8", end: str = "\n", **lists: list[str]) -> Path:
    (root / folder).mkdir(parents=True, exist_ok=True)
    for name, lines in lists.items():
        (root / folder / f"{name}.txt").write_bytes((end.join(lines) + end).encode(encoding))
    return root


def named_voc(root: Path, stems: list[str]) -> Path:
    """Write VOC's layout with images of these names."""
    made = write_voc(root.with_name("made"), len(stems))
    for folder in ("JPEGImages", "Annotations"):
        (root / folder).mkdir(parents=True)
    for number, stem in enumerate(stems):
        (made / f"JPEGImages/{number}.png").rename(root / f"JPEGImages/{stem}.png")
        text = (made / f"Annotations/{number}.xml").read_text().replace(f"{number}.png", f"{stem}.png")
        (root / f"Annotations/{stem}.xml").write_text(text)
    return root


def parts(root: Path) -> dict[str, str]:
    return {Path(one.key).stem: one.declared_split for one in read_boxes(root)[1].images}


EXPECTED = {"0": "train", "1": "train", "2": "train", "3": "val", "4": "test", "5": "test"}


@pytest.mark.parametrize("folder", [LISTS, "imagesets/main", "ImageSets", "."])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_lists__are_found_in_all_their_places(tmp_path: Path, folder: str, encoding: str):
    root = write_voc(tmp_path / "set")
    write_lists(root, folder, encoding, "\r\n", train=["0", "1", "2"], val=["3"], test=["4", "5"])
    assert parts(root) == EXPECTED


LINES = {
    "ending": "{}.png",
    "other ending": "{}.jpg",
    "path": "JPEGImages/{}.png",
    "path without ending": "JPEGImages/{}",
    "windows": "JPEGImages\\{}.png",
    "annotation": "Annotations/{}.xml",
    "absolute": "/home/me/VOC2012/JPEGImages/{}.png",
    "other folder": "./images/{}.png",
    "sign": "{}  1",
    "negative": "{} -1",
    "paddle": "JPEGImages/{0}.png Annotations/{0}.xml",
    "spaces": "   {}.png  ",
}


@pytest.mark.parametrize("kind", LINES)
def test_lines_of_lists__name_images_in_many_ways(tmp_path: Path, kind: str):
    root = write_voc(tmp_path / "set")
    lists = {
        part: [LINES[kind].format(n) for n, p in EXPECTED.items() if p == part] for part in ("train", "val", "test")
    }
    assert parts(write_lists(root, **lists)) == EXPECTED


@pytest.mark.parametrize(("train", "val", "test"), [("Train", "Val", "Test"), ("training", "validation", "testing")])
def test_spellings_of_parts__are_those_of_folders(tmp_path: Path, train: str, val: str, test: str):
    lists = {train: ["0", "1", "2"], val: ["3"], test: ["4", "5"]}
    assert parts(write_lists(write_voc(tmp_path / "set"), **lists)) == EXPECTED


def test_trainval__is_what_train_and_val_leave(tmp_path: Path):
    root = write_lists(write_voc(tmp_path / "set"), trainval=["0", "1", "2", "3"], test=["4", "5"])
    assert parts(root) == {**EXPECTED, "3": "train"}
    assert parts(write_lists(root, val=["3"])) == EXPECTED
    write_lists(root, trainval=["0", "4"])
    with pytest.raises(UserError, match=r"trainval\.txt' lists '4', which is also in the list of test: remove"):
        parts(root)


def test_names_with_spaces__are_whole_names(tmp_path: Path):
    root = named_voc(tmp_path / "set", [f"slide {n // 2}" + " copy" * (n % 2) for n in range(6)])
    write_lists(root, train=["slide 0", "slide 1", "slide 2 copy"], val=["slide 0 copy", "slide 1 copy", "slide 2"])
    assert parts(root) == {
        **{"slide 0": "train", "slide 1": "train", "slide 2 copy": "train"},
        **{"slide 0 copy": "val", "slide 1 copy": "val", "slide 2": "val"},
    }


def test_lists_of_no_image__are_refused_or_named(tmp_path: Path):
    root = write_lists(write_voc(tmp_path / "set"), train=["a", "b"], val=["1"])
    with pytest.raises(
        UserError, match=r"no line of '.*train\.txt' names an image with annotations; the first line is 'a'"
    ):
        read_boxes(root)
    top = write_lists(write_voc(tmp_path / "top"), ".", test=["notes on the test"])
    assert set(parts(top).values()) == {""}
    assert "so the list is skipped" in read_boxes(top)[1].notes[0]


def test_what_belongs_to_no_part__is_left_out_and_said(tmp_path: Path):
    root = write_lists(write_voc(tmp_path / "set"), train=["0", "1", "77"], val=["2"])
    described = read_boxes(root)[1]
    assert {Path(one.key).stem for one in described.images} == {"0", "1", "2"}
    assert described.notes == (
        f"1 line of {LISTS}/train.txt without an image with annotations, such as '77'",
        "3 images with annotations that belong to no split were left out",
    )


def test_names_of_several_images__are_refused_in_a_list(tmp_path: Path):
    root = tmp_path / "set"
    for camera in ("a", "b"):
        write_voc(tmp_path / camera, 2)
        for folder in ("JPEGImages", "Annotations"):
            (root / folder).mkdir(parents=True, exist_ok=True)
            (tmp_path / camera / folder).rename(root / folder / camera)
    keys = {one.key for one in read_boxes(root)[1].images}
    assert keys == {f"JPEGImages/{camera}/{n}.png" for camera in "ab" for n in range(2)}
    write_lists(root, train=["a/0", "a/1", "b/0"], val=["b/1"])
    assert {one.key: one.declared_split for one in read_boxes(root)[1].images}["JPEGImages/b/1.png"] == "val"
    write_lists(root, train=["0", "a/1", "b/0"])
    with pytest.raises(UserError, match=r"names '0', which may be 'JPEGImages/a/0\.png' or 'JPEGImages/b/0\.png'"):
        read_boxes(root)


def test_a_single_folder_called_like_a_part__is_no_part(tmp_path: Path):
    for folder in ("test", "day"):
        write_coco(tmp_path / "set" / folder, 3)
    (tmp_path / "set/day/_annotations.coco.json").rename(tmp_path / "set/day/_annotations_day.coco.json")
    described = read_boxes(tmp_path / "set")[1]
    assert [one.declared_split for one in described.images] == ["test"] * 3  # its file says so
    assert described.notes == ("3 images with annotations that belong to no split were left out",)


def slow_part(line: str, lists: dict[str, list[str]]) -> str:
    return next((part for part, lines in lists.items() if line in lines), "")


@pytest.mark.parametrize("seed", range(12))
def test_random_lists__against_a_slow_reader(tmp_path: Path, seed: int):
    """ImageFinder that are beginnings of each other, in any order and with any forms of lines."""
    chosen = random.Random(seed)
    stems = chosen.sample(["a", "a b", "a b 1", "a.b", "b", "b 1", "1", "1 0", "a 0", "ä", "a copy", "a copy 2"], 8)
    root = named_voc(tmp_path / "set", stems)
    lists: dict[str, list[str]] = {"train": stems[:4], "val": stems[4:6], "test": stems[6:]}
    forms = ["{}", "{}.png", "JPEGImages/{}.png"]
    lines = {part: [chosen.choice(forms).format(stem) for stem in names] for part, names in lists.items()}
    write_lists(root, encoding=chosen.choice(["utf-8", "utf-16"]), **lines)
    assert parts(root) == {stem: slow_part(stem, lists) for stem in stems}
