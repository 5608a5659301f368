import json
import time

import numpy as np
import pytest
import torch
from sklearn import metrics

from paucal.evaluation.classification import classification_report, quick_scores
from paucal.evaluation.predictions import Predictions
from paucal.evaluation.results import ClassificationReport
from paucal.types import UserError


def simulate(n_images, n_classes, seed=0, signal=2.0):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.multinomial(torch.linspace(1, 2, n_classes), n_images, True, generator=generator)
    logits = torch.randn(n_images, n_classes, generator=generator)
    logits[torch.arange(n_images), labels] += signal
    return Predictions(torch.arange(n_images), logits, labels)


def from_answers(labels, answers, n_classes, margin=4.0):
    logits = margin * torch.nn.functional.one_hot(torch.tensor(answers), n_classes).float()
    return Predictions(torch.arange(len(labels)), logits, torch.tensor(labels))


def names(n_classes):
    return [f"class {k}" for k in range(n_classes)]


def naive_calibration_error(probabilities, labels):
    """Compute the error by its definition, one bin after the other."""
    confidence, answers = probabilities.max(1), probabilities.argmax(1)
    error = 0.0
    for k in range(15):
        inside = [i for i in range(len(labels)) if k / 15 <= confidence[i] < (k + 1) / 15]
        if inside:
            accuracy = sum(answers[i] == labels[i] for i in inside) / len(inside)
            error += abs(accuracy - sum(confidence[i] for i in inside) / len(inside)) * len(inside) / len(labels)
    return error


@pytest.mark.parametrize("n_classes", [2, 5, 6, 30])
def test_classification_report__scores_equal_scikit_learns(n_classes):
    predictions = simulate(400, n_classes)
    report = classification_report(predictions, names(n_classes))
    y, p = predictions.labels.numpy(), predictions.probabilities.double().numpy()
    answers = p.argmax(1)
    expected = {
        "top1": metrics.accuracy_score(y, answers),
        "top5": metrics.top_k_accuracy_score(y, p, k=5, labels=range(n_classes)) if n_classes > 5 else None,
        "balanced_accuracy": metrics.balanced_accuracy_score(y, answers),
        "roc_auc": metrics.roc_auc_score(y, p[:, 1]) if n_classes == 2 else None,
        "macro_f1": metrics.f1_score(y, answers, average="macro"),
        "calibration_error": naive_calibration_error(p, y),
        "loss": metrics.log_loss(y, p / p.sum(1, keepdims=True), labels=range(n_classes)),
    }
    expected = {name: value for name, value in expected.items() if value is not None}
    assert list(report.scores) == list(expected)
    assert {name: score.value for name, score in report.scores.items()} == pytest.approx(expected, abs=1e-6)
    assert all(score.low < score.value < score.high for score in report.scores.values())
    assert np.array_equal(report.confusion, metrics.confusion_matrix(y, answers))


def test_classification_report__known_values():
    predictions = from_answers([0, 0, 0, 0, 1, 1], [0, 0, 0, 1, 1, 0], 2)
    report = classification_report(predictions, ["cat", "dog"], torch.tensor([1, 1, 0]))
    assert report.scores["top1"].value == pytest.approx(4 / 6)
    assert report.scores["balanced_accuracy"].value == pytest.approx((3 / 4 + 1 / 2) / 2)
    assert report.scores["macro_f1"].value == pytest.approx((6 / 8 + 2 / 4) / 2)
    confidence = 1 / (1 + np.exp(-4.0))
    assert report.scores["calibration_error"].value == pytest.approx(confidence - 4 / 6, abs=1e-6)
    assert report.scores["loss"].value == pytest.approx((4 * -np.log(confidence) + 2 * -np.log(1 - confidence)) / 6)
    assert report.confusion == [[3, 1], [1, 1]]
    cat, dog = report.per_class
    assert (cat.name, cat.images, cat.predicted, cat.precision, cat.recall.value, cat.f1) == (
        "cat",
        4,
        4,
        0.75,
        0.75,
        0.75,
    )
    assert (dog.images, dog.predicted, dog.recall.value) == (2, 2, 0.5)
    assert (report.majority.name, report.majority.top1, report.majority.from_train) == (
        "dog",
        pytest.approx(2 / 6),
        True,
    )


