"""A run without validation images: the last epoch is the model, and everything that selects says so or does without."""

import json
import shutil

import pytest
import torch

from cli.calls import QUICK, call, failure, make_photos, table
from paucal.runs import RunFolder
from paucal.runs.weights import read_weights

WITHOUT = [*QUICK, "--val-fraction", "0", "--average", "0"]


@pytest.fixture(scope="module")
def unselected(tmp_path_factory):
    """Photos, and a finished run on them that keeps none for validation."""
    base = tmp_path_factory.mktemp("unselected")
    assert call("train", make_photos(base / "photos"), *WITHOUT, "--output", base / "run") == 0
    return base


def test_train__without_validation_keeps_the_last_epoch_and_says_so(unselected):
    run = RunFolder(unselected / "run")
    log = " ".join(run.log.read_text().split())
    assert "30 to train, 0 to validate, 6 to test" in log
    assert "and no images are kept for model selection" in log
    assert "kept: epoch 2, the last: there were no validation images to select with" in log
    assert "best on the validation images" not in log
    summary = run.read_json("summary.json")
    assert (summary["selected"], summary["best_epoch"], summary["best_val_top1"]) == (False, 2, None)
    assert not run.best.exists()
    rows = table(run.metrics)
    assert [float(row["epoch"]) for row in rows] == [1, 2]
    assert not any(name.startswith("val_") for name in rows[0])
    state, weights = torch.load(run.last, weights_only=True)["state_dict"], read_weights(run.weights)
    assert all(torch.equal(value, state[f"objective.backbone.model.{name}"]) for name, value in weights.items())
    page = " ".join((run.path / "report.html").read_text().split())
    assert "so the model of the last epoch was kept" in page
    assert "2, the last" in page
    assert "best epoch" not in page


def test_train__without_validation_tests_on_the_images_of_a_run_with_it(unselected, trained):
    one, other = (
        {row["key"] for row in table(base / "run" / "split.csv") if row["split"] == "test"}
        for base in (unselected, trained)
    )
    assert one == other


def test_eval__of_such_a_run_cross_validates_and_has_no_part_val(unselected, capsys, tmp_path):
    words = ["eval", unselected / "run", "--protocol", "knn", "linear", "logistic", "--no-cache", "--no-floor"]
    assert call(*words, "--bootstrap", "20", "--probe-epochs", "2", "--output", tmp_path / "own") == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "30 train, 0 val, 6 test" in said
    assert said.count("by 5-fold cross-validation of the training images, as there are no validation images") == 2
    assert "there are no images to evaluate" in failure(capsys, "eval", unselected / "run", "--part", "val")


def test_resume__of_such_a_run_ends_where_the_whole_one_does(unselected, tmp_path):
    words = ["train", unselected / "photos", *WITHOUT, "--output", tmp_path / "run"]
    assert call(*words, "--time-limit", "0.01s") == 130
    assert call("train", "--resume", tmp_path / "run", "--time-limit", "1h") == 0
    one, two = ((folder / "model.safetensors").read_bytes() for folder in (unselected / "run", tmp_path / "run"))
    assert one == two


def test_localization__of_such_a_run_reads_the_last_state(unselected, tmp_path, capsys):
    run = RunFolder(shutil.copytree(unselected / "run", tmp_path / "run"))
    assert not run.best.exists()
    words = ["explain", run.path, unselected / "photos/class0/0.png", "--show", "localization"]
    assert call(*words, "--output", tmp_path / "out") == 0
    run.last.unlink()
    said = failure(capsys, *words, "--output", tmp_path / "none")
    assert "last.ckpt', which is missing: the file was removed, or the run has trained no step." in said


def test_labels__of_a_teacher_that_knows_the_validation_images_lead_to_a_run_without(labelled, capsys, tmp_path):
    shutil.copytree(labelled / "maps", tmp_path / "maps")
    maps = json.loads((tmp_path / "maps" / "index.json").read_text())
    test = {row["key"] for row in table(labelled / "teacher" / "split.csv") if row["split"] == "test"}
    known = [key for key in maps["keys"] if key not in test]  # as of a teacher without validation images
    (tmp_path / "maps" / "index.json").write_text(json.dumps({**maps, "trained_on": known}))
    small = ["--img-size", "32", "-j", "0", "--seed", "1", "-b", "12", "--epochs", "1", "--method", "token-labeling"]
    small += ["--model", "vit_mini", "--model-args", "depth=1", "embed_dim=32", "patch_size=2"]
    words = ["train", labelled / "photos", *small, "--labels", tmp_path / "maps", "--output", tmp_path / "run"]
    assert "or keep no images for validation (--val-fraction 0)" in failure(capsys, *words)
    assert call(*words, "--val-fraction", "0") == 0
