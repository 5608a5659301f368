"""The head of the first rung: standardised regression folded into one linear layer."""

import pytest
import torch

from paucal.evaluation.protocols.logistic import fit_logistic
from paucal.types import UserError
from paucal.verbs.training.ladder.probe import SOLVER, accuracy, fit_head, stratified


def blobs(classes, each, dim=12, apart=4.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    centres = apart * torch.randn(classes, dim, generator=generator)
    labels = torch.arange(classes).repeat_interleave(each)
    scale = torch.logspace(-3, 3, dim)  # channels of very different sizes, which standardising makes equal
    return (centres[labels] + torch.randn(len(labels), dim, generator=generator)) * scale + 5, labels


def test_head__is_the_regression_on_standardised_features():
    features, labels = blobs(4, 30)
    head = fit_head(features, labels, 4, strengths=(10.0,))
    standard = (features - features.mean(0)) / features.std(0)
    expected = fit_logistic(standard, labels, 4, 10.0, SOLVER).scores(standard).float()
    torch.testing.assert_close(head.scores(features), expected, rtol=2e-3, atol=2e-3)
    layer = torch.nn.Linear(12, 4)
    head.put_into(layer)
    torch.testing.assert_close(layer(features), head.scores(features))
    assert head.cross_validated > 0.9


def test_head__takes_the_strength_that_cross_validates_best():
    features, labels = blobs(3, 20, apart=0.6, seed=2)
    scores = {s: fit_head(features, labels, 3, strengths=(s,)).cross_validated for s in (1e-4, 100.0, 1e6)}
    assert fit_head(features, labels, 3, strengths=(1e-4, 100.0, 1e6)).cross_validated == max(scores.values())


@pytest.mark.parametrize(("classes", "each"), [(2, 6), (70, 3)])
def test_head__of_few_images(classes, each):
    features, labels = blobs(classes, each)
    head = fit_head(features, labels, classes)
    assert accuracy(head, features, labels) > 0.95
    assert head.weight.shape == (classes, 12)
    assert bool(torch.isfinite(head.weight).all())


def test_head__of_a_class_without_images_never_answers_it():
    features, labels = blobs(3, 10)
    head = fit_head(features, labels * 2, 5)  # classes 1 and 3 have none
    scores = head.scores(features)
    assert bool(torch.isfinite(scores).all())
    assert set(scores.argmax(1).tolist()) == {0, 2, 4}


def test_head__survives_channels_that_never_change():
    features, labels = blobs(2, 10)
    features[:, 3] = 7.0
    assert accuracy(fit_head(features, labels, 2), features, labels) == 1.0


def test_head__of_one_class_is_refused():
    with pytest.raises(UserError, match="have 1 class, and a classifier needs at least two"):
        fit_head(torch.randn(6, 3), torch.zeros(6, dtype=torch.int64), 2)


def test_stratified__keeps_every_class_in_its_share():
    labels = torch.tensor([0] * 600 + [1] * 300 + [2] * 3)
    rows = stratified(labels, 90, seed=1)
    assert labels[rows].bincount().tolist() == [60, 30, 2]
    assert rows.tolist() == sorted(set(rows.tolist()))
    assert stratified(labels, 90, seed=1).tolist() == rows.tolist()
    assert len(stratified(labels, 10_000)) == len(labels)


def test_head__where_no_image_can_be_left_out_says_so():
    features, labels = blobs(4, 1)
    head = fit_head(features, labels, 4)
    assert head.cross_validated is None
    assert accuracy(head, features, labels) == 1.0
