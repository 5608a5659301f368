"""Runs on so few images that none are kept for a test: all train, and the score is cross-validated."""

import csv
import functools
import json

import pytest
import torch

from paucal.cli.main import main
from paucal.evaluation.results import read_report
from paucal.methods.training_settings import TrainSettings
from paucal.metrics.intervals import cross_validated
from paucal.models.trained import load_trained
from paucal.runner.console import SilentConsole
from paucal.runner.life import Stopped, resume
from paucal.runs import RunFolder
from paucal.tasks.classification.assembly import assemble
from paucal.tasks.classification.auto_tune import auto_tune as auto_tune_module
from paucal.tasks.classification.auto_tune import first_model
from paucal.tasks.classification.auto_tune.heads import read_held_out_logits
from paucal.tasks.classification.job import TrainingJob
from paucal.types import UserError
from tasks.classification.auto_tune.carried import install
from tasks.classification.auto_tune.test_auto_tune import SHORT, RecordingConsole, photos, rungs_of, started_from


@pytest.fixture
def weights(tmp_path, monkeypatch):
    install(tmp_path, monkeypatch)


def parts_of(run):
    with (run / "split.csv").open() as file:
        return [row["split"] for row in csv.DictReader(file)]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Return a function that gives a finished run on so many images of each class, and what it said."""

    @functools.cache
    def run(each):
        folder, console = tmp_path_factory.mktemp("few"), RecordingConsole()
        with pytest.MonkeyPatch.context() as patch:
            install(folder, patch)
            return started_from(photos(folder / "photos", each=each), folder / "run", console), console

    return run


@pytest.mark.parametrize("each", [2, 6])
def test_run__on_few_images_trains_on_all_and_is_cross_validated(finished, each):
    result, console = finished(each)
    assert parts_of(result.folder) == ["train"] * 3 * each
    held_out = read_held_out_logits(RunFolder(result.folder))
    report = read_report(json.loads((result.folder / "evaluation/test/metrics.json").read_text()))
    assert (report.images, report.repeats, report.folds) == (3 * each, 3, min(each, 5))
    assert report.scores["top1"] == cross_validated(held_out.is_correct.numpy(), folds=min(each, 5))
    assert {score.low for name, score in report.scores.items() if name != "top1"} == {None}
    assert rungs_of(result.folder)["probe"]["score"] == pytest.approx(report.scores["top1"].value)
    summary = json.loads((result.folder / "summary.json").read_text())
    assert summary["cross_validated_top1"] == report.scores["top1"].value
    assert "test_top1" not in summary
    assert any(line.startswith("cross-validated accuracy: ") for line in console.lines)
    page = (result.folder / "report.html").read_text()
    assert f"In a cross-validation with {min(each, 5)} folds" in page
    assert "test accuracy" not in page
    assert "validation images" not in page.partition("How this model was chosen")[2].partition("</section>")[0]
    assert summary["next_steps"][-1].startswith("paucal next ")
    curve = json.loads((result.folder / "learning_curve.json").read_text())
    assert len(curve["points"]) == (1 if each == 2 else 3)
    assert curve["sentence"] in console.lines
    assert "Would more images help?" in page
    model = load_trained(result.folder)
    assert model.card.reads_stages or model.card.temperature != 1.0


@pytest.mark.parametrize(
    ("each", "settings"),
    [
        (10, {}),
        (9, {"test_fraction": 0.2}),
        (9, {"epochs": 1}),
        (9, {"init": None, "model": "vit_mini", "model_args": ["depth=1"]}),
    ],
)
def test_run__with_ten_images_of_a_class_or_no_probe_keeps_a_test(weights, tmp_path, each, settings):
    given = {**SHORT, "data": str(photos(tmp_path / "photos", each=each)), **settings}
    setup = assemble(TrainSettings(**given), dict.fromkeys(given, "flag"), SilentConsole().progress)
    assert setup.data.counts() == {"train": 3 * each - 9, "val": 3, "test": 6}


def test_run__on_few_images_is_resumed_after_its_first_model(finished, weights, tmp_path, monkeypatch):
    whole, _ = finished(6)
    data = whole.folder.parent / "photos"
    with monkeypatch.context() as patch:
        patch.setattr(auto_tune_module, "_end_with_probe", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        assert isinstance(started_from(data, tmp_path / "run"), Stopped)
    result = resume(TrainingJob(), tmp_path / "run", SilentConsole())
    assert result.report == whole.report
    ours, theirs = (load_trained(one.folder).module.state_dict() for one in (result, whole))
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items())


def test_run__with_a_single_image_of_a_class_is_refused(weights, tmp_path):
    data = photos(tmp_path / "photos", each=4)
    for image in sorted((data / "class1").iterdir())[1:]:
        image.unlink()
    with pytest.raises(UserError, match="class 'class1' has 1 image to train on; expected at least 2"):
        started_from(data, tmp_path / "run")


def test_curve__is_refused_without_trained_weights(weights, tmp_path):
    data = photos(tmp_path / "photos", each=12)
    with pytest.raises(UserError, match="--curve fits heads to the frozen features of pretrained weights"):
        started_from(data, tmp_path / "scratch", init=None, model="vit_mini", curve=True)


def test_curve__is_drawn_where_it_is_asked_for_and_keeps_groups_whole(weights, tmp_path, monkeypatch):
    given, usual = [], first_model.measure_learning_curve
    monkeypatch.setattr(first_model, "measure_learning_curve", lambda *words: given.append(words[-1]) or usual(*words))
    data = photos(tmp_path / "photos", each=18)
    result = started_from(data, tmp_path / "run", epochs=0, curve=True, group_by=r"(class\d/\d)")
    assert (result.folder / "plots" / "learning_curve.png").exists()
    with (result.folder / "split.csv").open() as file:
        rows = [row["group"] for row in csv.DictReader(file) if row["split"] == "train"]
    assert json.loads((result.folder / "learning_curve.json").read_text())["per_class"] == len(rows) / 3
    (groups,) = given
    assert len(groups) == len(rows)
    assert len(groups.unique()) == len(set(rows)) == len(set(zip(groups.tolist(), rows, strict=True)))


def test_eval__of_a_run_without_test_images_says_so(finished, capsys):
    result, _ = finished(2)
    assert main(["eval", str(result.folder)]) == 2
    assert "has no test images: choose another --part, or give DATA" in capsys.readouterr().err
