"""Images and masks that belong together, found by name."""

from pathlib import Path

import pytest

from data.masks.saving import grey, save
from paucal.data.masks.pairs import find_pairs
from paucal.types import UserError


def folder(root: Path, *names: str) -> Path:
    for name in names:
        save(root / name, grey([0, 1], [1, 0]))
    return root


def masks_by_image(root: Path, *more) -> dict[str, str]:
    pairs = find_pairs(root, *more)
    return {pair.key: " ".join(mask.relative_to(root).as_posix() for mask in pair.masks) for pair in pairs.pairs}


@pytest.mark.parametrize(("images", "masks"), [("image", "label"), ("images", "masks"), ("JPEGImages", "annotations")])
def test_pairs__are_found_by_name_whatever_the_suffix(tmp_path, images, masks):
    folder(tmp_path, f"{images}/b.png", f"{images}/a.bmp", f"{masks}/a.png", f"{masks}/b.png")
    assert masks_by_image(tmp_path) == {f"{images}/a.bmp": f"{masks}/a.png", f"{images}/b.png": f"{masks}/b.png"}


def test_pairs__are_found_within_parts_and_below_both_folders(tmp_path):
    folder(tmp_path / "one", "train/images/a.png", "train/masks/a.png", "val/images/a.png", "val/masks/a.png")
    assert masks_by_image(tmp_path / "one") == {
        "train/images/a.png": "train/masks/a.png",
        "val/images/a.png": "val/masks/a.png",
    }
    folder(tmp_path / "two", "images/train/a.png", "masks/train/a.png", "images/test/a.png", "masks/test/a.png")
    assert masks_by_image(tmp_path / "two")["images/test/a.png"] == "masks/test/a.png"


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
        (["photos/a.png"], "contains no masks"),
        (["masks/a.png"], "contains no images"),
        (["other/a.png"], "contains no masks"),
        (["images/a.png", "masks/b.png"], "none of the 1 image has a mask with its name"),
        (["images/a.png", "images/a.bmp", "masks/a.png"], "have the same name, but masks such as"),
        (["images/a.png", "masks/a.png", "masks/a.bmp"], "are masks of one image"),
    ],
)
def test_folders_that_do_not_do__are_refused(tmp_path, names, words):
    with pytest.raises(UserError, match=words):
        find_pairs(folder(tmp_path, *names))


def test_a_folder_that_is_not_there__is_refused(tmp_path):
    with pytest.raises(UserError, match=r"DATA: .*does not exist"):
        find_pairs(tmp_path / "none")
    with pytest.raises(UserError, match="--images and --masks must be given together"):
        find_pairs(tmp_path, tmp_path, None)
    with pytest.raises(UserError, match=r"--masks: .*does not exist"):
        find_pairs(tmp_path, tmp_path, tmp_path / "none")


