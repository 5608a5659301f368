"""Scores of images with several labels: values by torchmetrics and scikit-learn, intervals, thresholds, files."""

import csv
import json

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, f1_score

from paucal.evaluation.calibration import choose_thresholds, reach_thresholds
from paucal.evaluation.classification import multi_label_report, quick_scores
from paucal.evaluation.plots import class_precision_figure, most_confident_disagreements, precision_recall_figure
from paucal.evaluation.predictions import Predictions
from paucal.evaluation.record import score_lines, write_per_class, write_predictions
from paucal.evaluation.results import MultiLabelReport, read_report
from paucal.metrics.measures import AveragePrecision, measure_of
from paucal.types import UserError

CLASSES = ("cat", "dog", "bird", "fox")


def answers(n: int = 80, skill: float = 1.0, seed: int = 0) -> Predictions:
    generator = torch.Generator().manual_seed(seed)
    labels = (torch.rand(n, 4, generator=generator) < torch.tensor([0.5, 0.3, 0.1, 0.2])).long()
    noise = torch.randn(n, 4, generator=generator)
    return Predictions(torch.arange(n), noise + 2 * skill * labels - 1, labels)


def test_report__has_the_scores_of_scikit_learn():
    found = answers()
    shares, labels = found.probabilities.double().numpy(), found.labels.numpy()
    report = multi_label_report(found, CLASSES, [0.5] * 4)
    expected = average_precision_score(labels, shares, average=None)
    np.testing.assert_allclose([row.ap.value for row in report.per_class if row.ap], np.asarray(expected), atol=1e-6)
    assert report.scores["map"].value == pytest.approx(np.mean(expected), abs=1e-6)
    given = (shares >= 0.5).astype(int)
    assert report.scores["macro_f1"].value == pytest.approx(float(f1_score(labels, given, average="macro")))
    losses = -(labels * np.log(shares) + (1 - labels) * np.log(1 - shares))
    assert report.scores["loss"].value == pytest.approx(losses.mean(), rel=1e-5)
    assert report.chance == pytest.approx(labels.mean(0).mean())
    row = report.per_class[1]
    assert (row.images, row.predicted) == (labels[:, 1].sum(), given[:, 1].sum())
    assert row.precision == pytest.approx((labels * given)[:, 1].sum() / given[:, 1].sum())


def test_report__ignores_what_nobody_knows_and_classes_without_an_image():
    found = answers()
    labels = found.labels.clone()
    labels[:20, 0] = -1
    labels[:, 3] = 0
    report = multi_label_report(Predictions(found.ids, found.logits, labels), CLASSES, [0.5] * 4)
    cat = average_precision_score(labels[20:, 0], found.logits[20:, 0])
    assert report.per_class[0].ap is not None
    assert report.per_class[0].ap.value == pytest.approx(cat, abs=1e-6)
    assert report.per_class[3].ap is None
    assert [row.name for row in report.scored] == ["cat", "dog", "bird"]
    values = [row.ap.value for row in report.scored if row.ap]
    assert report.scores["map"].value == pytest.approx(np.mean(values))


def test_report__intervals_hold_the_truth_most_of_the_time():
    truth = quick_scores(answers(20_000))["map"]
    held = 0
    for seed in range(1, 21):
        score = multi_label_report(answers(60, seed=seed), CLASSES, [0.5] * 4).scores["map"]
        assert score.low is not None
        assert score.high is not None
        held += score.low <= truth <= score.high
    assert held >= 17


def test_report__resamples_whole_groups():
    single, copies = answers(), torch.arange(80).repeat_interleave(3)
    many = Predictions(torch.arange(240), single.logits[copies], single.labels[copies]).in_groups(copies.numpy())
    once, grouped = (multi_label_report(predictions, CLASSES, [0.5] * 4) for predictions in (single, many))
    assert (grouped.images, grouped.groups) == (240, 80)
    for name, score in once.scores.items():
        assert grouped.scores[name].ends == pytest.approx(score.ends)
    assert MultiLabelReport.from_dict(grouped.to_dict()) == grouped


def test_report__survives_json_and_refuses_damage():
    report = multi_label_report(answers(), CLASSES, [0.5, 0.4, 0.3, 0.2])
    stored = json.loads(json.dumps(report.to_dict()))
    assert read_report(stored) == report
    for name in ("scores", "per_class", "images"):
        with pytest.raises(UserError, match="stored evaluation is damaged"):
            MultiLabelReport.from_dict({**stored, name: None})


