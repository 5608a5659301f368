"""Temperature scaling: the likeliest temperature, the same answers, and no certainty from a few images."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from paucal.evaluation.calibration import calibration, fit_temperature
from paucal.evaluation.predictions import Predictions


def answers(temperature, count=4000, classes=5, seed=0):
    """Logits of which those divided by `temperature` are the true log-probabilities of the labels."""
    generator = torch.Generator().manual_seed(seed)
    true = 2 * torch.randn(count, classes, generator=generator)
    labels = torch.multinomial(true.softmax(1), 1, generator=generator)[:, 0]
    return temperature * true, labels


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_fit_temperature__finds_the_one_that_the_labels_were_drawn_with(temperature):
    logits, labels = answers(temperature)
    assert fit_temperature(logits, labels) == pytest.approx(temperature, rel=0.06)


def test_fit_temperature__is_the_minimum_of_likelihood_and_prior_on_a_grid():
    logits, labels = answers(2.0, count=60)
    grid = np.exp(np.linspace(-2, 2, 2001))
    costs = [
        float(F.cross_entropy(logits.double() / t, labels, reduction="sum")) + np.log(t) ** 2 / (2 * 0.5**2)
        for t in grid
    ]
    assert fit_temperature(logits, labels) == pytest.approx(grid[int(np.argmin(costs))], rel=0.005)


def test_fit_temperature__of_images_that_are_all_right_stays_moderate():
    logits = 2 * torch.eye(3).repeat(20, 1)
    found = fit_temperature(logits, logits.argmax(1))
    assert 0.2 < found < 0.8


def test_fit_temperature__of_too_few_images_or_broken_logits_is_one():
    logits, labels = answers(3.0, count=19)
    assert fit_temperature(logits, labels) == 1.0
    logits, labels = answers(3.0, count=30)
    logits[3, 1] = float("inf")
    assert fit_temperature(logits, labels) == 1.0


def test_calibration__makes_confidence_mean_accuracy_and_changes_no_answer():
    logits, labels = answers(3.0)
    plain = Predictions(torch.arange(len(labels)), logits, labels)
    found = calibration(plain, 3.0, 100)
    assert found.error[0] > 0.15
    assert found.error[1] < 0.03
    assert found.loss[1] < found.loss[0]
    assert torch.equal(plain.at_temperature(3.0).predicted, plain.predicted)
