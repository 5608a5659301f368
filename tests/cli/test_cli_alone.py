"""`model.json` and `model.safetensors` alone, as a model is given away: every verb that uses a model takes them."""

import json
import shutil
from pathlib import Path

import pytest

import paucal
from cli.calls import SMALL, call, failure, make_photos, make_scenes, table
from paucal.export.reading import load_model
from paucal.models.tasks import CLASSIFICATION, SEGMENTATION, task_of
from paucal.runs import open_model_folder, open_run
from paucal.types import UserError

KNN = ["--protocol", "knn", "--no-cache", "--no-floor", "--bootstrap", "10", "--test-fraction", "0.3"]


def given_away(run: Path, place: Path) -> Path:
    place.mkdir()
    for name in ("model.json", "model.safetensors"):
        shutil.copy(run / name, place / name)
    return place


@pytest.fixture
def alone(trained, tmp_path: Path) -> Path:
    return given_away(trained / "run", tmp_path / "alone")


def test_model_alone__predicts_explains_and_is_judged_as_its_run(alone, trained, tmp_path, capsys):
    others = make_photos(tmp_path / "others", each=4, seed=9)
    for model, name in ((alone, "one"), (trained / "run", "two")):
        assert call("predict", model, others, "--output", tmp_path / f"{name}.csv") == 0
        assert call("eval", model, others, "--output", tmp_path / name) == 0
        assert call("explain", model, others / "class0/0.png", "--output", tmp_path / f"{name} explained") == 0
    assert (tmp_path / "one.csv").read_text() == (tmp_path / "two.csv").read_text()
    scores = [json.loads((tmp_path / name / "metrics.json").read_text())["scores"] for name in ("one", "two")]
    assert scores[0] == scores[1]
    said = " ".join(capsys.readouterr().out.split())
    assert f"whether the model was trained on these images is unknown: {alone} has no split.csv" in said
    assert call("eval", alone, others, *KNN, "--output", tmp_path / "knn") == 0
    assert {row["images"] for row in table(tmp_path / "knn/table.csv")} == {"3"}
    assert "does not name the run's data: give DATA" in failure(capsys, "eval", alone)


def test_model_alone__is_exported_and_served(alone, tmp_path, capsys):
    assert call("export", alone, "--format", "safetensors", "pt2", "--output", tmp_path / "out") == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "on 16 noise images (give real images with --data) the same class for 100" in said
    assert load_model(tmp_path / "out").classes == load_model(alone).classes
    assert task_of(alone) == CLASSIFICATION


def test_model_alone__is_a_start_and_no_run_to_go_on_with(alone, tmp_path, capsys):
    assert open_model_folder(alone).path == alone
    with pytest.raises(UserError, match="contains no run"):
        open_run(alone)
    assert "contains no run" in failure(capsys, "train", "--resume", alone)
    (alone / "model.safetensors").unlink()
    assert "contains no run" in failure(capsys, "predict", alone, tmp_path)


def test_segmenter_alone__is_judged_as_its_run(tmp_path, capsys):
    scenes = make_scenes(tmp_path / "scenes")
    assert call("segment", scenes, *SMALL, "--crops", "1", "--epochs", "1", "--output", tmp_path / "run") == 0
    alone = given_away(tmp_path / "run", tmp_path / "alone")
    assert task_of(alone) == SEGMENTATION
    others = make_scenes(tmp_path / "others", 3, seed=4)
    found = [paucal.evaluate(model, others, output=tmp_path / "out").metrics for model in (alone, tmp_path / "run")]
    assert found[0] == found[1]
    assert "does not name its training images: give DATA" in failure(capsys, "eval", alone)
