"""`ImageRegressor`: its numbers, intervals, grades and copies."""

import pickle

import numpy as np
import pytest
from PIL import Image
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from paucal import ImageEmbedder, ImageRegressor
from paucal.verbs.check.labels import find_local_weights
from tasks.regression.test_regression import stored_start


def bright(count: int = 40) -> tuple[list[Image.Image], np.ndarray]:
    """Noise of different brightness, and its brightness."""
    generator = np.random.default_rng(0)
    levels = generator.uniform(20, 235, count)
    noise = generator.normal(levels[:, None, None, None], 15, (count, 32, 32, 3))
    return [Image.fromarray(one) for one in np.clip(noise, 0, 255).astype(np.uint8)], levels


@pytest.fixture(scope="module")
def fitted(tmp_path_factory) -> ImageRegressor:
    if find_local_weights() is None:
        pytest.skip("no trained weights are on this machine")
    return ImageRegressor(img_size=32, runs=tmp_path_factory.mktemp("runs")).fit(*bright())


def test_regressor__predicts_numbers_with_intervals(fitted):
    images, levels = bright()
    assert fitted.score(images, levels) > 0.8
    low, high = fitted.predict_interval(images).T
    assert (high - low) / 2 == pytest.approx(high - fitted.predict(images))
    assert ((low <= levels) & (levels <= high)).mean() > 0.8
    assert (high - low).max() < 80
    features = fitted.transform(images[:2])
    assert features.shape[0] == 2
    assert pickle.loads(pickle.dumps(fitted)).predict(images[:3]) == pytest.approx(fitted.predict(images[:3]))
    assert ImageEmbedder(fitted.run_).fit(images).transform(images[:2]) == pytest.approx(features, rel=1e-4)
    with pytest.raises(NotFittedError):
        clone(fitted).predict(images)


def test_grades__are_whole_numbers(tmp_path):
    images, levels = bright()
    grades = 1 + levels // 60
    start = stored_start(tmp_path / "start")
    model = ImageRegressor(ordinal=True, init=str(start), runs=tmp_path / "runs").fit(images, grades)
    assert set(model.predict(images)) <= {1.0, 2.0, 3.0, 4.0}
    assert (model.predict(images) == grades).mean() > 0.7


@pytest.mark.parametrize("numbers", [None, ["a"] * 12, [np.nan] * 12, np.zeros((12, 2))])
def test_other_targets__are_refused(tmp_path, numbers):
    with pytest.raises(ValueError, match=r"y|convert"):
        ImageRegressor(runs=tmp_path).fit(bright(12)[0], numbers)
    assert not list(tmp_path.iterdir())
