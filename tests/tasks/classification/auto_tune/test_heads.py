"""Heads on frozen features: each against the plain formula, and the race that chooses between them."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from paucal.data.randomness import derive_seed
from paucal.evaluation.protocols.classifier import draw_folds
from paucal.tasks.classification.auto_tune.heads import (
    DEFAULT_HEAD,
    HEADS,
    MEAN_HEAD,
    N_FOLDS,
    N_REPEATS,
    compare_heads,
    fit_gaussian,
    fit_mixture,
    held_out_logits,
    repeated_folds,
)
from paucal.tasks.classification.auto_tune.probe import fit_head, fit_logistic_regression, standardise

LOGISTIC, GAUSSIAN = HEADS


def draw(rows, dim, classes=3, apart=1.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(rows) % classes
    centres = apart * torch.randn(classes, dim, generator=generator)
    return centres[labels] + torch.randn(rows, dim, generator=generator), labels


@pytest.mark.parametrize(("rows", "dim"), [(12, 40), (60, 8)])
def test_standardised__coordinates_keep_inner_products(rows, dim):
    features, _ = draw(rows, dim)
    standard = standardise(5 + 3 * features)
    assert standard.coordinates.shape == (rows, min(rows, dim))
    expected = standard.rows @ standard.rows.T
    torch.testing.assert_close(standard.coordinates @ standard.coordinates.T, expected, atol=1e-6, rtol=1e-6)
    variance = (3 * features.double()).var(0)
    drawn = (rows * variance + 50 * variance.median()) / (rows + 50)
    torch.testing.assert_close(standard.rows.var(0), variance / drawn, atol=1e-5, rtol=1e-5)


def test_standardised__does_not_let_a_feature_of_few_images_stretch_all_others():
    features = torch.randn(8, 20, generator=torch.Generator().manual_seed(0))
    features[:, 3] = 0.0
    features[2, 3] = 1e-4  # nearly constant in these images, which says little about the next ones
    assert 1 / standardise(features).deviation[3] < 2
    assert 1 / standardise(features.repeat(1000, 1)).deviation[3] > 10


@pytest.mark.parametrize(("rows", "dim"), [(12, 40), (60, 8)])
@pytest.mark.parametrize("fit", HEADS.values(), ids=["logistic", "gaussian"])
def test_standardised__fits_in_coordinates_are_those_in_features(rows, dim, fit):
    features, labels = draw(rows, dim)
    standard = standardise(5 + 3 * features)
    quick, slow = fit(standard.coordinates, labels, 3), fit(standard.rows, labels, 3)
    scale = dim / standard.coordinates.shape[1] if fit is fit_gaussian else 1
    weight, bias = standard.unstandardise(quick.weight, quick.bias)
    answers = (5 + 3 * features.double()) @ weight.T + bias
    torch.testing.assert_close(scale * answers, slow.scores(standard.rows), atol=2e-3, rtol=2e-3)


def test_standardised__survives_equal_images():
    standard = standardise(torch.ones(4, 9))
    assert bool(standard.coordinates.isfinite().all())


@pytest.mark.parametrize(("rows", "dim"), [(12, 30), (50, 6)])
def test_gaussian__is_the_papers_formula(rows, dim):
    features, labels = draw(rows, dim)
    features = features.double()
    means = [
        torch.stack([f for f, label in zip(features, labels, strict=True) if label == k]).mean(0) for k in range(3)
    ]
    covariance = torch.zeros(dim, dim, dtype=torch.float64)
    for row, label in zip(features, labels, strict=True):
        covariance += torch.outer(row - means[label], row - means[label]) / (rows - 1)
    precision = dim * torch.linalg.inv((rows - 1) * covariance + covariance.trace() * torch.eye(dim))
    fitted = fit_gaussian(features, labels, 3)
    for k, mean in enumerate(means):
        torch.testing.assert_close(fitted.weight[k], precision @ mean)
        torch.testing.assert_close(fitted.bias[k], -mean @ precision @ mean / 2)


def test_gaussian__never_answers_a_class_without_images():
    features, labels = draw(12, 5)
    fitted = fit_gaussian(features.double(), labels * 2, 6)
    assert set(fitted.scores(features).argmax(1).tolist()) <= {0, 2, 4}


def test_gaussian__of_one_image_per_class_takes_the_nearest():
    features, labels = draw(3, 40)
    fitted = fit_gaussian(features.double(), labels, 3)
    new = features[[2, 0, 1]].double() + 0.1
    assert fitted.scores(new).isfinite().all()
    assert fitted.scores(new).argmax(1).tolist() == torch.cdist(new, features.double()).argmin(1).tolist()


def test_mixture__is_the_weighted_sum_of_the_heads():
    features, labels = draw(20, 50)
    standard = standardise(features)
    weight, bias = fit_mixture(features, labels, 3, {LOGISTIC: 0.3, GAUSSIAN: 0.02})
    expected = sum(
        share * HEADS[name](standard.coordinates, labels, 3).scores(standard.coordinates)
        for name, share in ((LOGISTIC, 0.3), (GAUSSIAN, 0.02))
    )
    torch.testing.assert_close((features @ weight.T + bias).double(), expected, atol=1e-4, rtol=1e-4)


def test_mixture__has_finite_biases_for_absent_classes():
    features, labels = draw(20, 8)
    weight, bias = fit_mixture(features, labels * 2, 5, {LOGISTIC: 0.5, GAUSSIAN: 0.5})
    assert bool(weight.isfinite().all() and bias.isfinite().all())
    assert set((features @ weight.T + bias).argmax(1).tolist()) == {0, 2, 4}


def test_held_out_logits__come_from_the_other_folds():
    features, labels = draw(15, 4)
    features = features.double()
    found = held_out_logits(features, labels, 3, fit_gaussian, repeated_folds(labels, seed=5))
    assert found.shape == (N_REPEATS, 15, 3)
    for repeat in range(N_REPEATS):
        for rows, others in draw_folds(labels, derive_seed(5, repeat), N_FOLDS):
            fitted = fit_gaussian(features[rows], labels[rows], 3)
            for image in others.tolist():
                torch.testing.assert_close(found[repeat, image], fitted.weight @ features[image] + fitted.bias)


def test_held_out_logits__of_two_images_per_class_are_from_fits_to_one_of_each():
    features = torch.tensor([[0.0, 5.0], [5.0, 0.0]]).repeat(2, 1).double()  # easily told apart
    labels = torch.tensor([0, 1, 0, 1])
    splits = repeated_folds(labels, 0)
    found = held_out_logits(features, labels, 2, lambda *given: fit_logistic_regression(*given, 100.0), splits)
    assert found.argmax(2).tolist() == [[0, 1, 0, 1]] * N_REPEATS  # five folds would leave one class the majority


def test_race__does_not_read_stages_that_only_tell_groups_apart():
    groups = torch.arange(180) // 6
    labels, last = groups % 3, torch.randn(180, 8, generator=torch.Generator().manual_seed(0))
    last[:, 0] += 2 * labels
    stages = (3 * torch.randn(30, 20, generator=torch.Generator().manual_seed(1)))[groups]
    leaking, honest = (
        compare_heads(last, torch.cat([last, stages], 1), labels, 3, 100.0, groups=given) for given in (None, groups)
    )
    assert leaking.head is not None
    assert honest.name == DEFAULT_HEAD
    assert fit_head(stages, labels, 3).cross_validated > 0.9
    assert fit_head(stages, labels, 3, groups=groups).cross_validated < 0.6


def test_race__judges_only_classes_that_have_two_groups():
    labels = torch.tensor([0, 0, 1, 1, 2, 2] * 4)
    groups = torch.where(labels == 2, 9, torch.arange(24) // 6)
    last, _ = draw(24, 6)
    result = compare_heads(last, torch.cat([last, last], 1), labels, 3, 100.0, groups=groups)
    assert set(labels[result.held_out.rows].tolist()) == {0, 1}
    assert np.isfinite(list(result.losses.values())).all()


def test_race__reads_stages_that_tell_the_classes_apart():
    last, labels = draw(60, 10, apart=0.2)
    stages, _ = draw(60, 30, apart=1.0, seed=1)
    staged = torch.cat([last, stages], 1)
    result = compare_heads(last, staged, labels, 3, strength=100.0)
    assert result.name in (*HEADS, MEAN_HEAD)
    assert result.lead > result.lead_error > 0
    assert result.head is not None
    assert result.head.weight.shape == (3, 40)
    own = fit_head(last, labels, 3)
    assert result.head.cross_validated > own.cross_validated + 0.2
    new_last, truth = draw(300, 10, apart=0.2)  # the same centres, other images
    new = torch.cat([new_last, draw(300, 30, apart=1.0, seed=1)[0]], 1)
    right = (result.head.scores(new[60:]).argmax(1) == truth[60:]).double().mean()
    assert right > (own.scores(new_last[60:]).argmax(1) == truth[60:]).double().mean()


def test_race__keeps_the_last_features_where_stages_say_nothing():
    last, labels = draw(60, 10, apart=1.0)
    noise = 5 * torch.randn(60, 200, generator=torch.Generator().manual_seed(3))
    result = compare_heads(last, torch.cat([last, noise], 1), labels, 3, strength=100.0)
    assert (result.name, result.head) == (DEFAULT_HEAD, None)
    assert set(result.losses) == {*HEADS, MEAN_HEAD, DEFAULT_HEAD}


def test_race__compares_on_some_images_and_fits_the_winner_to_all():
    last, labels = draw(60, 10, apart=0.2)
    staged = torch.cat([last, draw(60, 30, apart=1.0, seed=1)[0]], 1)
    result = compare_heads(last, staged, labels, 3, 100.0, max_images=45)
    assert result.held_out is not None
    assert result.held_out.labels.bincount().tolist() == [15, 15, 15]
    assert result.head is not None
    expected = fit_mixture(staged, labels, 3, result.mixture)
    torch.testing.assert_close(result.head.weight, expected[0])


def test_race__is_repeated_by_its_seed():
    last, labels = draw(40, 6, apart=0.5)
    staged = torch.cat([last, draw(40, 12, apart=0.8, seed=1)[0]], 1)
    first, again = (compare_heads(last, staged, labels, 3, 10.0, seed=4) for _ in range(2))
    assert first.losses == again.losses
    assert first.head is not None
    assert again.head is not None
    assert torch.equal(first.head.weight, again.head.weight)


@pytest.mark.parametrize("labels", [[0, 0, 0, 0, 0, 1], [0, 1, 2, 3, 4, 5]])
def test_race__is_left_out_where_nothing_can_be_held_out(labels):
    last = torch.randn(len(labels), 5, generator=torch.Generator().manual_seed(0))
    assert compare_heads(last, last, torch.tensor(labels), 6, 100.0).losses == {}


def test_race__of_four_images_holds_each_out_and_compares_nothing():
    last, labels = torch.tensor([[0.0], [4.0], [4.1], [0.1]]), torch.tensor([0, 1, 1, 0])
    result = compare_heads(last, torch.cat([last, last], 1), labels, 2, 0.1)
    assert (result.name, result.head, set(result.losses)) == (DEFAULT_HEAD, None, {DEFAULT_HEAD})
    assert result.held_out.is_correct.tolist() == [[True] * 4] * N_REPEATS


@pytest.mark.parametrize("apart", [0.2, 1.0])  # the stages win, and they do not
def test_race__keeps_the_calibrated_answers_of_the_winner_to_images_it_was_not_fitted_to(apart):
    last, labels = draw(60, 10, apart=apart)
    staged = torch.cat([last, draw(60, 30, apart=1.2 - apart, seed=1)[0]], 1)
    result = compare_heads(last, staged, labels, 3, 100.0)
    held_out = result.held_out
    assert (result.head is None) == (apart == 1.0)
    assert held_out.rows.tolist() == list(range(60))
    loss = F.cross_entropy(held_out.logits.flatten(0, 1), labels.repeat(N_REPEATS))
    assert float(loss) == pytest.approx(result.losses[result.name])
    if result.head is None:
        features = standardise(last).coordinates
        splits = repeated_folds(labels, 0)
        logits = held_out_logits(features, labels, 3, lambda *given: fit_logistic_regression(*given, 100.0), splits)
        torch.testing.assert_close(held_out.logits * held_out.temperature, logits)
    else:
        assert result.head.cross_validated == pytest.approx(float(held_out.is_correct.double().mean()))


def test_race__does_not_judge_the_only_image_of_a_class():
    last, labels = draw(30, 6)
    labels[0] = 3
    result = compare_heads(last, torch.cat([last, last], 1), labels, 5, 100.0)
    assert all(torch.tensor(loss).isfinite() for loss in result.losses.values())


def test_race__takes_a_new_head_as_one_entry():
    last, labels = draw(60, 10, apart=0.2)
    staged = torch.cat([last, draw(60, 30, apart=1.0, seed=1)[0]], 1)
    table = {"weak penalty": lambda rows, truth, n: fit_logistic_regression(rows, truth, n, 1.0)}
    result = compare_heads(last, staged, labels, 3, 100.0, heads=table)
    assert result.name == "weak penalty"
    assert set(result.losses) == {"weak penalty", DEFAULT_HEAD}