def test_classification_report__majority_of_the_test_is_said_to_be_that():
    report = classification_report(from_answers([0, 0, 1], [0, 1, 1], 2), ["cat", "dog"])
    assert (report.majority.name, report.majority.from_train) == ("cat", False)


def test_classification_report__of_equally_frequent_training_classes_takes_the_hardest_baseline():
    report = classification_report(
        from_answers([2, 2, 2, 0, 1, 3, 3, 3, 3], [0] * 9, 4), names(4), torch.tensor([0, 0, 1, 1, 2, 2, 3])
    )
    majority = report.majority
    assert (majority.name, majority.top1, majority.from_train, majority.tied) == (names(4)[2], 3 / 9, True, 3)


def test_classification_report__absent_class_is_left_out_of_the_means():
    predictions = from_answers([0, 0, 1, 1], [0, 0, 1, 2], 4)
    report = classification_report(predictions, names(4))
    assert report.scores["balanced_accuracy"].value == 0.75  # of the two classes with images
    assert report.scores["macro_f1"].value == pytest.approx((1 + 2 / 3 + 0) / 3)  # class 2 was answered, 3 was not
    predicted, unseen = report.per_class[2:]
    assert (predicted.images, predicted.recall, predicted.precision, predicted.f1) == (0, None, 0.0, 0.0)
    assert (unseen.images, unseen.recall, unseen.precision, unseen.f1) == (0, None, None, None)
    json.dumps(report.to_dict(), allow_nan=False)


@pytest.mark.parametrize("answers", [[0, 1, 1, 0], [1, 0, 0, 1]])
def test_classification_report__all_or_none_right_still_leaves_doubt(answers):
    report = classification_report(from_answers([0, 1, 1, 0], answers, 2), names(2))
    top1 = report.scores["top1"]
    assert top1.high - top1.low == pytest.approx(0.4899, abs=1e-4)
    assert report.scores["balanced_accuracy"].low is None


def test_classification_report__single_image():
    report = classification_report(from_answers([1], [1], 2), names(2))
    assert report.scores["loss"].low is None
    assert ClassificationReport.from_dict(json.loads(json.dumps(report.to_dict(), allow_nan=False))) == report


def test_classification_report__survives_json():
    report = classification_report(simulate(50, 7), names(7), torch.tensor([3]))
    assert ClassificationReport.from_dict(json.loads(json.dumps(report.to_dict(), allow_nan=False))) == report


def test_classification_report__is_the_same_for_a_seed_and_leaves_the_global_generators_alone():
    predictions = simulate(60, 3)
    numpy_state, torch_state = np.random.get_state()[1].copy(), torch.get_rng_state()
    first, same, other = (classification_report(predictions, names(3), seed=s) for s in (0, 0, 1))
    assert first == same
    assert first.scores["loss"].low != other.scores["loss"].low
    assert np.array_equal(numpy_state, np.random.get_state()[1])
    assert torch.equal(torch_state, torch.get_rng_state())


def test_classification_report__intervals_shrink_with_the_square_root_of_the_images():
    widths = []
    for n_images in (300, 4800):
        scores = classification_report(simulate(n_images, 4), names(4)).scores.values()
        widths.append(np.array([score.high - score.low for score in scores]))
    assert widths[0] / widths[1] == pytest.approx(4, rel=0.35)


def test_classification_report__intervals_cover_the_truth():
    truth = {
        name: score.value
        for name, score in classification_report(simulate(100_000, 4), names(4), n_bootstrap=2).scores.items()
    }
    inside = {name: 0 for name in truth}
    repeats = 150
    for seed in range(1, repeats + 1):
        report = classification_report(simulate(200, 4, seed), names(4), seed=seed, n_bootstrap=150)
        for name, score in report.scores.items():
            inside[name] += score.low <= truth[name] <= score.high
    # The standard error of a share of 0.95 over 150 repeats is 0.018.
    assert min(inside.values()) / repeats >= 0.9, inside


def test_classification_report__macro_f1_is_covered_with_few_images_per_class():
    def f1(predictions, n_bootstrap, seed=0):
        return classification_report(predictions, names(40), n_bootstrap=n_bootstrap, seed=seed).scores["macro_f1"]

    truth = f1(simulate(100_000, 40), 2).value
    scores = [f1(simulate(240, 40, seed), 100, seed) for seed in range(1, 41)]
    assert np.mean([score.low <= truth <= score.high for score in scores]) >= 0.9


