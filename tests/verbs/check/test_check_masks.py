"""`paucal check` on folders of images with masks."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import paucal
from cli.calls import make_photos, make_scenes


def texts(found, name):
    return [one.text for one in found.findings if one.name == name]


def test_check__knows_masks_and_says_what_they_show(tmp_path):
    root = make_scenes(tmp_path / "scenes", 6)
    (root / "images/extra.png").write_bytes((root / "images/00.png").read_bytes())
    found = paucal.check(root)
    assert texts(found, "masks") == ["6 images with masks: this is data for paucal segment"]
    pixels = np.concatenate([np.asarray(Image.open(path)).ravel() for path in sorted((root / "masks").iterdir())])
    share = 100 * (pixels == 2).mean()
    assert f"class 2 {share:.1f} %" in texts(found, "pixels")[0]
    assert any(
        "1 image without a mask was left out: images/extra.png" in text.lower() for text in texts(found, "source")
    )
    assert not found.misleads


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        (np.zeros((9, 9), np.uint8), "mask 02.png has 9x9 pixels"),
        (np.resize(np.arange(256, dtype=np.uint8), (40, 48)), "mask 02.png has 256 grey levels from 0 to 255"),
    ],
)
def test_masks_that_do_not_do__mislead(tmp_path, mask, words):
    root = make_scenes(tmp_path / "scenes", 4)
    Image.fromarray(mask).save(root / "masks/02.png")
    found = paucal.check(root)
    assert found.misleads
    assert words in texts(found, "bad-masks")[0]


def test_scarce_classes_and_empty_masks__are_found(tmp_path):
    root = make_scenes(tmp_path / "scenes", 5)
    for number, path in enumerate(sorted((root / "masks").iterdir())):
        mask = np.array(Image.open(path))
        mask[0, 0] = 3 if number == 0 else mask[0, 0]
        Image.fromarray(np.full_like(mask, 255) if number == 4 else mask).save(path)
    found = paucal.check(root)
    assert "1 class with under 0.1 % of the pixels: class 3" in texts(found, "scarce-classes")
    assert texts(found, "empty-masks") == ["1 mask without a labelled pixel"]


def mixed(root: Path) -> Path:
    """Make scenes of one class, whose masks have 255 in one half of the files and 1 in the other."""
    make_scenes(root, 6)
    for number, path in enumerate(sorted((root / "masks").iterdir())):
        mask = (np.array(Image.open(path)) > 0).astype(np.uint8)
        Image.fromarray(mask * (255 if number % 2 else 1)).save(path)
    return root


def test_flags_of_masks__are_those_of_segment(tmp_path):
    root = mixed(tmp_path / "scenes")
    assert "two codings" in texts(paucal.check(root), "bad-masks")[0]
    found = paucal.check(root, mask_values="binary")
    marked = np.concatenate([np.asarray(Image.open(path)).ravel() > 0 for path in (root / "masks").iterdir()])
    share = 100 * marked.mean()
    assert not found.misleads
    assert texts(found, "pixels") == [
        f"percentage of the labelled pixels: background {100 - share:.1f} %, foreground {share:.1f} %"
    ]
    assert "class 1" in texts(paucal.check(root, ignore=[255]), "pixels")[0]
    names = tmp_path / "names.txt"
    names.write_text("\ufeffground\ndisc\n", encoding="utf-8")
    assert "disc" in texts(paucal.check(root, mask_values="binary", classes=names), "pixels")[0]
    (root / "images").rename(root / "x")
    (root / "masks").rename(root / "y")
    found = paucal.check(images=root / "x", masks=root / "y", mask_values="binary")
    assert texts(found, "masks") == ["6 images with masks: this is data for paucal segment"]


def test_what_segment_refuses__misleads(tmp_path):
    root = make_scenes(tmp_path / "scenes", 4)
    for path in (root / "masks").iterdir():
        path.rename(path.with_stem(f"other{path.stem}"))
    assert "none of the 4 images has a mask with its name" in texts(paucal.check(root), "bad-masks")[0]
    few = make_scenes(tmp_path / "few", 2)
    assert "2 images have labelled pixels; expected 3 or more" in texts(paucal.check(few), "bad-masks")[0]
    assert paucal.check(images=root / "images", masks=root / "masks").misleads


def test_small_images__get_a_crop_that_segment_would_take(tmp_path):
    root = make_scenes(tmp_path / "scenes", 4, size=(374, 400))
    make_scenes(tmp_path / "small", 1, size=(100, 120))
    for side in ("images", "masks"):
        (tmp_path / f"small/{side}/00.png").rename(root / side / "small.png")
    found = [one for one in paucal.check(root).findings if one.name == "small-crops"]
    assert [one.advice for one in found] == ["train with smaller crops: --img-size 192"]
    assert found[0].text.startswith("1 image fills less than half the side of the 256-pixel crops")


def test_doubtful_masks__are_found(tmp_path):
    root = make_scenes(tmp_path / "scenes", 6, size=(200, 200))
    colours = np.asarray([[0, 0, 0], [255, 0, 0], [0, 0, 255], [255, 0, 1]], dtype=np.uint8)
    for number, path in enumerate(sorted((root / "masks").iterdir())):
        mask = np.array(Image.open(path))
        mask[0, 0] = 3 if number == 2 else mask[0, 0]
        Image.fromarray(colours[mask]).save(path)
    exif = Image.Exif()
    exif[0x0112] = 3
    Image.open(root / "images/01.png").save(root / "images/01.png", exif=exif)
    found = paucal.check(root)
    assert texts(found, "stray-values") == ["1 stray value counts as a class: (255, 0, 1) in 1 pixel of 02.png"]
    assert found.misleads
    assert (
        "1 image is rotated by its EXIF tag (images/01.png), and the size does not show"
        in texts(found, "turned-images")[0]
    )
    advice = [one.advice for one in found.findings if one.name == "turned-images"]
    assert advice == ["check some masks, or store the images upright without the tag"]


def test_masks_that_may_be_inverted__are_found(tmp_path):
    root = make_scenes(tmp_path / "scenes", 8)
    for number, path in enumerate(sorted((root / "masks").iterdir())):
        mask = np.array(Image.open(path)) > 0
        Image.fromarray((mask ^ bool(number % 2)).astype(np.uint8) * 255).save(path)
    found = [one for one in paucal.check(root).findings if one.name == "perhaps-inverted"]
    assert len(found) == 1
    assert found[0].level == "warning"
    assert len(found[0].groups) == 4


def test_class_folders__are_still_classes(tmp_path):
    photos = make_photos(tmp_path / "photos", 2, 4)
    (photos / "class0").rename(photos / "images")
    found = paucal.check(photos)
    assert texts(found, "masks") == []
