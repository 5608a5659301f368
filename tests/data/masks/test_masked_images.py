"""Sets of images with masks, read and checked."""

import numpy as np
import pytest
from PIL import Image

from data.masks.saving import grey, save
from paucal.data.decode import UnreadableImage
from paucal.data.masks.coding import IGNORED
from paucal.data.masks.mask_files import read_mask
from paucal.data.masks.masked_images import images_of_pairs, join_binary_masks, read_masks
from paucal.data.masks.pairs import find_pairs
from paucal.types import UserError


def opened(root, **more):
    pairs = find_pairs(root)
    return read_masks(images_of_pairs(pairs, str(root)), pairs, **more)


def make(root, masks, size=(4, 6)):
    for number, mask in enumerate(masks):
        save(root / f"images/{number}.png", np.full((*size, 3), 40 * number, dtype=np.uint8))
        save(root / f"masks/{number}.png", mask)
    return root


def test_masks__are_class_numbers_and_say_which_classes_an_image_shows(tmp_path):
    top = np.zeros((4, 6), dtype=np.uint8)
    top[:2] = 2
    top[0, 0] = 255
    masked = opened(make(tmp_path, [top, np.zeros((4, 6), np.uint8)]))
    assert masked.images.classes == ("class 0", "class 1", "class 2")
    assert masked.images.multi_hot.tolist() == [[1, 0, 1], [1, 0, 0]]
    assert masked.class_pixel_counts.tolist() == [[12, 0, 11], [24, 0, 0]]
    assert masked.masks.read(0).tolist() == top.tolist()
    assert masked.images.declared_splits == ["", ""]


def test_masks__that_do_not_fit_in_memory_are_read_again(tmp_path, monkeypatch):
    mask = np.arange(24, dtype=np.uint8).reshape(4, 6) % 3
    make(tmp_path, [mask, mask.T.reshape(4, 6)])
    kept = opened(tmp_path)
    monkeypatch.setattr("paucal.data.masks.masked_images.read_available_memory", lambda: 0)
    read = opened(tmp_path)
    assert kept.masks.decoded_masks is not None
    assert read.masks.decoded_masks is None
    assert [read.masks.read(n).tolist() for n in (0, 1)] == [kept.masks.read(n).tolist() for n in (0, 1)]


def test_smaller_masks__are_enlarged_by_the_nearest_pixel_and_said(tmp_path):
    make(tmp_path, [grey([0, 1, 1], [1, 0, 1]), np.zeros((4, 6), np.uint8)])
    masked = opened(tmp_path)
    assert masked.masks.read(0).tolist() == np.kron([[0, 1, 1], [1, 0, 1]], np.ones((2, 2), int)).tolist()
    assert any("1 mask is smaller than its image" in note and "(0.png)" in note for note in masked.images.notes)


@pytest.mark.parametrize(
    ("shape", "words"),
    [((6, 4), "is rotated, or belongs to another image"), ((8, 12), "a different size"), ((4, 5), "a different size")],
)
def test_masks_of_another_size_or_shape__are_refused(tmp_path, shape, words):
    make(tmp_path, [np.zeros((4, 6), np.uint8), np.ones(shape, np.uint8)])
    with pytest.raises(UserError, match=rf"mask 1\.png has {shape[0]}x{shape[1]} pixels .*4x6: the mask .*{words}"):
        opened(tmp_path)


def test_colours__are_classes_also_where_a_mask_has_only_grey_ones(tmp_path):
    colours = np.zeros((4, 6, 3), np.uint8)
    colours[:2] = (255, 255, 255)
    colours[3, 3] = (128, 0, 0)
    masked = opened(make(tmp_path, [colours, np.zeros((4, 6, 3), np.uint8), np.full((4, 6), 255, np.uint8)]))
    assert masked.images.classes == ("#000000", "#800000", "#ffffff")
    assert [masked.masks.read(n)[0, 0] for n in range(3)] == [2, 0, 2]


def test_palettes__are_read_as_numbers_not_as_colours(tmp_path):
    make(tmp_path, [np.zeros((4, 6), np.uint8), np.zeros((4, 6), np.uint8)])
    for number in range(2):
        picture = Image.fromarray(np.full((4, 6), number, np.uint8), "L").convert("P")
        picture.putdata([number, 1 - number] * 12)
        picture.putpalette([9, 9, 9, 200, 0, 0])
        picture.save(tmp_path / f"masks/{number}.png")
    masked = opened(tmp_path)
    assert masked.coding.kind == "index"
    assert masked.masks.read(1)[0].tolist() == [1, 0, 1, 0, 1, 0]


def test_sixteen_bits__are_numbers_of_classes_or_refused(tmp_path):
    deep = np.zeros((4, 6), np.uint16)
    deep[0] = 3
    masked = opened(make(tmp_path, [deep, deep]))
    assert masked.masks.read(0)[0].tolist() == [3] * 6
    save(tmp_path / "masks/1.png", (deep * 9000).astype(np.uint16))
    with pytest.raises(UserError, match="go up to 27000, but at most 255 classes are supported"):
        opened(tmp_path)


@pytest.mark.parametrize("kind", ["uint8", "int64", "float32", "bool", "colour"])
def test_arrays__are_masks_of_numbers(tmp_path, kind):
    values = np.asarray([[0, 1, 1, 0, 0, 0]] * 4)
    stored = np.stack([values * 200, values * 0, values * 10], -1).astype(np.uint8) if kind == "colour" else values
    np.save(tmp_path / "1.npy", stored if kind == "colour" else values.astype(kind))
    raw = read_mask(tmp_path / "1.npy", "1.npy")
    expected = values * (200 << 16 | 10) if kind == "colour" else values
    assert np.array_equal(raw.values, expected)
    assert (raw.kind, raw.bits) == ("colour" if kind == "colour" else "grey", 1 if kind == "bool" else 8)


