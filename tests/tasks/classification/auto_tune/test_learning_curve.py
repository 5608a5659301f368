"""Learning curve of the first model: what its points are, and what its forecast says of curves that are known."""

import numpy as np
import pytest
import torch

from paucal.data.randomness import derive_seed
from paucal.evaluation.protocols.classifier import draw_folds
from paucal.metrics.intervals import cross_validated, wilson_share
from paucal.tasks.classification.auto_tune.heads import N_FOLDS, N_REPEATS
from paucal.tasks.classification.auto_tune.learning_curve import (
    _extrapolate,
    _forecast,
    draw_curve,
    measure_learning_curve,
)
from paucal.tasks.classification.auto_tune.probe import fit_head


def draw(each, classes=3, dim=12, apart=0.7):
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(each * classes) % classes
    centres = apart * torch.randn(classes, dim, generator=generator)
    return centres[labels] + torch.randn(each * classes, dim, generator=generator), labels


def test_curve__ends_with_the_cross_validation_of_all_images():
    features, labels = draw(10)
    curve = measure_learning_curve(features, labels, 3, 10.0, seed=4)
    assert [point.per_class for point in curve.points] == pytest.approx([1, 2, 5, 8])
    right = []
    for repeat in range(N_REPEATS):
        for rows, others in draw_folds(labels, derive_seed(4, repeat), N_FOLDS):
            head = fit_head(features[rows], labels[rows], 3, strengths=(8.0,))  # four fifths of the penalty
            right.append((head.scores(features[others]).argmax(1) == labels[others]).float().mean())
    assert curve.points[-1].accuracy.value == pytest.approx(float(torch.stack(right).mean()), abs=1e-6)
    assert curve.points[0].accuracy.value < curve.points[-1].accuracy.value
    assert curve.per_class == 10
    assert 0 <= curve.gain <= curve.forecast.value
    assert "twice as many images would give at best about" in str(curve)
    assert len(draw_curve(curve).axes[0].lines) > 1


def test_curve__of_two_images_per_class_forecasts_nothing():
    curve = measure_learning_curve(*draw(2), 3, 10.0, seed=0)
    assert [point.per_class for point in curve.points] == pytest.approx([1])
    assert (curve.forecast, curve.gain) == (None, None)
    assert str(curve).endswith("too few points for a forecast")


def test_curve__of_images_that_only_their_group_tells_apart_is_at_chance_with_a_wider_band():
    generator = torch.Generator().manual_seed(0)
    groups = torch.arange(240) // 8
    labels = groups % 3
    features = (2 * torch.randn(30, 60, generator=generator))[groups] + torch.randn(240, 60, generator=generator)
    leaking, honest = (
        measure_learning_curve(features, labels, 3, 10.0, 0, given).points[-1] for given in (None, groups)
    )
    assert leaking.accuracy.value > 0.9
    assert honest.accuracy.low < 1 / 3 < honest.accuracy.high
    alone = cross_validated(np.ones((1, 240), dtype=bool))
    in_groups = cross_validated(np.ones((1, 240), dtype=bool), groups=groups.numpy())
    assert in_groups.low == wilson_share(1.0, 30 / 2.25).low < alone.low


def test_extended__goes_on_with_a_power_law_and_never_down():
    sizes = np.array([5.0, 10.0, 20.0])
    assert 1 - _extrapolate(sizes, 0.6 * sizes[:, None] ** -0.5, 80) == pytest.approx(0.6 * 80**-0.5)
    assert 1 - _extrapolate(sizes, np.array([[0.1], [0.2], [0.3]]), 80) == pytest.approx(0.3)


def test_forecast__of_equal_errors_is_no_gain_with_the_width_of_the_test():
    shares = np.tile(np.arange(90) % 2, (3, 1)).astype(float)
    forecast, gain = _forecast(np.array([1.0, 2.0, 4.0]), shares, 5.0, 40, 0)
    assert (forecast.value, gain) == (0.5, 0.0)
    assert forecast.high - forecast.low == pytest.approx(2 * 1.96 * (0.25 / 40) ** 0.5, rel=0.15)


def test_forecast__of_images_that_are_all_right_has_the_interval_of_their_number():
    forecast, _ = _forecast(np.array([1.0, 2.0, 4.0]), np.ones((3, 30)), 5.0, 13, 0)
    assert (forecast.value, forecast.high) == (1.0, 1.0)
    assert 0.7 < forecast.low < 0.9
