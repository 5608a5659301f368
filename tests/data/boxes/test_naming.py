"""Which image a name from another machine means, and which image an annotation file of its own describes."""

from pathlib import Path

import pytest

from paucal.data.boxes.naming import ImageFinder
from paucal.data.boxes.tree import folder_tree
from paucal.data.splits.part_names import split_in_folders, split_in_name
from paucal.types import UserError


def names(files: list[str]) -> ImageFinder:
    tree = folder_tree(Path("set"), files)
    return ImageFinder(tree.images, tree)


@pytest.mark.parametrize(
    ("stem", "part"),
    [
        *(("instances_train2017", "train"), ("Valid", "val"), ("cells-VALIDATION-v2", "val"), ("testSet", "test")),
        *(("train_val", "train"), ("trainval2012", "train"), ("TRAIN", "train"), ("trainLabels", "train")),
        *(("latest", ""), ("strain", ""), ("interval", ""), ("contest_val", "val"), ("instances_default", "")),
        *(("test_of_train", ""), ("évaluation", ""), ("devices", ""), ("dev", "val")),
    ],
)
def test_parts__are_whole_words_of_names(stem: str, part: str):
    assert split_in_name(stem) == part


@pytest.mark.parametrize(
    ("path", "part"),
    [
        *(("images/train2017/a.png", "train"), ("Valid/images/a.png", "val"), ("test tubes/a.png", "")),
        *(("train.png", ""), ("training-2014/a.png", "train"), ("train2/a.png", ""), ("testing/", "test")),
    ],
)
def test_parts__are_whole_names_of_folders(path: str, part: str):
    assert split_in_folders(path) == part


@pytest.mark.parametrize(
    "written",
    [
        *("a b.png", "./x/a b.png", "../x/a b.png", r"C:\pictures\x\a b.png", "/home/me/x/a b.png", "A B.PNG"),
        *("https://host.example/x/a%20b.png?raw=true", "other/place/a b.png", "x/./a b.png"),
        *(" a b.png\n", "file://[::/x/a b.png"),
    ],
)
def test_names_from_elsewhere__are_found(written: str):
    assert [one.path for one in names(["x/a b.png", "x/c.png"]).find_matches(written)] == ["x/a b.png"]


def test_names__differ_in_unicode_form_and_exact_ones_come_first():
    composed, decomposed = "\u00e9.png", "e\u0301.png"
    assert names([decomposed]).find_matches(composed)[0].path == decomposed
    assert names([composed, decomposed]).find_matches(decomposed)[0].path == decomposed
    assert [one.path for one in names(["a.png", "A.png"]).find_matches("A.png")] == ["A.png"]
    small, capital = "j\u0323\u030c.png", "J\u0323\u030c.png"  # only the small letter is composed, with its caron
    assert [one.path for one in names([small]).find_matches(capital)] == [small]


def test_an_image_that_lacks_in_its_folder__is_not_taken_from_another():
    known = names([*(f"train/{n}.png" for n in range(8)), *(f"val/{n}.png" for n in range(9))])
    assert known.find_matches("train/8.png") == []
    found = known.find_images([f"{n}.png" for n in range(9)], "train.json", "train")
    assert found == [*(f"train/{n}.png" for n in range(8)), None]
    plain = names([*(f"a/{n}.png" for n in range(8)), *(f"b/{n}.png" for n in range(20))])
    assert plain.find_images([f"{n}.png" for n in (0, 1, 2, 15)], "a.json", "") == [
        *(f"a/{n}.png" for n in range(3)),
        None,
    ]
    beside = plain.find_images([f"{n}.png" for n in range(10)], "a/boxes.json", "")
    assert beside == [*(f"a/{n}.png" for n in range(8)), None, None]
    stray = names(["0.png", *(f"images/{n}.png" for n in range(5))])
    assert stray.find_images([f"{n}.png" for n in range(5)], "x.json", "") == [f"images/{n}.png" for n in range(5)]
    spread = names([*(f"a/{n}.png" for n in range(4)), *(f"b/{n}.png" for n in range(4, 8))])
    assert spread.find_images([f"{n}.png" for n in range(8)], "x.json", "") == [
        *(f"a/{n}.png" for n in range(4)),
        *(f"b/{n}.png" for n in range(4, 8)),
    ]


def test_images_in_two_equal_folders__are_refused():
    known = names(["one/0.png", "one/1.png", "two/0.png", "two/1.png", "all.json"])
    with pytest.raises(UserError, match=r"images of 'set/all\.json' are in 'one' and in 'two': include the folder"):
        known.find_images(["0.png", "1.png"], "all.json", "")
    assert known.find_images(["0.png", "1.png"], "boxes_two.json", "") == ["two/0.png", "two/1.png"]
    backup = names(["images/train/0.png", "old/images/train/0.png"])
    assert backup.find_images(["0.png"], "annotations/instances_train.json", "train") == ["images/train/0.png"]


def test_the_file_that_an_annotation_names__comes_before_its_stem_and_near_ones_before_others():
    known = names(["JPEGImages/a.bmp", "JPEGImages/a.jpg", "JPEGImages/b.jpg", "other/c.jpg"])
    assert known.find_described_image("Annotations/a.xml", ["a.jpg"]) == "JPEGImages/a.jpg"
    assert known.find_described_image("Annotations/a.xml", ["b.jpg"]) == "JPEGImages/b.jpg"
    assert known.find_described_image("Annotations/b.xml", ["c.jpg"]) == "JPEGImages/b.jpg"  # c.jpg lies apart
    assert known.find_described_image("Annotations/x.xml", ["c.jpg"]) == "other/c.jpg"
    assert known.find_described_image("Annotations/b.xml", ["b.png"]) == "JPEGImages/b.jpg"
    assert known.find_described_image("Annotations/x.xml", ["x.jpg"]) is None
    with pytest.raises(UserError, match=r"may describe 'JPEGImages/a\.bmp' or 'JPEGImages/a\.jpg'"):
        known.find_described_image("Annotations/a.xml", ["a"])
    cameras = names(["JPEGImages/1/a.jpg", "JPEGImages/2/a.jpg"])
    assert cameras.find_described_image("Annotations/2/a.xml", ["a.jpg"]) == "JPEGImages/2/a.jpg"
    with pytest.raises(UserError, match="may describe"):
        cameras.find_described_image("Annotations/a.xml", ["a.jpg"])


def test_an_image_of_another_folder__is_not_taken_for_a_missing_one():
    files = ["JPEGImages/cam1/1.jpg", "JPEGImages/cam2/2.jpg", "Annotations/cam1/2.xml", "Annotations/cam2/2.xml"]
    assert names(files).find_described_image("Annotations/cam1/2.xml", ["2.jpg"]) is None
    assert names(files).find_described_image("Annotations/cam2/2.xml", ["2.jpg"]) == "JPEGImages/cam2/2.jpg"
    beside = names(["day1/1.jpg", "day1/1.xml", "day1/2.xml", "day2/2.jpg", "day2/2.xml"])
    assert beside.find_described_image("day1/2.xml", ["2.jpg"]) is None
    assert (
        names(["PNG/1.png", "Annotations/batch/1.xml"]).find_described_image("Annotations/batch/1.xml", ["1.png"])
        == "PNG/1.png"
    )
