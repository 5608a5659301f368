"""A folder of a few unlabelled pictures, and a run on it."""

import numpy as np
import pytest
from PIL import Image

from paucal.runner.life import Stopped
from tasks.curves import unrendered_curves
from tasks.pretraining.short_runs import start


@pytest.fixture(scope="session")
def pictures(tmp_path_factory):
    """24 pictures in folders of any depth, without labels."""
    root, draw = tmp_path_factory.mktemp("pictures"), np.random.default_rng(0)
    for number in range(24):
        folder = root / "some" / ("deep/er" if number % 2 else "")
        folder.mkdir(parents=True, exist_ok=True)
        small = draw.integers(0, 255, (6, 8, 3), dtype=np.uint8)
        Image.fromarray(small).resize((48, 40)).save(folder / f"{number}.png")
    return root


@pytest.fixture(scope="session")
def finished(pictures, tmp_path_factory, drawing, fast_tier):
    with drawing(), unrendered_curves(fast_tier):
        result = start(pictures, tmp_path_factory.mktemp("runs") / "one")
    assert not isinstance(result, Stopped)
    return result
