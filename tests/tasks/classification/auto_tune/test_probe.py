"""The linear probe: standardised regression folded into one linear layer."""

import pytest
import torch

from paucal.evaluation.protocols.logistic import fit_logistic
from paucal.tasks.classification.auto_tune.probe import SOLVER, fit_head, score_head, standardise, stratified_sample
from paucal.types import UserError


def blobs(classes, each, dim=12, apart=4.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    centres = apart * torch.randn(classes, dim, generator=generator)
    labels = torch.arange(classes).repeat_interleave(each)
    scale = torch.logspace(-3, 3, dim)  # channels of very different sizes, which standardising makes equal
    return (centres[labels] + torch.randn(len(labels), dim, generator=generator)) * scale + 5, labels


def test_head__is_the_regression_on_standardised_features():
    features, labels = blobs(4, 30)
    head = fit_head(features, labels, 4, strengths=(10.0,))
    standard = (features - features.mean(0)) / standardise(features).deviation
    expected = fit_logistic(standard, labels, 4, 10.0, SOLVER).scores(standard).float()
    torch.testing.assert_close(head.scores(features), expected, rtol=2e-3, atol=2e-3)
    layer = torch.nn.Linear(12, 4)
    head.copy_to(layer)
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
    assert score_head(head, features, labels) > 0.95
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
    assert score_head(fit_head(features, labels, 2), features, labels) == 1.0


def test_head__of_one_class_is_refused():
    with pytest.raises(UserError, match="have 1 class, but a classifier needs at least two"):
        fit_head(torch.randn(6, 3), torch.zeros(6, dtype=torch.int64), 2)


def test_stratified__keeps_every_class_in_its_share():
    labels = torch.tensor([0] * 600 + [1] * 300 + [2] * 3)
    rows = stratified_sample(labels, 90, seed=1)
    assert labels[rows].bincount().tolist() == [60, 30, 2]
    assert rows.tolist() == sorted(set(rows.tolist()))
    assert stratified_sample(labels, 90, seed=1).tolist() == rows.tolist()
    assert len(stratified_sample(labels, 10_000)) == len(labels)


def test_head__where_no_image_can_be_left_out_says_so():
    features, labels = blobs(4, 1)
    head = fit_head(features, labels, 4)
    assert head.cross_validated is None
    assert score_head(head, features, labels) == 1.0


def several(n=120, dim=12, seed=0):
    """Return features of which the first channels tell, noisily, three labels that go together as they like."""
    generator = torch.Generator().manual_seed(seed)
    labels = (torch.rand(n, 3, generator=generator) < torch.tensor([0.5, 0.3, 0.1])).long()
    features = torch.randn(n, dim, generator=generator)
    features[:, :3] += 3 * labels
    return features, labels


def test_head__of_several_labels_is_one_regression_for_each_class():
    features, labels = several()
    head = fit_head(features, labels, 3, strengths=(10.0,))
    standard = (features - features.mean(0)) / standardise(features).deviation
    for place in range(3):
        alone = fit_logistic(standard, labels[:, place], 2, 10.0, SOLVER).scores(standard)
        torch.testing.assert_close(
            head.scores(features)[:, place], (alone[:, 1] - alone[:, 0]).float(), rtol=5e-2, atol=5e-2
        )
    assert head.cross_validated is not None
    assert 0.9 < head.cross_validated < score_head(head, features, labels)


def test_head__of_several_labels_with_classes_that_no_image_has_or_nobody_knows():
    features, labels = several()
    labels[:, 1] = 0
    labels[:60, 2] = -1
    head = fit_head(features, labels, 3)
    assert bool(torch.isfinite(head.scores(features)).all())
    assert float(head.scores(features)[:, 1].max()) < -3
    assert score_head(head, features, labels) > 0.9


def test_stratified__takes_a_share_of_every_label():
    _, labels = several(400)
    rows = stratified_sample(labels, 100)
    assert len(rows) == 100
    assert (labels[rows].sum(0) - labels.sum(0) / 4).abs().max() <= 2
