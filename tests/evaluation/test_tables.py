import csv
import io
from dataclasses import replace

import pytest
import torch
from rich.console import Console

from paucal.evaluation.classification import classification_report
from paucal.evaluation.predictions import Predictions
from paucal.evaluation.record import report_table, score_lines, usual_metric_line, write_per_class, write_predictions

CLASSES = ["[red]cat", 'dog, "small"', "unseen"]


def make():
    logits = torch.tensor([[0.7, 0.2, 0.1], [0.25, 0.7, 0.05], [0.6, 0.3, 0.1]]).log()
    return Predictions(torch.arange(3), logits, torch.tensor([0, 1, 1]))


def read(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_due_line__names_the_score_that_a_published_set_is_reported_by():
    report = classification_report(make(), CLASSES)
    assert usual_metric_line(report, "pets").startswith("mean per class, the usual metric of pets: 75.0 % (")
    assert usual_metric_line(report, "cifar10") is None
    logits = torch.tensor([[0.7, 0.3], [0.6, 0.4], [0.9, 0.1], [0.2, 0.8]]).log()
    memes = classification_report(Predictions(torch.arange(4), logits, torch.tensor([0, 1, 0, 1])), CLASSES[:2])
    assert usual_metric_line(memes, "hateful_memes").startswith("ROC-AUC, the usual metric of hateful_memes: 100.0 % (")


def test_write_per_class__undefined_scores_stay_empty(tmp_path):
    write_per_class(tmp_path / "classes.csv", classification_report(make(), CLASSES))
    cat, dog, unseen = read(tmp_path / "classes.csv")
    assert (cat["class"], cat["images"], cat["predicted"], cat["precision"], cat["recall"]) == (
        "[red]cat",
        "1",
        "2",
        "0.5",
        "1.0",
    )
    assert dog["class"] == 'dog, "small"'
    assert float(dog["recall_low"]) < 0.5 < float(dog["recall_high"])
    assert (unseen["images"], unseen["precision"], unseen["recall"], unseen["recall_low"], unseen["f1"]) == (
        "0",
        "",
        "",
        "",
        "",
    )


def test_write_predictions__one_row_per_image(tmp_path):
    predictions = make()
    predictions.labels[2] = -1
    write_predictions(tmp_path / "p.csv", predictions, ["a/1.png", "b/ü.png", "c.png"], CLASSES)
    rows = read(tmp_path / "p.csv")
    assert rows[1] == {
        "key": "b/ü.png",
        "label": 'dog, "small"',
        "predicted": 'dog, "small"',
        "confidence": "0.7",
        "p_[red]cat": "0.25",
        'p_dog, "small"': "0.7",
        "p_unseen": "0.05",
    }
    assert (rows[2]["label"], rows[2]["predicted"]) == ("", "[red]cat")


def test_write_predictions__refuses_keys_that_do_not_match(tmp_path):
    with pytest.raises(ValueError, match=r"\(3, 3\) keys, classes; got 1, 3"):
        write_predictions(tmp_path / "p.csv", make(), ["a"], CLASSES)


def test_score_lines__majority_stands_beside_the_accuracy():
    report = classification_report(make(), CLASSES, torch.tensor([0, 0, 1]))
    accuracy, majority, *_ = score_lines(report)
    assert (accuracy.value, accuracy.interval) == ("66.7 %", "20.8 % to 93.9 %")
    assert (majority.title, majority.value) == ("majority class", "33.3 %")
    assert "'[red]cat', the most frequent class of the training images" in majority.meaning
    tied = score_lines(classification_report(make(), CLASSES, torch.tensor([0, 0, 1, 1, 2])))[1].meaning
    assert "'dog, \"small\"', one of the 2 most frequent classes of the training images" in tied
    equal = score_lines(classification_report(make(), CLASSES, torch.tensor([0, 1, 2])))[1].meaning
    assert "'dog, \"small\"', one of 3 classes that are equally frequent in the training images" in equal
    assert "training labels unknown" in score_lines(classification_report(make(), CLASSES))[1].meaning


def test_report_table__prints_scores_intervals_and_names_literally():
    console = Console(width=160, record=True, file=io.StringIO())
    report = classification_report(make(), CLASSES, torch.tensor([0]))
    console.print(report_table(replace(report, level=0.9)))
    text = console.export_text()
    assert "3 images, 3 classes" in text
    assert "90 % interval" in text
    assert "'[red]cat'" in text
    assert "66.7 %" in text
