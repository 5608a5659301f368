"""`paucal check` on folders of images with masks."""

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


def test_class_folders__are_still_classes(tmp_path):
    photos = make_photos(tmp_path / "photos", 2, 4)
    (photos / "class0").rename(photos / "images")
    found = paucal.check(photos)
    assert texts(found, "masks") == []
