"""Metrics against scikit-learn, torchmetrics and naive loops, on whole sets and on resampled ones."""

import numpy as np
import pytest
import torch
from sklearn.metrics import f1_score, recall_score, roc_auc_score, top_k_accuracy_score
from torchmetrics.functional.classification import multiclass_accuracy

from paucal.metrics.intervals import Bootstrap
from paucal.metrics.measures import (
    Mean,
    expected_calibration_error,
    hits,
    macro_f1,
    mean_per_class,
    measure_of,
    nan_argmax,
    value_of,
)


def random_case(n=200, classes=5, seed=0):
    generator = np.random.default_rng(seed)
    labels = generator.integers(classes, size=n)
    scores = generator.normal(size=(n, classes)) + 0.8 * np.eye(classes)[labels]
    return torch.from_numpy(scores), torch.from_numpy(labels)


def repeated(counts):
    """The rows that (1, N) counts stand for."""
    return np.repeat(np.arange(counts.shape[1]), counts[0].astype(int))


COUNTS = np.random.default_rng(7).multinomial(200, [1 / 200] * 200, size=1).astype(float)


def test_accuracy__equals_torchmetrics_and_scikit_learn():
    scores, labels = random_case()
    expected = multiclass_accuracy(scores, labels, 5, average="micro")
    assert value_of(measure_of("accuracy", scores, labels), 200) == pytest.approx(float(expected), abs=1e-6)
    top3 = hits(scores, labels, 3).mean()
    assert top3 == pytest.approx(top_k_accuracy_score(labels.numpy(), scores.numpy(), k=3))


def test_mean_per_class__equals_macro_recall_also_when_resampled():
    scores, labels = random_case()
    labels[labels == 4] = 3  # a class without images
    measure, predicted = measure_of("mean_per_class", scores, labels), scores.argmax(1).numpy()
    for counts in (np.ones((1, 200)), COUNTS):
        rows = repeated(counts)
        present = np.unique(labels.numpy()[rows])
        expected = recall_score(labels.numpy()[rows], predicted[rows], labels=present, average="macro")
        assert measure(counts)[0] == pytest.approx(expected)


def test_roc_auc__equals_scikit_learn_with_ties_also_when_resampled():
    scores, labels = random_case(classes=2)
    scores = (scores * 3).round() / 3
    measure, margin = measure_of("roc_auc", scores, labels), (scores[:, 1] - scores[:, 0]).numpy()
    for counts in (np.ones((1, 200)), COUNTS):
        rows = repeated(counts)
        assert measure(counts)[0] == pytest.approx(roc_auc_score(labels.numpy()[rows], margin[rows]))


def naive_map11(scores, labels):
    """Straight from the definition, one threshold at a time."""
    found = []
    for k in range(scores.shape[1]):
        known = labels[:, k] >= 0
        score, label = scores[known, k], labels[known, k] > 0
        points = []
        for threshold in np.unique(score):
            shown = score >= threshold
            points.append((label[shown].sum() / label.sum(), label[shown].sum() / shown.sum()))
        levels = [t / 10 for t in range(11)]
        found.append(np.mean([max((p for r, p in points if r >= t - 1e-9), default=0) for t in levels]))
    return np.mean(found)


def test_map11__equals_a_naive_loop_with_ties_and_ignored_images():
    generator = np.random.default_rng(1)
    labels = generator.integers(-1, 2, size=(200, 4))
    scores = (generator.normal(size=(200, 4)) + labels).round(1)
    measure = measure_of("map11", torch.from_numpy(scores), torch.from_numpy(labels))
    for counts in (np.ones((1, 200)), COUNTS):
        rows = repeated(counts)
        assert measure(counts)[0] == pytest.approx(naive_map11(scores[rows], labels[rows]), rel=1e-9)


def test_map11__of_a_known_ranking():
    # Right, wrong, right, wrong: precision 1 up to recall 0.5, then 2/3: (6 * 1 + 5 * 2/3) / 11.
    scores, labels = torch.tensor([[4.0], [3.0], [2.0], [1.0]]), torch.tensor([[1], [0], [1], [0]])
    assert value_of(measure_of("map11", scores, labels), 4) == pytest.approx((6 + 10 / 3) / 11)


def test_map11__leaves_out_a_class_without_positives():
    scores = torch.tensor([[1.0, 5.0], [0.0, 1.0]])
    labels = torch.tensor([[1, 0], [0, 0]])
    assert value_of(measure_of("map11", scores, labels), 2) == 1.0


def test_hits__ties_are_broken_by_no_order():
    scores, labels = torch.zeros(1, 4), torch.tensor([3])
    assert hits(scores, labels).tolist() == [0.25]
    assert hits(scores, labels, 2).tolist() == [0.5]
    assert hits(scores, labels, 5).tolist() == [1.0]


