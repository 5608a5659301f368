"""Run folders written by an earlier version of paucal open, predict, resume and repeat as they did then.

`earlier_runs/` holds, for each task that trains, a run that was stopped after its first step and the same run finished,
both as that version wrote them.
"""

import json
import shutil
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file

import paucal
from cli.calls import call, table
from paucal.methods.pretraining_settings import PretrainSettings
from paucal.methods.training_settings import TrainSettings
from paucal.settings.options import with_current_names
from paucal.tasks.detection.settings import DetectSettings
from paucal.tasks.segmentation.settings import SegmentSettings

STORED = Path(__file__).parent / "earlier_runs"
IMAGES = {"train": "photos", "pretrain": "photos", "segment": "scenes", "detect": "boxes"}
KINDS = {"train": TrainSettings, "pretrain": PretrainSettings, "segment": SegmentSettings, "detect": DetectSettings}
RUNS = list(IMAGES)
# The steps are the same on every processor; sums of floats are not.
CLOSE = {"rel": 2e-3, "abs": 2e-3}


def scores(path: Path) -> list[dict[str, float]]:
    """Return the rows of metrics.csv without what depends on the machine."""
    machine = {"seconds", "images_per_second", "memory", "peak_memory"}
    return [{name: float(value) for name, value in row.items() if value and name not in machine} for row in table(path)]


@pytest.mark.parametrize("verb", RUNS)
def test_a_stopped_run__resumes_to_the_end_it_had_then(verb, tmp_path):
    run, finished = tmp_path / "run", STORED / verb / "finished"
    shutil.copytree(STORED / verb / "stopped", run)
    (run / "plots").mkdir()
    assert call(verb, "--resume", run, "--data", STORED / IMAGES[verb], "--time-limit", "1h") == 0
    rows, expected = scores(run / "metrics.csv"), scores(finished / "metrics.csv")
    assert len(rows) == len(expected) == 2
    for row, then in zip(rows, expected, strict=True):
        assert set(then) <= set(row)
        assert {name: row[name] for name in then} == pytest.approx(then, **CLOSE)
    weights, then = (load_file(folder / "model.safetensors") for folder in (run, finished))
    assert weights.keys() == then.keys()
    torch.testing.assert_close(weights, then, rtol=2e-3, atol=2e-3)
    card, then = (json.loads((folder / "model.json").read_text()) for folder in (run, finished))
    del then["preprocessing"]  # its means of pixels are compared by what the weights became
    for name, value in then.items():  # later versions may add options
        assert card[name] == ({**card[name], **value} if isinstance(value, dict) else value), name
    assert (run / "split.csv").read_bytes() == (finished / "split.csv").read_bytes()


def test_a_finished_classifier__gives_the_answers_it_gave_then():
    run = STORED / "train" / "finished"
    rows = table(run / "evaluation/test/predictions.csv")
    answers = paucal.predict(run, [STORED / "photos" / row["key"] for row in rows])
    for row, answer in zip(rows, answers, strict=True):
        expected = {name.removeprefix("p_"): float(value) for name, value in row.items() if name.startswith("p_")}
        assert {name: answer.probabilities[name] for name in expected} == pytest.approx(expected, abs=1e-4)


def test_a_finished_detector__finds_what_it_found_then():
    run = STORED / "detect" / "finished"
    stored = json.loads((run / "evaluation/detection/detections.json").read_text())
    names = {image["id"]: image["file_name"] for image in stored["images"]}
    assert len(names) == 3
    best: dict[str, dict] = {}
    for row in stored["annotations"]:
        name = names[row["image_id"]]
        best[name] = max(best.get(name, row), row, key=lambda row: row["score"])
    answers = paucal.detect_objects(run, [STORED / "boxes" / name for name in best])
    for row, answer in zip(best.values(), answers, strict=True):
        first = int(answer.found.scores.argmax())
        left, top, width, height = row["bbox"]
        assert answer.found.scores[first] == pytest.approx(row["score"], abs=1e-3)
        assert answer.found.boxes[first].tolist() == pytest.approx([left, top, left + width, top + height], abs=0.1)


def test_a_finished_segmenter__marks_what_it_marked_then(tmp_path):
    run = STORED / "segment" / "finished"
    then = {row["image"]: float(row["mean_iou"]) for row in table(run / "evaluation/test/per_image.csv")}
    assert call("eval", run, STORED / "scenes", "--output", tmp_path) == 0
    now = {row["image"]: float(row["mean_iou"]) for row in table(tmp_path / "per_image.csv")}
    assert {name: now[name] for name in then} == pytest.approx(then, abs=2e-3)


@pytest.mark.parametrize("verb", RUNS)
def test_the_config_of_a_run__is_taken(verb, tmp_path, capsys):
    config = STORED / verb / "finished" / "config.yaml"
    assert call(verb, STORED / IMAGES[verb], "--config", config, "--print-config") == 0
    stored, printed = yaml.safe_load(config.read_text())["settings"], yaml.safe_load(capsys.readouterr().out)
    left = {"output", "overwrite", "data"}
    stored = {name: value for name, value in stored.items() if value is not None and name not in left}
    expected = with_current_names(stored, KINDS[verb])
    assert {name: printed.get(name) for name in expected} == expected
