"""Sets with a mask file for each class of an image."""

from pathlib import Path

import numpy as np
import pytest

from data.masks.saving import save
from paucal.data.masks.coding import MaskCoding, NamedClasses
from paucal.data.masks.masked_images import MaskedImages, images_of_pairs, join_class_masks, read_masks
from paucal.data.masks.pairs import find_pairs
from paucal.types import UserError

NUMBERS = [np.random.default_rng(n).integers(0, 3, (6, 8)).astype(np.uint8) for n in range(4)]
NAMES = ("Cat", "dog")
FORMS = [
    ("images/{n}.jpg", "masks/{name}/{n}.png"),
    ("images/{n}.jpg", "masks/{n}_{name}.png"),
    ("images/{n}.jpg", "masks/{n}-{name}_mask.png"),
    ("train/images/{n}.jpg", "train/masks/{name}/{n}.png"),
    ("{n}/images/{n}.jpg", "{n}/masks/{name}.png"),
    ("images/{n}.jpg", "masks/{n}/{name}.png"),
    ("images/a_{n}.jpg", "masks/a_{n}_{name}.png"),
]


def make(root: Path, image: str, mask: str, white: int = 255, skip: tuple = ()) -> Path:
    for n, numbers in enumerate(NUMBERS):
        save(root / image.format(n=n), np.full((6, 8, 3), 40 * n, dtype=np.uint8))
        for number, name in enumerate(NAMES, 1):
            if (n, name) not in skip:
                save(root / mask.format(n=n, name=name), (numbers == number).astype(np.uint8) * white)
    return root


def opened(root: Path, **more) -> MaskedImages:
    pairs = find_pairs(root)
    return read_masks(images_of_pairs(pairs, str(root)), pairs, **more)


@pytest.mark.parametrize(("image", "mask"), FORMS)
@pytest.mark.parametrize("white", [1, 255])
def test_files_of_classes__are_joined_to_class_numbers(tmp_path: Path, image: str, mask: str, white: int):
    masked = opened(make(tmp_path, image, mask, white, skip=((3, "dog"),)))
    assert masked.images.classes == ("background", "Cat", "dog")
    for n in range(4):
        expected = np.where(NUMBERS[n] == 2, 0, NUMBERS[n]) if n == 3 else NUMBERS[n]
        assert masked.masks.read(n).tolist() == expected.tolist()
        assert masked.class_pixel_counts[n].tolist() == [int((expected == number).sum()) for number in range(3)]
    assert masked.coding == MaskCoding("index", (0, 1, 2))
    assert "a file for each class: Cat, dog" in masked.images.notes
    assert not any("joined" in note for note in masked.images.notes)


def test_given_classes__are_the_order_and_have_to_name_all(tmp_path: Path):
    root = make(tmp_path, *FORMS[0])
    masked = opened(root, named_classes=NamedClasses(("dog", "cow", "Cat")))
    assert masked.images.classes == ("background", "dog", "cow", "Cat")
    assert masked.masks.read(0).tolist() == np.asarray([0, 3, 1])[NUMBERS[0]].tolist()
    later = opened(
        root, named_classes=NamedClasses(masked.images.classes), coding=masked.coding
    )  # a run on other images
    assert later.masks.read(0).tolist() == masked.masks.read(0).tolist()
    assert later.images.classes == masked.images.classes
    with pytest.raises(UserError, match="named after the class 'Cat', but the classes are background, dog: add"):
        opened(root, named_classes=NamedClasses(("background", "dog")))


def test_pixels_of_two_classes__are_of_the_last_and_said(tmp_path: Path):
    root = make(tmp_path, *FORMS[1])
    save(root / "masks/1_dog.png", np.full((6, 8), 255, np.uint8))
    masked = opened(root)
    assert (masked.masks.read(1) == 2).all()
    assert "1 image has pixels marked by several classes, such as images/1.jpg: the last class is used" in (
        masked.images.notes
    )
    first, second = np.asarray([[1, 0, 255, 1]], np.uint8), np.asarray([[1, 0, 0, 255]], np.uint8)
    joined, is_overlapping = join_class_masks([first, second], (2, 1))
    assert (joined.tolist(), is_overlapping) == ([[2, 0, 255, 2]], True)


@pytest.mark.parametrize(
    "names",
    [
        ["images/a.png", "images/b.png", "masks/a_x.png", "masks/b_y.png"],  # each name once
        ["images/a.png", "images/b.png", "masks/x1.png", "masks/y1.png", "masks/x2.png", "masks/y2.png"],
        ["images/a.png", "images/b.png", "masks/a_x.png", "masks/b_x.png", "masks/a_X.png", "masks/b_X.png"],
        ["images/a.png", "images/b.png", "masks/v1/a.png", "masks/v1/b.png", "masks/overlay/a.png", "masks/v2/a.png"],
    ],
)
def test_names_that_may_mean_anything__are_no_classes(tmp_path: Path, names: list[str]):
    for name in names:
        save(tmp_path / name, np.zeros((4, 4), np.uint8))
    with pytest.raises(UserError):
        find_pairs(tmp_path)


def test_files_of_classes_with_more_values__are_refused(tmp_path: Path):
    root = make(tmp_path, *FORMS[0])
    save(root / "masks/dog/0.png", NUMBERS[0])
    for n in range(1, 4):
        save(root / f"masks/dog/{n}.png", NUMBERS[n])
        save(root / f"masks/Cat/{n}.png", NUMBERS[n])
    save(root / "masks/Cat/0.png", NUMBERS[0])
    with pytest.raises(UserError, match="each class has its own mask files, but these files have 3 classes"):
        opened(root)