def test_best_of__passes_over_what_is_no_number():
    assert nan_argmax([float("nan"), 0.2, 0.4, 0.4]) == 2
    assert nan_argmax([float("nan")]) == 0


@pytest.mark.parametrize(("name", "classes"), [("map11", 3), ("roc_auc", 3)])
def test_measure__refuses_labels_of_another_kind(name, classes):
    with pytest.raises(ValueError, match=r"expected labels of shape|two classes"):
        measure_of(name, torch.zeros(4, classes), torch.zeros(4, dtype=torch.long))


def test_interval__covers_the_truth_about_as_often_as_it_says():
    generator = np.random.default_rng(3)
    inside = 0
    for _ in range(200):
        score = Bootstrap(draws=200).interval(Mean(generator.random(150) < 0.7), 150)
        inside += score.low <= 0.7 <= score.high
    assert 0.89 <= inside / 200 <= 0.99


def test_interval__of_perfection_is_still_one():
    score = Bootstrap(draws=50).interval(Mean(np.ones(20)), 20)
    assert score.value == score.high == 1.0
    assert 0.8 < score.low < 0.9


def test_paired_difference__is_narrower_than_that_of_different_images():
    generator = np.random.default_rng(5)
    hard = generator.random(400)
    first, second = Mean(hard < 0.62), Mean(hard < 0.6)  # they differ on a few images only
    paired = Bootstrap().difference(first, second, 400)
    assert paired.value == pytest.approx(first.values.mean() - second.values.mean())
    assert paired.high - paired.low < 0.04
    alone = Bootstrap().interval(first, 400)
    assert alone.high - alone.low > 0.08
    same = Bootstrap().difference(first, first, 400)
    assert (same.value, same.low) == (0.0, None)


def measured_answers(n_images, n_classes, seed=0):
    rng = np.random.default_rng(seed)
    labels, answers = rng.integers(n_classes, size=(2, n_images))
    confidence, losses = rng.random(n_images, np.float32), rng.random(n_images)
    measures = {
        "balanced_accuracy": mean_per_class(labels == answers, labels, n_classes),
        "macro_f1": macro_f1(labels, answers, n_classes),
        "calibration_error": expected_calibration_error(confidence, labels == answers),
        "loss": Mean(losses),
    }
    return labels, answers, confidence, losses, measures


def test_measures__each_draw_equals_the_scores_of_its_images():
    labels, answers, confidence, losses, measures = measured_answers(30, 4)
    rows = np.random.default_rng(1).integers(30, size=(5, 12))
    weights = np.stack([np.bincount(row, minlength=30) for row in rows]).astype(float)
    got = {name: measure(weights) for name, measure in measures.items()}
    for draw, images in enumerate(rows):
        y, given = labels[images], answers[images]
        assert got["macro_f1"][draw] == pytest.approx(f1_score(y, given, average="macro"))
        recall = recall_score(y, given, average="macro", labels=np.unique(y))
        assert got["balanced_accuracy"][draw] == pytest.approx(recall)
        bins = np.floor(confidence[images] * 15).astype(int)
        gaps = [((given == y) * 1.0 - confidence[images])[bins == k].sum() for k in range(15)]
        assert got["calibration_error"][draw] == pytest.approx(np.abs(gaps).sum() / 12, abs=1e-6)
        assert got["loss"][draw] == pytest.approx(losses[images].mean())


@pytest.mark.parametrize("multinomial", [False, True])
def test_bootstrap__does_not_depend_on_the_chunks(monkeypatch, multinomial):
    bootstrap, measures = Bootstrap(seed=4, draws=40, multinomial=multinomial), measured_answers(50, 3)[-1]
    weights, scores = np.concatenate(list(bootstrap.weights(50))), bootstrap.scores([*measures.values()], 50)
    monkeypatch.setattr("paucal.metrics.intervals.WEIGHTS_PER_CHUNK", 170)
    chunks = list(bootstrap.weights(50))
    assert len(chunks) == 14
    np.testing.assert_array_equal(np.concatenate(chunks), weights)
    assert (weights.sum(1) == 50).all()
    for chunked, whole in zip(bootstrap.scores([*measures.values()], 50), scores, strict=True):
        assert len(whole) == 40
        np.testing.assert_array_equal(chunked, whole)


@pytest.mark.parametrize("multinomial", [False, True])
def test_bootstrap__draws_what_stored_intervals_were_made_of(multinomial):
    generator = np.random.default_rng(4)
    if multinomial:
        expected = generator.multinomial(9, np.full(9, 1 / 9), size=6)
    else:
        expected = [np.bincount(generator.integers(9, size=9), minlength=9) for _ in range(6)]
    drawn = np.concatenate(list(Bootstrap(seed=4, draws=6, multinomial=multinomial).weights(9)))
    np.testing.assert_array_equal(drawn, expected)
