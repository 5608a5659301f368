"""`paucal train --add distillation`: a run teaches another one, and what it must not teach or cannot."""

import csv
from pathlib import Path

import pytest

from cli.calls import QUICK, call, failure, make_photos
from paucal.methods.guided import DISTILLATION_LOSS, _teacher_card
from paucal.methods.training import check_used, with_recipe
from paucal.methods.training_settings import TrainSettings
from paucal.runs import open_run
from paucal.types import UserError


def test_train__learns_from_a_run_of_the_same_split_and_no_other(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", trained / "photos", *QUICK, "--method", "supervised", "--add", "distillation"]
    teacher = ["--teacher", trained / "run"]
    assert call(*words, *teacher, "--epochs", "1", "--output", tmp_path / "run") == 0
    with (tmp_path / "run" / "metrics.csv").open() as file:
        row = next(csv.DictReader(file))
    assert float(row["train_distillation"]) > 0
    stored = open_run(tmp_path / "run").settings
    assert stored["teacher"] == str((trained / "run").resolve())  # so that the run goes on from any folder
    message = failure(capsys, *words, *teacher, "--seed", "2", "--output", tmp_path / "leak")
    assert "validation and test images of this run, so that network knows their labels" in message
    assert "--add distillation needs a teacher" in failure(capsys, *words, "--output", tmp_path / "none")


def test_train__refuses_a_teacher_of_other_classes(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    photos = make_photos(tmp_path / "photos", classes=4)
    words = ["train", photos, *QUICK, "--method", "supervised", "--add", "distillation", "--teacher", trained / "run"]
    assert "does not know the class 'class3' of " in failure(capsys, *words, "--output", tmp_path / "run")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("regnetz", "--teacher: 'regnetz' is neither a run folder nor a timm model (similar: "),
        ("vit_mini", "--teacher vit_mini has no published weights for ImageNet classes: give a run."),
        ("vit_base_patch16_224.mae", "--teacher vit_base_patch16_224.mae has no published weights for ImageNet"),
    ],
)
def test_teacher__that_cannot_teach_is_refused(name: str, words: str) -> None:
    with pytest.raises(UserError) as problem:
        _teacher_card(name)
    assert words in str(problem.value)


def test_teacher__of_timm_is_fed_as_it_was_published() -> None:
    card = _teacher_card("regnety_160.deit_in1k")  # DeiT's
    assert (card.backbone.name, card.backbone.pretrained) == ("regnety_160.deit_in1k", True)
    assert (len(card.classes), card.classes[0]) == (1000, "n01440764")
    assert (card.preprocessing.image_size, card.preprocessing.mean) == ((224, 224), (0.485, 0.456, 0.406))


def test_flags__without_the_loss_are_refused() -> None:
    with pytest.raises(UserError, match="--teacher has no effect without --add distillation: give --add distillation"):
        check_used(TrainSettings(teacher="runs/1"), {"teacher": "flag"})
    assert DISTILLATION_LOSS.paths == ("teacher",)


@pytest.mark.parametrize(
    ("given", "add", "teacher"),
    [
        ({}, ["distillation"], "regnety_160.deit_in1k"),
        ({"method": "drloc"}, ["distillation"], "regnety_160.deit_in1k"),
        ({"add": ["drloc"]}, ["drloc"], None),
        ({"teacher": "runs/1"}, ["distillation"], "runs/1"),
    ],
)
def test_recipe__of_cait_has_a_teacher_while_it_is_learnt_from(given: dict, add: list[str], teacher: str) -> None:
    settings, origin = with_recipe(TrainSettings(recipe="cait", **given), dict.fromkeys([*given, "recipe"], "flag"))
    assert (settings.add, settings.teacher) == (add, teacher)
    check_used(settings, origin)
