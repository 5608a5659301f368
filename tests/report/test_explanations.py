from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from paucal.evaluation.classification import classification_report
from paucal.evaluation.predictions import Predictions
from paucal.report import pictures
from paucal.report.explanations import (
    describe_confidence,
    find_kept_epoch,
    find_kept_validation_score,
    headline_sentences,
    trained_model_rows,
    warning_sentences,
)
from paucal.report.inputs import Confidence, RunFiles, Summary
from paucal.runs import RunFolder


def files(labels=None, answers=None, rows=(), best_epoch=None, classes=("cat", "dog")):
    report = None
    if labels is not None:
        logits = 3.0 * torch.nn.functional.one_hot(torch.tensor(answers), len(classes))
        predictions = Predictions(torch.arange(len(labels)), logits.float(), torch.tensor(labels))
        report = classification_report(predictions, list(classes), torch.tensor([0]), n_bootstrap=20)
    return RunFiles(RunFolder(Path("runs/1")), Summary(best_epoch=best_epoch), [], {}, rows, report)


def outcome(n_images, wrong):
    """Half cats, half dogs; the first `wrong` images are answered wrongly."""
    labels = np.arange(n_images) % 2
    answers = np.where(np.arange(n_images) < wrong, 1 - labels, labels)
    return labels.tolist(), answers.tolist()


@pytest.mark.parametrize(("count", "said"), [(1, "1 test image that was not"), (2, "2 test images that were not")])
def test_headline__of_few_images_counts_them(count, said):
    assert said in headline_sentences(files(*outcome(count, 0)))[0]


def test_warnings__a_good_result_on_many_images_has_none():
    assert warning_sentences(files(*outcome(1000, 50), rows=[{"val_top1": 0.95}])) == []


def test_warnings__wide_interval():
    [warning] = warning_sentences(files(*outcome(60, 6)))
    assert warning.startswith("The interval is 15 points wide because there are only 60 images to test on; about 388 ")


def test_warnings__not_above_the_majority():
    found = warning_sentences(files(*outcome(1000, 480)))
    assert found == [
        "The accuracy is not clearly above that of always predicting 'cat' (50.0 %): the model may have learned "
        "nothing useful. Check the curves and the labels."
    ]
    assert warning_sentences(files(*outcome(1000, 460))) == []  # 54 %, interval from 50.9 %


def test_warnings__classes_with_few_images_and_classes_never_found():
    labels = [0] * 500 + [1] * 3 + [2] * 20
    answers = [0] * 500 + [0] * 3 + [2] * 20
    found = warning_sentences(files(labels, answers, classes=("cat", "dog", "emu")))
    assert found[-2:] == [
        "1 class has fewer than 10 test images, too few for a reliable score: dog (3).",
        "1 class was never recognised: dog.",
    ]


def test_warnings__long_lists_of_classes_are_cut():
    names = [f"c{k}" for k in range(8)]
    found = warning_sentences(files(list(range(8)), list(range(8)), classes=names))
    assert any("8 classes have fewer than 10" in w and w.endswith("c4 (1) and 3 more.") for w in found)


@pytest.mark.parametrize(("validation", "warned"), [(0.99, True), (0.94, False), (0.5, False)])
def test_warnings__validation_much_better_than_test(validation, warned):
    found = warning_sentences(files(*outcome(1000, 100), rows=[{"val_top1": validation}]))
    assert [("99.0 %" in w and "90.0 %" in w and "validation" in w) for w in found] == ([True] if warned else [])


def test_validation_top1__is_that_of_the_kept_epoch():
    rows = [{"epoch": 1, "val_top1": 0.4}, {"epoch": 2, "val_top1": 0.6}, {"epoch": 3, "val_top1": 0.5}]
    assert (find_kept_epoch(files(rows=rows)), find_kept_validation_score(files(rows=rows))) == (2, 0.6)
    assert find_kept_validation_score(files(rows=rows, best_epoch=3)) == 0.5
    assert find_kept_validation_score(files(rows=rows, best_epoch=9)) is None
    assert find_kept_validation_score(files(rows=[{"epoch": 1, "train_loss": 1.0}])) is None


@pytest.mark.parametrize("selected", [True, False])
def test_page__of_a_run_without_validation_says_that_nothing_was_selected(selected, monkeypatch):
    marked = []
    monkeypatch.setattr(pictures, "curves_figure", lambda rows, best, columns: marked.append(best) or Figure())
    rows = [{"epoch": 1.0, "train_loss": 2.0}, {"epoch": 2.0, "train_loss": 1.0}]
    found = replace(files(*outcome(60, 6), rows=rows), summary=Summary(selected=selected, best_epoch=2))
    assert (headline_sentences(found)[-1].endswith("the last epoch was kept.")) == (not selected)
    assert trained_model_rows(found)["epoch kept"] == ("2" if selected else "2, the last")
    pictures._drawable_figures(found)["curves"]()
    assert marked == [2 if selected else None]


def test_headline__without_a_test_it_says_so():
    assert headline_sentences(files()) == ["The model has not been evaluated on test images yet."]
    first, second = headline_sentences(files(rows=[{"epoch": 1, "val_top1": 0.625}]))
    assert "62.5 % of the validation images" in first
    assert second.startswith("The model has not been evaluated")


@pytest.mark.parametrize(
    ("after", "expected"),
    [(0.02, "reduces this difference to 2.0 %"), (0.08, "changes this difference to 8.0 %")],
)
def test_confidence__says_reduced_only_if_it_is(after, expected):
    summary = Summary(confidence=Confidence(1.2, 40, 0.05, after))
    assert expected in str(describe_confidence(replace(files(), summary=summary)))
