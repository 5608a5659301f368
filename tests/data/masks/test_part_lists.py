"""Lists of the images of each part, in the spellings that people give them."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from data.masks.saving import grey, save
from paucal.data.masks.pairs import find_pairs
from paucal.data.masks.part_lists import read_part_lists
from paucal.types import UserError

NAMES = ["a", "b", "slide1", "slide1 copy", "x 2", "N.1"]
KEYS = [f"JPEGImages/{name}.jpg" for name in NAMES]


def lists(root: Path, where: str = "ImageSets/Segmentation", **texts: str | bytes) -> Path:
    folder = root / where
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / f"{name}.txt").write_bytes(text.encode() if isinstance(text, str) else text)
    return root


@pytest.mark.parametrize(
    "where", ["ImageSets/Segmentation", "imagesets/SEGMENTATION", "ImageSets", "ImageSets/Main", "."]
)
def test_lists__are_found_where_sets_have_them(tmp_path, where):
    lists(tmp_path, where, train="a\nb", val="slide1", test="slide1 copy\nx 2\nN.1")
    listed = read_part_lists([tmp_path], KEYS)
    assert list(listed.parts.values()) == ["train", "train", "val", "test", "test", "test"]
    assert dict(listed.parts) == dict(zip(KEYS, listed.parts.values(), strict=True))


@settings(max_examples=60, deadline=None)
@given(data=some.data())
def test_lists__are_read_in_any_spelling(tmp_path_factory, data):
    root = tmp_path_factory.mktemp("lists")
    wanted = {key: data.draw(some.sampled_from(["train", "val", "test"])) for key in KEYS}
    forms = ["{0}", "{0}.jpg", "{0}.JPG", "JPEGImages/{0}.jpg", "./JPEGImages/{0}", "/far/away/{0}.jpg", "{0} 1"]
    forms += ["JPEGImages\\{0}.jpg", "{0}.jpg SegmentationClass/{0}.png", "  {0}  ", "{0} 1 1 2"]
    form = data.draw(some.sampled_from(forms))
    names = {
        "train": ["train", "Train", "training"],
        "val": ["val", "VALID", "validation", "dev"],
        "test": ["test", "Testing"],
    }
    for part in ("train", "val", "test"):
        lines = [form.format(name) for name, key in zip(NAMES, KEYS, strict=True) if wanted[key] == part]
        text = data.draw(some.sampled_from(["\n", "\r\n", "\n\n"])).join([*lines, ""])
        encoded = text.encode(data.draw(some.sampled_from(["utf-8", "utf-8-sig", "utf-16"])))
        lists(root, **{data.draw(some.sampled_from(names[part])): encoded if lines else ""})
    assert dict(read_part_lists([root], KEYS).parts) == wanted


def test_trainval__gives_what_train_and_val_lack(tmp_path):
    def read(where, **texts):
        return list(read_part_lists([lists(tmp_path / where, **texts)], KEYS[:3]).parts.items())

    a, b, slide = KEYS[:3]
    assert read("one", trainval="a\nb", test="slide1") == [(slide, "test"), (a, "train"), (b, "train")]
    assert read("two", train="a", trainval="a\nb", test="slide1") == [(a, "train"), (slide, "test"), (b, "val")]
    assert read("three", val="a", Train_Val="a\nb", test="slide1") == [(a, "val"), (slide, "test"), (b, "train")]
    with pytest.raises(UserError, match=r"'JPEGImages/a\.jpg' is in the lists for test and trainval"):
        read("four", trainval="a\nb", test="a")


def test_lists_that_do_not_fit__are_refused(tmp_path):
    for where, texts, words in (
        ("none", {"train": "q\nr"}, r"the lists in .*Segmentation \(train.txt\) contain none of the images"),
        ("twice", {"train": "a\nb", "val": "b"}, "'JPEGImages/b.jpg' is in the lists for train and val"),
        ("alike", {"val": "a", "valid": "b"}, "are both lists for val"),
    ):
        with pytest.raises(UserError, match=words):
            read_part_lists([lists(tmp_path / where, **texts)], KEYS)


def test_text_files_at_the_top__may_be_anything(tmp_path):
    lists(tmp_path, ".", train="these images were taken in May")
    listed = read_part_lists([tmp_path], KEYS)
    assert listed.parts == {}
    assert listed.notes == ["lists that contain none of the images are not used: train.txt"]


def make_set(root: Path, *names: str) -> Path:
    for name in names:
        save(root / f"JPEGImages/{name}.jpg", grey([0, 1], [1, 0]))
        save(root / f"SegmentationClass/{name}.png", grey([0, 1], [1, 0]))
    return root


def test_images_that_no_list_names__are_left_out_and_named(tmp_path):
    make_set(lists(tmp_path, train="a", val="b"), "a", "b", "c")
    pairs = find_pairs(tmp_path)
    assert [(pair.key, pair.part) for pair in pairs.pairs] == [
        ("JPEGImages/a.jpg", "train"),
        ("JPEGImages/b.jpg", "val"),
    ]
    assert any("1 image that is in no list was left out: JPEGImages/c.jpg" in note for note in pairs.notes)


def test_lists_with_other_names_than_the_images__are_refused(tmp_path):
    make_set(lists(tmp_path, train="a\nB-2"), "a", "b")
    with pytest.raises(UserError, match=r"name 'B-2' in train.txt, but there is no such image, .* 'JPEGImages/b.jpg'"):
        find_pairs(tmp_path)


def test_lists_and_folders_that_disagree__are_refused(tmp_path):
    for part in ("train", "val"):
        save(tmp_path / f"{part}/images/{part}.png", grey([0, 1]))
        save(tmp_path / f"{part}/masks/{part}.png", grey([0, 1]))
    lists(tmp_path, ".", train="train/images/train.png", val="val/images/val.png")
    assert [pair.part for pair in find_pairs(tmp_path).pairs] == ["train", "val"]
    lists(tmp_path, ".", train="val/images/val.png", val="train/images/train.png")
    with pytest.raises(UserError, match="is in the folder for train, but in the list for val"):
        find_pairs(tmp_path)
