"""Images and masks that belong together, found by name."""

from pathlib import Path

import pytest

from data.masks.made import grey, save
from paucal.data.masks.pairs import find_pairs
from paucal.types import UserError


def folder(root: Path, *names: str) -> Path:
    for name in names:
        save(root / name, grey([0, 1], [1, 0]))
    return root


def found(root: Path, *more) -> dict[str, str]:
    pairs = find_pairs(root, *more)
    return {pair.key: " ".join(mask.relative_to(root).as_posix() for mask in pair.masks) for pair in pairs.pairs}


@pytest.mark.parametrize(("images", "masks"), [("image", "label"), ("images", "masks"), ("JPEGImages", "annotations")])
def test_pairs__are_found_by_name_whatever_the_suffix(tmp_path, images, masks):
    folder(tmp_path, f"{images}/b.png", f"{images}/a.bmp", f"{masks}/a.png", f"{masks}/b.png")
    assert found(tmp_path) == {f"{images}/a.bmp": f"{masks}/a.png", f"{images}/b.png": f"{masks}/b.png"}


def test_pairs__are_found_within_parts_and_below_both_folders(tmp_path):
    folder(tmp_path / "one", "train/images/a.png", "train/masks/a.png", "val/images/a.png", "val/masks/a.png")
    assert found(tmp_path / "one") == {
        "train/images/a.png": "train/masks/a.png",
        "val/images/a.png": "val/masks/a.png",
    }
    folder(tmp_path / "two", "images/train/a.png", "masks/train/a.png", "images/test/a.png", "masks/test/a.png")
    assert found(tmp_path / "two")["images/test/a.png"] == "masks/test/a.png"


def test_pairs__know_the_endings_of_masks_and_two_folders_with_names_of_their_own(tmp_path):
    folder(tmp_path, "x/1.png", "x/2.png", "y/1_mask.png", "y/2_mask.png")
    pairs = find_pairs(tmp_path, tmp_path / "x", tmp_path / "y")
    assert [(pair.key, pair.masks[0].name) for pair in pairs.pairs] == [
        ("1.png", "1_mask.png"),
        ("2.png", "2_mask.png"),
    ]


def test_files_without_a_partner__are_left_out_and_named(tmp_path):
    folder(tmp_path, "images/a.png", "images/alone.png", "masks/a.png", "masks/lost.png")
    notes = find_pairs(tmp_path).notes
    assert notes == (
        "1 image without a mask was left out: images/alone.png",
        "1 mask without an image was left out: masks/lost.png",
    )


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["photos/a.png"], "has no masks in it"),
        (["masks/a.png"], "has no images in it"),
        (["other/a.png"], "has no masks in it"),
        (["images/a.png", "masks/b.png"], "none of the 1 image has a mask of its name"),
        (["images/a.png", "images/a.bmp", "masks/a.png"], "have one name, and masks are found by it"),
        (["images/a.png", "masks/a.png", "masks/a.bmp"], "belong to one image"),
    ],
)
def test_folders_that_do_not_do__are_refused(tmp_path, names, words):
    with pytest.raises(UserError, match=words):
        find_pairs(folder(tmp_path, *names))


def test_a_folder_that_is_not_there__is_refused(tmp_path):
    with pytest.raises(UserError, match=r"DATA: .*does not exist"):
        find_pairs(tmp_path / "none")
    with pytest.raises(UserError, match="--images and --masks go together"):
        find_pairs(tmp_path, tmp_path, None)
    with pytest.raises(UserError, match=r"--masks: .*does not exist"):
        find_pairs(tmp_path, tmp_path, tmp_path / "none")
