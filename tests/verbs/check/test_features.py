"""What a check's features are read of: all detail, or what a smaller copy has too."""

import numpy as np
import pytest
from PIL import Image
from torch import nn
from torch.nn import functional

from paucal.data.sources.folder import open_folder
from paucal.models.preprocessing import Preprocessing
from paucal.verbs.check.labels import DownscalingTransform, FeatureReader


@pytest.mark.parametrize(("side", "size"), [(None, (40, 30)), (50, (40, 30)), (15, (20, 15)), (1, (1, 1))])
def test_coarser__reduces_what_is_larger_and_keeps_the_shape(side, size):
    seen = DownscalingTransform(lambda image: image, side)(Image.new("RGB", (40, 30)))  # type: ignore[arg-type, return-value]
    assert seen.size == size  # type: ignore[attr-defined]


def test_read__of_less_detail_knows_a_copy_that_was_saved_smaller(tmp_path):
    """Grains of a pixel are in the original alone; the features are the pixels less what is coarse."""
    (tmp_path / "a").mkdir()
    generator = np.random.default_rng(0)
    for number in range(2):
        pixels = generator.integers(0, 256, (64, 64, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "a" / f"{number}.png")
    Image.open(tmp_path / "a" / "0.png").resize((40, 40), Image.Resampling.LANCZOS).save(tmp_path / "a" / "0small.png")
    images = open_folder(tmp_path, labelled=False)
    assert images.keys == ["a/0.png", "a/0small.png", "a/1.png"]
    prepared = Preprocessing((64, 64), 1.0, "bicubic", (0.5,) * 3, (0.5,) * 3)
    reader = FeatureReader("pixels", nn.Flatten(), prepared)
    cosines = []
    for detail in (None, 24):
        found = functional.normalize(reader.read(images, np.arange(3), detail=detail))
        cosines.append((found @ found.T).numpy())
    whole, coarse = cosines
    assert whole[0, 1] < 0.8
    assert coarse[0, 1] > 0.97
    assert abs(coarse[0, 2]) < 0.2
