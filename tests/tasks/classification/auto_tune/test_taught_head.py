"""A head that learns a teacher's probabilities beside the labels, and the run that prefers it."""

import pytest
import torch
import torch.nn.functional as F

from paucal.evaluation.protocols.logistic import fit_logistic
from paucal.tasks.classification.auto_tune.probe import SOLVER, standardise
from paucal.tasks.classification.auto_tune.taught_head import HEAD_NAME, fit_taught_head
from paucal.tasks.classification.conclusion import Result
from tasks.classification.auto_tune.test_auto_tune import (  # noqa: F401 (fixtures)
    data,
    rungs_of,
    shared_photos,
    started_from,
)
from tasks.classification.auto_tune.test_unlabelled import CLASSES, draw


def test_head__of_a_teacher_that_says_the_labels_is_the_regression_on_them():
    features, labels = draw(120, 1)
    head = fit_taught_head(features, labels, F.one_hot(labels, CLASSES).float(), 100.0)
    standard = standardise(features).coordinates
    usual = fit_logistic(standard, labels, CLASSES, 100.0, SOLVER)
    torch.testing.assert_close(head.scores(features), usual.scores(standard).float(), atol=2e-3, rtol=2e-3)


def test_head__learns_what_a_teacher_knows_of_images_whose_labels_are_wrong():
    features, labels = draw(400, 2, apart=2.0)
    tests, truth = draw(400, 3, apart=2.0)
    wrong = torch.where(torch.arange(400) % 5 < 2, (labels + 1) % CLASSES, labels)
    shares = F.one_hot(labels, CLASSES).float()
    alone = fit_taught_head(features, wrong, F.one_hot(wrong, CLASSES).float(), 1.0)
    taught = fit_taught_head(features, wrong, shares, 1.0)
    right = [float((head.scores(tests).argmax(1) == truth).float().mean()) for head in (alone, taught)]
    assert right[1] > right[0] + 0.05


def finished(*given, **settings):
    result = started_from(*given, **settings)
    assert isinstance(result, Result)
    return result


@pytest.mark.slow
def test_run__of_a_soft_teacher_may_take_the_taught_head(data, tmp_path):  # noqa: F811
    teacher = finished(data, tmp_path / "teacher", epochs=0)
    words = {"method": "supervised", "add": ["distillation"], "teacher": str(teacher.folder)}
    soft = {**words, "distillation_targets": "probabilities", "split": str(teacher.folder / "split.csv")}
    taught = finished(data, tmp_path / "taught", epochs=1, **soft)
    found = rungs_of(taught.folder)["probe"]
    assert found["details"]["head"] == HEAD_NAME  # of equal scores the taught head wins
    assert found["score"] >= rungs_of(teacher.folder)["probe"]["score"]
    hard = finished(data, tmp_path / "hard", epochs=1, **{**soft, "distillation_targets": "class"})
    assert rungs_of(hard.folder)["probe"]["details"]["head"] != HEAD_NAME