def test_classification_report__ten_thousand_images_take_seconds():
    predictions = simulate(10_000, 100)
    start = time.perf_counter()
    classification_report(predictions, names(100))
    assert time.perf_counter() - start < 15


def test_classification_report__bad_input_is_explained():
    good = simulate(10, 3)
    broken = Predictions(good.ids, good.logits.clone(), good.labels)
    broken.logits[4, 1] = float("nan")
    broken.logits[5, 1] = float("inf")
    with pytest.raises(UserError, match="2 of 10 images are not finite"):
        classification_report(broken, names(3))
    with pytest.raises(UserError, match="3 classes, but the data has 2"):
        classification_report(good, names(2))
    with pytest.raises(UserError, match="1 of 2 images have no label"):
        classification_report(from_answers([0, -1], [0, 0], 2), names(2))
    with pytest.raises(UserError, match="no images"):
        classification_report(Predictions(torch.zeros(0), torch.zeros(0, 2), torch.zeros(0)), names(2))
    with pytest.raises(ValueError, match="n_bootstrap >= 2"):
        classification_report(good, names(3), n_bootstrap=0)


@pytest.mark.parametrize(
    "change",
    [
        {"scores": {}},
        {"images": -1},
        {"images": None},
        {"level": float("nan")},
        {"confusion": [[1]]},
        {"confusion": [[1, 2], [3]]},
        {"per_class": [3]},
        {"majority": None},
        {"images": float("inf")},
    ],
)
def test_from_dict__damage_is_found(change):
    data = classification_report(from_answers([0, 1], [0, 1], 2), names(2)).to_dict()
    with pytest.raises(UserError, match="damaged"):
        ClassificationReport.from_dict({**data, **change})


def test_quick_scores__equal_the_report_and_let_nan_through():
    predictions = simulate(200, 6)
    report = classification_report(predictions, names(6))
    quick = quick_scores(predictions)
    assert list(quick) == ["loss", "top1", "balanced_accuracy"]
    assert quick == pytest.approx({name: report.scores[name].value for name in quick}, abs=1e-6)
    predictions.logits[0, 0] = float("nan")
    assert np.isnan(quick_scores(predictions)["loss"])


def test_quick_scores__absent_class_is_left_out():
    assert quick_scores(from_answers([0, 0, 1, 1], [0, 0, 1, 2], 4))["balanced_accuracy"] == 0.75


def test_copies_of_images__in_groups_give_the_intervals_of_single_images():
    single, copies = simulate(40, 3), torch.arange(40).repeat_interleave(5)
    many = Predictions(torch.arange(200), single.logits[copies], single.labels[copies])
    once, naive, grouped = (
        classification_report(predictions, names(3))
        for predictions in (single, many, many.in_groups(copies.numpy() % 40 + 7))
    )
    assert (once.groups, naive.groups, grouped.groups, grouped.images) == (None, None, 40, 200)
    for name in ("balanced_accuracy", "macro_f1", "loss"):
        assert grouped.scores[name].ends == pytest.approx(once.scores[name].ends)
        assert np.diff(naive.scores[name].ends) < 0.7 * np.diff(once.scores[name].ends)
    assert grouped.scores["top1"].ends == pytest.approx(once.scores["top1"].ends, abs=0.01)
    assert np.diff(naive.scores["top1"].ends) < 0.7 * np.diff(once.scores["top1"].ends)
    for expected, found in zip(once.per_class, grouped.per_class, strict=True):
        assert found.recall.value == pytest.approx(expected.recall.value)
        assert found.recall.ends[0] < expected.recall.ends[0] + 0.01  # few groups: wider, by the t distribution
    assert ClassificationReport.from_dict(json.loads(json.dumps(grouped.to_dict()))) == grouped
    older = {name: value for name, value in once.to_dict().items() if name != "groups"}
    assert ClassificationReport.from_dict(older) == once


def test_in_groups__takes_the_groups_of_the_predicted_images():
    predictions = Predictions(torch.tensor([1, 3]), torch.eye(2), torch.tensor([0, 1]))
    assert predictions.in_groups(np.array([5, 6, 7, 8])).at_temperature(2.0).groups.tolist() == [6, 8]
    assert predictions.in_groups(None).groups is None