def test_report__of_wrong_answers_ends_in_a_sentence():
    found = answers()
    with pytest.raises(UserError, match="4 classes, but the data has 3"):
        multi_label_report(found, CLASSES[:3], [0.5] * 3)
    with pytest.raises(UserError, match="80 of 80 images are not finite"):
        multi_label_report(Predictions(found.ids, found.logits * torch.nan, found.labels), CLASSES, [0.5] * 4)
    with pytest.raises(UserError, match="none of the images to evaluate has a label"):
        multi_label_report(Predictions(found.ids, found.logits, found.labels * 0), CLASSES, [0.5] * 4)


def test_quick_scores__are_those_of_the_report():
    found = answers()
    report = multi_label_report(found, CLASSES, [0.5] * 4)
    assert quick_scores(found) == pytest.approx({n: report.values[n] for n in ("loss", "map")}, rel=1e-6)
    broken = quick_scores(Predictions(found.ids, found.logits * torch.nan, found.labels))
    assert np.isnan(broken["loss"])
    assert broken["map"] == 0


def test_measure__counts_images_as_often_as_they_are_drawn():
    found = answers(30)
    drawn = np.random.default_rng(0).integers(30, size=30)
    weights = np.bincount(drawn, minlength=30)[None].astype(np.float64)
    twice = measure_of("map", found.logits[drawn], found.labels[drawn])
    measure = AveragePrecision(found.logits, found.labels, interpolated=False)
    assert measure(weights)[0] == pytest.approx(twice(np.ones((1, 30)))[0])


def test_thresholds__are_those_of_the_highest_f1():
    found = answers()
    shares, labels = found.probabilities, found.labels
    for place, threshold in enumerate(choose_thresholds(shares, labels)):
        truth = labels[:, place].numpy()
        best = max(float(f1_score(truth, (shares[:, place] >= one).numpy())) for one in shares[:, place].tolist())
        assert f1_score(truth, (shares[:, place] >= threshold).numpy()) == pytest.approx(best)


def test_thresholds__of_rare_classes_are_those_of_all():
    found = answers(200)
    labels = found.labels.clone()
    labels[:, 2] = 0
    labels[:3, 2] = 1
    labels[50:90, 3] = -1
    thresholds = choose_thresholds(found.probabilities, labels)
    known = labels >= 0
    assert thresholds[2] == choose_thresholds(found.probabilities[known][:, None], labels[known][:, None])[0]
    assert choose_thresholds(found.probabilities, labels * 0) == (0.5,) * 4
    assert reach_thresholds(torch.tensor([[0.2, 0.9]]), [0.2, 0.95]).tolist() == [[True, False]]


def test_disagreements__are_the_surest_ones_and_never_the_unknown():
    logits = torch.tensor([[5.0, -1.0], [-4.0, 1.0], [1.0, 6.0]])
    labels = torch.tensor([[0, 0], [1, 1], [1, -1]])
    found = most_confident_disagreements(Predictions(torch.tensor([7, 8, 9]), logits, labels), 5)
    assert [(one.id, one.label, one.labels) for one in found] == [(7, 0, ()), (8, 0, (0, 1))]
    assert found[0].probability == pytest.approx(1 / (1 + np.exp(-5)))


def test_tables__say_what_is_known(tmp_path):
    found, thresholds = answers(3), [0.5, 0.6, 0.5, 0.5]
    report = multi_label_report(found, CLASSES, thresholds)
    lines = score_lines(report)
    assert [line.title for line in lines[:2]] == ["mean average precision (mAP)", "by chance"]
    write_per_class(tmp_path / "a.csv", report)
    write_predictions(tmp_path / "b.csv", found, ["1.png", "2.png", "3.png"], CLASSES, thresholds)
    with (tmp_path / "a.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["threshold"] for row in rows] == ["0.5", "0.6", "0.5", "0.5"]
    with (tmp_path / "b.csv").open() as file:
        first = next(csv.DictReader(file))
    shown = [name for name, mark in zip(CLASSES, found.labels[0].tolist(), strict=True) if mark]
    assert first["labels"] == ";".join(shown)
    assert float(first["p_dog"]) == pytest.approx(float(found.probabilities[0, 1]), rel=1e-5)


@pytest.mark.usefixtures("drawn_pictures")
def test_pictures__show_every_class_that_is_judged():
    found = answers()
    report = multi_label_report(found, CLASSES, [0.5] * 4)
    figure = class_precision_figure(report)
    assert {label.get_text().split(" (")[0] for label in figure.axes[0].get_yticklabels()} == set(CLASSES)
    curves = precision_recall_figure(found, report)
    assert [axes.get_title(loc="left").split(":")[0] for axes in curves.axes] == list(CLASSES)
