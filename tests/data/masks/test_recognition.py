"""Masks among images: refused by `paucal train`, left out by `paucal pretrain` and `paucal predict`."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from paucal.data.sources.opening import open_images
from paucal.types import UserError

RANDOM = np.random.default_rng(0)


def photograph(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(RANDOM.integers(0, 256, (20, 24, 3), dtype=np.uint8)).save(path)


def drawn(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.eye(24, dtype=np.uint8)[:20] * 255).save(path)


def make_set(root: Path, images: list[str], masks: list[str]) -> Path:
    for name in images:
        photograph(root / name)
    for name in masks:
        drawn(root / name)
    return root


SETS = {
    "two folders": (["images/a.png", "images/b.png"], ["masks/a.png", "masks/b.png"]),
    "unmatched": (["images/a.png", "images/b.png"], ["masks/x.png", "masks/y.png"]),
    "camvid": (["train/a.png", "val/b.png"], ["trainannot/a.png", "valannot/b.png"]),
    "part names": (["Training_Images/a.png", "Training_Images/b.png"], ["Ground_Truth/a.png", "Ground_Truth/b.png"]),
    "last words": (["X_Input/a.jpg", "X_Input/b.jpg"], ["X_GroundTruth/a_segmentation.png", "X_GroundTruth/b_seg.png"]),
    "within parts": (["train/img/a.png", "val/img/b.png"], ["train/gt/a.png", "val/gt/b.png"]),
    "busi": (["benign/b (1).png", "malign/m (1).png"], ["benign/b (1)_mask.png", "malign/m (1)_mask.png"]),
    "busi, several": (["b/b1.png", "m/m1.png"], ["b/b1_mask.png", "b/b1_mask_1.png", "m/m1_MASK.png"]),
    "refused by segment": (["b/1.png", "m/2.png"], ["b/1_mask.png", "b/1_seg.png", "m/2_mask.png"]),
    "samples": (["1/image.png", "2/image.png"], ["1/mask.png", "2/mask.png"]),
    "side by side": (["a.jpg", "b.jpg"], ["a_mask.png", "b_mask.png"]),
    "deepglobe": (["train/1_sat.jpg", "test/2_sat.jpg"], ["train/1_mask.png", "test/2_mask.png"]),
    "voc": (["JPEGImages/1.jpg", "JPEGImages/2.jpg"], ["SegmentationClass/1.png", "SegmentationObject/1.png"]),
    "cityscapes": (
        ["leftImg8bit/train/x/x_1_leftImg8bit.png", "leftImg8bit/val/y/y_1_leftImg8bit.png"],
        ["gtFine/train/x/x_1_gtFine_labelIds.png", "gtFine/val/y/y_1_gtFine_labelIds.png"],
    ),
}


@pytest.mark.parametrize("name", SETS)
def test_masks__are_no_photographs_of_a_class(tmp_path, name):
    images, masks = SETS[name]
    make_set(tmp_path, images, masks)
    with pytest.raises(UserError, match=r"has \d masks?.*, and no classes of images: `paucal segment` learns masks"):
        open_images(tmp_path)
    opened = open_images(tmp_path, labelled=False)
    assert sorted(opened.keys) == sorted(images)
    assert any("left out" in note for note in opened.notes)


@pytest.mark.parametrize(
    "names",
    [
        ["with_mask/1.png", "with_mask/2.png", "without_mask/1.png", "without_mask/2.png"],
        ["face/1.png", "face/2.png", "face_mask/1.png", "face_mask/2.png"],  # photographs
        ["masks/1.png", "hats/1.png", "hats/2.png", "masks/3.png"],
        ["original/1.png", "original/2.png", "forged/1.png", "forged/2.png"],
        ["a/1.png", "a/1_mask.png", "b/2.png", "b/2_mask.png"],  # photographs of people with masks
        ["cat/x_label.png", "cat/y.png", "dog/z.png", "dog/w.png"],
    ],
)
def test_classes_that_are_called_so__are_classes(tmp_path, names):
    images = open_images(make_set(tmp_path, names, []))
    assert list(images.classes) == sorted({name.split("/")[0] for name in names})
    assert len(images) == len(names)


def test_a_folder_of_masks_alone__is_predicted(tmp_path):
    make_set(tmp_path, [], ["masks/a.png", "masks/b.png"])
    assert open_images(tmp_path, labelled=False).keys == ["masks/a.png", "masks/b.png"]