def test_arrays__are_found_beside_their_images(tmp_path):
    make(tmp_path, [np.zeros((4, 6), np.uint8)] * 2)
    for number in range(2):
        (tmp_path / f"masks/{number}.png").unlink()
        np.save(tmp_path / f"masks/{number}.npy", np.full((4, 6), number, np.int64))
    masked = opened(tmp_path)
    assert [masked.masks.read(n)[0, 0] for n in range(2)] == [0, 1]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (np.asarray([[0.0, 0.5]]), "expected integers from 0 to 65535"),
        (np.asarray([[0.0, np.nan]]), "expected integers"),
        (np.asarray([[0, -1]]), "the mask has values from -1 to 0"),
        (np.asarray([[0, 1 << 40]]), "expected integers"),
        (np.zeros((9, 8, 7)), "the array has 7 channels of float64"),
        (np.asarray([["a"]]), "expected numbers with 2 axes"),
        (np.zeros((40, 50), np.uint8), "many more than its image"),
    ],
)
def test_arrays_that_are_no_mask__are_refused(tmp_path, values, words):
    np.save(tmp_path / "1.npy", values)
    with pytest.raises(UnreadableImage, match=words):
        read_mask(tmp_path / "1.npy", "1.npy", max_pixels=1000)


def test_several_masks_of_an_image__are_joined(tmp_path, monkeypatch):
    make(tmp_path, [np.zeros((4, 6), np.uint8)])
    left, right = np.zeros((2, 4, 6), np.uint8)
    left[0, :2], right[3] = 255, 255
    save(tmp_path / "masks/0.png", left).rename(tmp_path / "masks/0_mask_1.png")
    save(tmp_path / "masks/0_mask_2.png", right)
    masked = opened(tmp_path)
    assert masked.masks.read(0).tolist() == (np.maximum(left, right) // 255).tolist()
    monkeypatch.setattr("paucal.data.masks.masked_images.read_available_memory", lambda: 0)
    assert opened(tmp_path).masks.read(0).tolist() == masked.masks.read(0).tolist()
    save(tmp_path / "masks/0_mask_2.png", grey(*np.eye(4, 6, dtype=np.uint8) * 2))
    save(tmp_path / "masks/0_mask_1.png", left // 255)
    with pytest.raises(UserError, match=r"0_mask_1\.png and 0_mask_2\.png are masks of one image, but the masks"):
        opened(tmp_path)


def test_joined_masks__are_unlabelled_where_none_marks_and_one_is():
    one, other = grey([0, 1, IGNORED, 0]), grey([0, IGNORED, 0, 1])
    assert join_binary_masks([one, other]).tolist() == [[0, 1, IGNORED, 1]]


@pytest.mark.parametrize("orientation", [3, 6, 65537])
def test_turned_images__have_masks_that_fit_or_a_doubt(tmp_path, orientation):
    make(tmp_path, [np.zeros((6, 4), np.uint8), np.ones((6, 4), np.uint8)], size=(4, 6))
    exif = Image.Exif()
    exif[0x0112] = orientation
    for number in range(2):
        path = tmp_path / f"images/{number}.png"
        if orientation == 65537:
            save(tmp_path / f"masks/{number}.png", np.full((4, 6), number, np.uint8))
            entry = b"\x12\x01\x04\x00\x01\x00\x00\x00" + orientation.to_bytes(4, "little")
            Image.open(path).save(path, exif=b"Exif\0\0II*\0\x08\0\0\0\x01\0" + entry + bytes(4))
        elif orientation == 3:
            save(tmp_path / f"masks/{number}.png", np.full((4, 6), number, np.uint8))
            Image.open(path).save(path, exif=exif)
        else:
            Image.open(path).save(path, exif=exif)
    masked = opened(tmp_path)
    assert masked.masks.read(1).tolist() == np.ones((6, 4) if orientation == 6 else (4, 6), int).tolist()
    assert [finding.name for finding in masked.findings] == (["turned-images"] if orientation == 3 else [])
    if orientation == 6:
        save(tmp_path / "masks/1.png", np.ones((4, 6), np.uint8))
        with pytest.raises(UserError, match="after the rotation of the EXIF tag: the mask was drawn before"):
            opened(tmp_path)


def test_damaged_masks__are_named(tmp_path):
    make(tmp_path, [np.zeros((4, 6), np.uint8), np.ones((4, 6), np.uint8)])
    (tmp_path / "masks/1.png").write_bytes((tmp_path / "masks/1.png").read_bytes()[:40])
    with pytest.raises(UnreadableImage, match=r"1\.png \(a mask\) cannot be decoded"):
        opened(tmp_path)
    Image.fromarray(np.zeros((4, 6), np.float32)).save(tmp_path / "masks/1.tiff")
    (tmp_path / "masks/1.png").unlink()
    with pytest.raises(UnreadableImage, match="the mask has floating-point values"):
        opened(tmp_path)


def test_photographs_as_masks__are_refused(tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (40, 60, 3), dtype=np.uint8)
    make(tmp_path, [noise, noise], size=(40, 60))
    with pytest.raises(UserError, match="2400 colours, but at most 255 classes are supported"):
        opened(tmp_path)