# Layouts of published sets, each with the masks and the parts that are found, by image.
LAYOUTS = {
    "camvid": {"train/a.png": ("trainannot/a.png", "train"), "val/b.png": ("valannot/b.png", "val")},
    "camvid, kaggle": {"train/a.png": ("train_labels/a_L.png", "train"), "test/a.png": ("test_labels/a_L.png", "test")},
    "part names": {"Training_Images/a.png": ("Training_Masks/a.png", "train")},
    "one truth": {"Training_Images/a.png": ("Ground_Truth/a.png", "train")},
    "nnunet": {"imagesTr/a_0000.png": ("labelsTr/a.png", "train"), "imagesTs/b_0000.png": ("labelsTs/b.png", "test")},
    "isic": {
        "ISIC2018_Task1-2_Training_Input/I_1.jpg": (
            "ISIC2018_Task1_Training_GroundTruth/I_1_segmentation.png",
            "train",
        ),
        "ISIC2018_Task1-2_Test_Input/I_2.jpg": ("ISIC2018_Task1_Test_GroundTruth/I_2_segmentation.png", "test"),
    },
    "loveda": {"Train/Urban/images_png/1.png": ("Train/Urban/masks_png/1.png", "train")},
    "pets": {"images/P_1.jpg": ("annotations/trimaps/P_1.png", "")},
    "coco stuff": {"images/val2017/1.jpg": ("annotations/val2017/1.png", "val")},
    "deepglobe": {"train/1_sat.jpg": ("train/1_mask.png", "train")},
    "beside": {"x.jpg": ("x_mask.png", ""), "y.jpg": ("y_MASK.png", "")},
    "samples": {"s/1/image.png": ("s/1/mask.png", ""), "s/2/image.png": ("s/2/mask.png", "")},
    "samples, several": {"1/img.png": ("1/mask_1.png 1/mask_2.png", ""), "2/img.png": ("2/mask_1.png", "")},
    "whole names": {"img/a.jpg": ("ann/a.jpg.png", ""), "img/b.jpg": ("ann/b.jpg.png", "")},
    "whole names and a word": {"img/a.jpg": ("masks/a.jpg_mask.png", ""), "img/b.jpg": ("masks/b.jpg_mask.png", "")},
    "twins": {"x.jpg": ("x.png", ""), "y.jpg": ("y.png", "")},
    "numbered names": {
        "images/img_001.png": ("masks/mask_001.png", ""),
        "images/img_002.png": ("masks/mask_002.png", ""),
    },
    "middle": {"images/im_1.png": ("masks/im_mask_1.png", ""), "images/im_2.png": ("masks/im_mask_2.png", "")},
    "case": {"images/A.png": ("masks/A_MASK.png", ""), "images/a.png": ("masks/a_mask.png", "")},
    "unicode": {"images/e\u0301.png": ("masks/\u00e9_Segmentation.png", "")},
    "voc in its kit": {"VOC2012/JPEGImages/1.jpg": ("VOC2012/SegmentationClass/1.png", "")},
    "busi": {
        "benign/b (1).png": ("benign/b (1)_mask.png benign/b (1)_mask_1.png", ""),
        "malignant/m (1).png": ("malignant/m (1)_mask.png", ""),
    },
    "counted": {"images/a.png": ("masks/a_1.png masks/a_2.png masks/a_10.png", "")},
    "a folder each": {"7/images/7.png": ("7/masks/f0e1.png 7/masks/f0e2.png", "")},
    "a folder of masks each": {"images/7.png": ("masks/7/0.png masks/7/1.png", "")},
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts_of_published_sets__are_read(tmp_path, name):
    layout = LAYOUTS[name]
    folder(tmp_path, *layout, *(mask for masks, _ in layout.values() for mask in split(masks)))
    pairs = find_pairs(tmp_path)
    assert pairs.notes == () or "joined" in pairs.notes[0]
    by_image = {pair.key: tuple(mask.relative_to(tmp_path).as_posix() for mask in pair.masks) for pair in pairs.pairs}
    assert by_image == {image: split(masks) for image, (masks, _) in layout.items()}
    assert {pair.key: pair.part for pair in pairs.pairs} == {image: part for image, (_, part) in layout.items()}


def split(masks: str) -> tuple[str, ...]:
    """Return names that end in an image's suffix each, and may hold spaces."""
    return tuple(f"{name}.png" for name in masks.removesuffix(".png").split(".png "))


def test_masks_beside_images__may_keep_the_suffix_of_the_image(tmp_path):
    folder(tmp_path, "a b.tif", "a b.tif_mask.png", "c.JPG", "c.JPG_mask.png")
    assert masks_by_image(tmp_path) == {"a b.tif": "a b.tif_mask.png", "c.JPG": "c.JPG_mask.png"}


def test_single_masks_without_an_image__are_left_out_though_another_name_begins_theirs(tmp_path):
    folder(tmp_path, *(f"images/{n}.png" for n in range(1, 9)), *(f"masks/{n}.png" for n in (*range(1, 9), 12, 33)))
    assert "2 masks without images were left out: masks/12.png, masks/33.png" in find_pairs(tmp_path).notes[0]


def test_cityscapes__has_pictures_and_instances_beside_its_masks(tmp_path):
    base = "train/aachen/aachen_0"
    folder(tmp_path, f"leftImg8bit/{base}_leftImg8bit.png")
    folder(tmp_path, *(f"gtFine/{base}_gtFine_{kind}.png" for kind in ("color", "instanceIds", "labelIds")))
    assert masks_by_image(tmp_path) == {f"leftImg8bit/{base}_leftImg8bit.png": f"gtFine/{base}_gtFine_labelIds.png"}
    assert "2 masks of another kind were left out" in find_pairs(tmp_path).notes[0]
    folder(tmp_path, f"gtFine/{base}_gtFine_labelTrainIds.png")
    assert list(masks_by_image(tmp_path).values()) == [f"gtFine/{base}_gtFine_labelTrainIds.png"]


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["images/a.png", "masks/a.png", "labels/a.png"], "are masks of one image"),
        (["images/a.png", "masks/a_mask.png", "masks/a_seg.png"], "are masks of one image"),
        (["images/a.png", "masks/a.png", "masks/a_1.png"], "is named after 'images/a.png', which has the mask"),
        (["images/a.png", "masks/a.png", "masks/a_tumor.png"], "is named after 'images/a.png', which has the mask"),
        (["images/a.png", "images/a_1.png", "masks/a_mask.png", "masks/a_mask_1.png"], "may belong to"),
        ([f"{file}.png" for n in "123" for file in (f"images/a0{n}", f"masks/a0{n}", f"masks/a0{n}2")], "another mask"),
        (["images/a.png", "masks/liver/a.png", "masks/lung/a.png"], "in two folders"),
        (
            [f"{at}.png" for n in "12" for at in (f"images/{n}", *(f"masks/{n}/{x}" for x in ("liver", "lung", n)))],
            r"names look like classes \('liver', 'lung'\): join",
        ),
        (
            ["t/images/21_training.tif", "t/1st_manual/21_manual1.gif", "t/mask/21_training_mask.gif"],
            "are masks of one image",
        ),
    ],
)
def test_masks_that_may_mean_several_things__are_refused(tmp_path, names, words):
    with pytest.raises(UserError, match=words):
        find_pairs(folder(tmp_path, *names))


def test_two_folders__may_lie_in_each_other_or_be_one(tmp_path):
    folder(tmp_path, "set/a.png", "set/drawn/a.png", "one/a.png", "one/a_mask.png")
    assert masks_by_image(tmp_path, tmp_path / "set", tmp_path / "set/drawn") == {"a.png": "set/drawn/a.png"}
    assert masks_by_image(tmp_path, tmp_path / "one", tmp_path / "one") == {"a.png": "one/a_mask.png"}


def test_images_outside_of_parts__are_named_and_make_parts_void(tmp_path):
    folder(tmp_path, "train/images/a.png", "train/masks/a.png", "images/b.png", "masks/b.png")
    pairs = find_pairs(tmp_path)
    assert [pair.part for pair in pairs.pairs] == ["", ""]
    assert "1 image is outside of the folders for train, val and test" in pairs.notes[0]
