"""The parts of a set of images with masks."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import paucal
from cli.calls import make_scenes
from paucal.runner.console import SilentConsole
from paucal.tasks.segmentation.images import open_segmentation_data
from paucal.tasks.segmentation.settings import SegmentSettings
from paucal.types import UserError


def test_validation_images_without_a_labelled_pixel__select_no_epoch(tmp_path: Path):
    generator = np.random.default_rng(0)
    for part, value in (("train", 1), ("val", 255), ("test", 1)):
        for number in range(3):
            mask = np.full((16, 16), 255 if value == 255 else 0, dtype=np.uint8)
            mask[4:9, 4:9] = value
            for kind, pixels in (("images", generator.integers(0, 256, (16, 16, 3), dtype=np.uint8)), ("masks", mask)):
                (tmp_path / part / kind).mkdir(parents=True, exist_ok=True)
                Image.fromarray(pixels).save(tmp_path / part / kind / f"{part}{number}.png")
    data = open_segmentation_data(SegmentSettings(data=str(tmp_path)), SilentConsole().progress, None)
    assert data.counts() == {"train": 3, "val": 0, "test": 3}
    words = "3 validation images without a labelled pixel left out, since they cannot select a model"
    assert data.split.description.endswith(words)


def test_split_without_test_images__is_refused(tmp_path):
    scenes = make_scenes(tmp_path / "scenes", 6)
    keys = sorted(path.relative_to(scenes).as_posix() for path in (scenes / "images").iterdir())
    lines = ["key,label,class,split", *(f"{key},,,{'val' if n < 2 else 'train'}" for n, key in enumerate(keys))]
    (tmp_path / "split.csv").write_text("\n".join(lines))
    for settings in ({"test_fraction": 0.05}, {"split": str(tmp_path / "split.csv")}):
        with pytest.raises(UserError, match="none of the 6 images is a test image: give test images, or a larger"):
            paucal.segment(scenes, model="test_resnet", init=None, output=tmp_path / "run", **settings)
        assert not (tmp_path / "run").exists()
