"""Logistic regression: two backends with one minimum, missing classes, and lambda chosen on validation images."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from paucal.evaluation.protocols.logistic import (
    N_GRID_POINTS,
    SearchResult,
    SolverSettings,
    fit_logistic,
    fit_selected,
    strength_at,
)
from paucal.types import UserError

EXACT = {name: SolverSettings(name, max_iterations=5000, tolerance=1e-7) for name in ("sklearn", "torch")}
# Both stop where no entry of the gradient of the mean loss is above 1e-7.
AGREEMENT = {"rtol": 1e-4, "atol": 1e-5}


def blobs(n=120, dim=6, classes=3, spread=1.0, seed=0):
    generator = np.random.default_rng(seed)
    labels = np.arange(n) % classes
    features = generator.normal(size=(n, dim)) + spread * np.eye(classes, dim)[labels]
    return torch.from_numpy(features), torch.from_numpy(labels)


@pytest.mark.parametrize("classes", [2, 3, 5])
@pytest.mark.parametrize("strength", [1e-2, 1.0, 1e3])
def test_backends__agree_in_every_coefficient(classes, strength):
    features, labels = blobs(classes=classes)
    ours, theirs = (fit_logistic(features, labels, classes, strength, EXACT[name]) for name in ("torch", "sklearn"))
    assert ours.converged
    assert theirs.converged
    torch.testing.assert_close(ours.weight, theirs.weight, **AGREEMENT)
    # A constant added to all biases changes nothing.
    torch.testing.assert_close(ours.bias - ours.bias.mean(), theirs.bias - theirs.bias.mean(), **AGREEMENT)
    torch.testing.assert_close(
        ours.scores(features).softmax(1), theirs.scores(features).softmax(1), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("backend", ["sklearn", "torch"])
def test_fit__minimises_the_sum_of_losses_plus_half_lambda_times_squares(backend):
    features, labels = blobs(classes=3)
    fit = fit_logistic(features, labels, 3, 0.7, EXACT[backend])
    weight, bias = fit.weight.clone().requires_grad_(), fit.bias.clone().requires_grad_()
    loss = torch.nn.functional.cross_entropy(features @ weight.T + bias, labels, reduction="sum")
    (loss + 0.7 / 2 * weight.square().sum()).backward()
    assert weight.grad.abs().max() < 1e-5
    assert bias.grad.abs().max() < 1e-5


@pytest.mark.parametrize("backend", ["sklearn", "torch"])
def test_fit__of_two_classes_is_the_one_of_scikit_learn(backend):
    features, labels = blobs(classes=2)
    peer = LogisticRegression(C=1 / 3, tol=1e-9, max_iter=5000).fit(features.numpy(), labels.numpy())
    fit = fit_logistic(features, labels, 2, 3.0, EXACT[backend])
    margin = fit.scores(features)[:, 1] - fit.scores(features)[:, 0]
    np.testing.assert_allclose(margin, peer.decision_function(features.numpy()), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("backend", ["sklearn", "torch"])
def test_fit__never_answers_a_class_it_has_not_seen(backend):
    features, labels = blobs(classes=3)
    numbers = torch.tensor([0, 3, 4])[labels]
    fit = fit_logistic(features, numbers, 6, 1.0, SolverSettings(backend))
    assert fit.weight.shape == (6, 6)
    assert set(fit.scores(features * 100).argmax(1).tolist()) <= {0, 3, 4}
    compact = fit_logistic(features, labels, 3, 1.0, SolverSettings(backend))
    assert torch.equal(fit.weight[[0, 3, 4]], compact.weight)


def test_multi_label__is_one_regression_per_class_without_the_ignored_images():
    features, labels = blobs(classes=4)
    many = torch.nn.functional.one_hot(labels, 4)
    many[::7, 2] = -1
    ours, theirs = (fit_logistic(features, many, 4, 2.0, EXACT[name]) for name in ("torch", "sklearn"))
    torch.testing.assert_close(ours.weight, theirs.weight, **AGREEMENT)
    torch.testing.assert_close(ours.bias, theirs.bias, **AGREEMENT)
    known = many[:, 2] >= 0
    peer = LogisticRegression(C=1 / 2, tol=1e-9, max_iter=5000).fit(features[known].numpy(), many[known, 2].numpy())
    np.testing.assert_allclose(ours.weight[2], peer.coef_[0], rtol=1e-4, atol=1e-5)


def sweep(score) -> SearchResult:
    """Try every lambda of the grid; of equal scores the larger one wins."""
    scores = {position: score(strength_at(position)) for position in range(N_GRID_POINTS)}
    return SearchResult(max(scores, key=lambda position: (scores[position], position)), scores)


def test_selected__takes_the_grids_best_lambda_and_refits_on_both_parts():
    train, val = blobs(60, 20, spread=1.5), blobs(600, 20, spread=1.5, seed=1)
    judged = fit_selected(train, val, 3)
    assert judged.fits <= 16
    full = fit_selected(train, val, 3, search=sweep)
    assert full.fits == 98
    best = max(full.search.scores.values())
    assert judged.search.scores[judged.search.best] >= best - 0.005  # accuracy has steps, so not every peak is one
    both = torch.cat([train[0], val[0]]), torch.cat([train[1], val[1]])
    again = fit_logistic(*both, 3, judged.search.strength)
    assert torch.equal(judged.classifier.weight, again.weight)


def test_selected__never_sees_more_than_training_and_validation_images():
    train, val = blobs(60), blobs(30, seed=1)
    scores = fit_selected(train, val, 3).search.scores
    assert scores == fit_selected(train, val, 3).search.scores
    other = fit_selected(train, (val[0] + 3, val[1]), 3).search.scores
    assert other != scores


@pytest.mark.parametrize("backend", ["sklearn", "torch"])
def test_fit__refuses_one_class_and_broken_features(backend):
    features, labels = blobs()
    with pytest.raises(UserError, match="the training images have 1 class,"):
        fit_logistic(features, torch.zeros_like(labels), 3, 1.0, SolverSettings(backend))
    many = torch.nn.functional.one_hot(labels, 3)
    many[:, 1] = 1
    with pytest.raises(UserError, match="the images labelled for class 1 have 1 class,"):
        fit_logistic(features, many, 3, 1.0, SolverSettings(backend))
    features[3, 2] = torch.nan
    features[5, 0] = torch.inf
    with pytest.raises(UserError, match="the features of 2 of 120 training images are not finite numbers"):
        fit_logistic(features, labels, 3, 1.0, SolverSettings(backend))


def test_selected__refuses_missing_validation_images_and_other_models():
    train = blobs()
    with pytest.raises(UserError, match="there are no validation images to select lambda with"):
        fit_selected(train, (train[0][:0], train[1][:0]), 3)
    with pytest.raises(UserError, match="have 6 channels, but the test features have 7"):
        fit_selected(train, blobs(dim=7), 3)
