"""What is chosen without validation images: by folds of the training images, each of which is held out once."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import PredefinedSplit, cross_val_score

from paucal.evaluation.protocols.classifier import balanced_fold_count, draw_folds
from paucal.evaluation.protocols.linear_probe import (
    ProbeSettings,
    cached_batches,
    fit_probe_by_folds,
    limit_batch_size,
    train_probes,
)
from paucal.evaluation.protocols.logistic import fit_by_folds
from paucal.types import UserError


def blobs(each=(40, 30, 20), dim=8, noise=1.5):
    generator = torch.Generator().manual_seed(0)
    labels = torch.cat([torch.full((n,), k) for k, n in enumerate(each)])
    return torch.randn(len(labels), dim, generator=generator) * noise + 2 * torch.eye(len(each), dim)[labels], labels


def test_folds__hold_every_image_out_once_and_spread_each_class():
    labels = torch.tensor([0] * 23 + [1] * 10 + [2] * 3)[torch.randperm(36, generator=torch.Generator().manual_seed(1))]
    folds = draw_folds(labels, seed=4)
    assert len(folds) == 5
    assert sorted(torch.cat([held for _, held in folds]).tolist()) == list(range(36))
    for rows, held in folds:
        assert sorted([*rows.tolist(), *held.tolist()]) == list(range(36))
        counts = torch.bincount(labels[held], minlength=3).tolist()
        assert counts[0] in (4, 5)
        assert counts[1] == 2
        assert counts[2] in (0, 1)
    assert torch.equal(draw_folds(labels, seed=4)[0][1], folds[0][1])
    assert not torch.equal(draw_folds(labels, seed=5)[0][1], folds[0][1])
    assert len(draw_folds(torch.tensor([0, 0, 1, 1]))) == 4
    several = torch.randint(0, 2, (10, 3))
    assert sorted(torch.cat([held for _, held in draw_folds(several)]).tolist()) == list(range(10))


def test_folds__of_classes_with_one_image_are_refused():
    with pytest.raises(UserError, match="two classes with at least two images: give more images, or --val-fraction"):
        draw_folds(torch.tensor([0, 0, 0, 1, 2]))


def test_logistic__has_the_strength_that_sklearns_cross_validation_prefers():
    features, labels = blobs()
    found = fit_by_folds((features, labels), 3)
    fold = np.empty(len(labels), dtype=int)
    for number, (_, held) in enumerate(draw_folds(labels)):
        fold[held.numpy()] = number

    def share(strength):
        model = LogisticRegression(C=1 / strength, max_iter=1000)
        return cross_val_score(model, features.double().numpy(), labels.numpy(), cv=PredefinedSplit(fold)).mean()

    for position, score in found.search.scores.items():
        assert score == pytest.approx(share(10.0 ** (-6 + position / 8)))
    assert found.search.scores[found.search.best] == max(found.search.scores.values())
    assert found.fits == 5 * len(found.search.scores) + 1
    whole = LogisticRegression(C=1 / found.search.strength, max_iter=1000).fit(
        features.double().numpy(), labels.numpy()
    )
    np.testing.assert_allclose(found.classifier.weight.numpy(), whole.coef_, atol=1e-6)


def test_probe__has_the_rate_that_the_folds_prefer_and_is_trained_on_all_images_with_it():
    features, labels = blobs()
    settings = limit_batch_size(ProbeSettings(rates=(1e-6, 0.3, float("inf")), epochs=8, seed=2), len(labels))
    done = []
    batches = cached_batches(features, labels, settings)
    found = fit_probe_by_folds((features, labels), batches, 3, settings, progress=lambda *at: done.append(at))
    assert found.rate == 0.3
    assert found.scores[0.3] > found.scores[1e-6]
    assert np.isnan(found.scores[float("inf")])
    shares = []
    for rows, held in draw_folds(labels, 2):
        fold = limit_batch_size(settings, len(rows))
        weights, biases = train_probes(cached_batches(features[rows], labels[rows], fold), 8, 3, fold)
        shares.append(((features[held] @ weights[1].T + biases[1]).argmax(1) == labels[held]).float().mean().item())
    assert found.scores[0.3] == pytest.approx(np.mean(shares))
    weight, bias = train_probes(batches, 8, 3, ProbeSettings((0.3,), 8, settings.batch, seed=2))
    torch.testing.assert_close(found.classifier.weight, weight[0])
    torch.testing.assert_close(found.classifier.bias, bias[0])
    assert done == [(number, 48) for number in range(1, 49)]


def test_probe__of_features_that_are_no_numbers_is_refused():
    features, labels = blobs()
    features[3, 2] = torch.nan
    with pytest.raises(UserError, match="the features of 1 of 90 training images are not finite"):
        fit_probe_by_folds((features, labels), lambda epoch: iter(()), 3, ProbeSettings())


def test_folds__keep_groups_whole_and_spread_the_groups_of_each_class():
    labels = torch.arange(3).repeat_interleave(40)
    groups = torch.arange(120) // 8  # five of each class
    folds = draw_folds(labels, seed=4, folds=balanced_fold_count(labels, 5, groups), groups=groups)
    assert len(folds) == 5
    for rows, held in folds:
        assert not set(groups[rows].tolist()) & set(groups[held].tolist())
        assert torch.bincount(labels[held]).tolist() == [8, 8, 8]
    assert balanced_fold_count(labels, 5, torch.arange(120) // 20) == 2


@pytest.mark.parametrize("groups", [torch.arange(12) // 4, torch.zeros(12, dtype=torch.int64)])
def test_folds__of_classes_with_one_group_each_divide_the_groups(groups):
    labels = torch.arange(12) // 4
    assert all(map(torch.equal, draw_folds(labels, groups=groups)[0], draw_folds(labels)[0]))


def test_folds__leave_two_classes_to_fit_on():
    for seed in range(50):
        generator = np.random.default_rng(seed)
        labels, groups = (torch.from_numpy(generator.integers(0, n, 10)) for n in (2, 4))
        if (torch.bincount(labels, minlength=2) > 1).all():
            assert all(len(labels[rows].unique()) == 2 for rows, _ in draw_folds(labels, seed, groups=groups))
