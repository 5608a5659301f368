"""Runs of a detector: from a folder to files, stopped and resumed, planned for a time, and used on images."""

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image

from export.alone import run_alone
from paucal.cli.main import main
from paucal.export.comparison import compare_objects
from paucal.models.tasks import DETECTION, task_of
from paucal.runner import initial_weights
from paucal.runner.console import SilentConsole
from paucal.runner.initial_weights import without_none_init
from paucal.runner.life import Stopped, begin, resume
from paucal.runner.time_budget import Pace
from paucal.runs import RunFolder
from paucal.runs.weights import load_checkpoint, read_weights
from paucal.settings.options import rule_chosen_names
from paucal.tasks.detection.assembly import assemble
from paucal.tasks.detection.images import open_boxed_images
from paucal.tasks.detection.job import DetectionJob, detect, plan_steps_for_time
from paucal.tasks.detection.rules import RULES
from paucal.tasks.detection.settings import DetectSettings
from paucal.types import UserError
from paucal.verbs.export.launch import export_model
from paucal.verbs.export.subjects import ExportableDetector
from paucal.verbs.predict.detection import detect_objects
from paucal.verbs.runs.rows import list_runs
from tasks.detection.made import TINY, write_coco
from tasks.pretraining.short_runs import StopAfter

GIVEN = dict.fromkeys(TINY, "flag")


def test_run__leaves_scores_pictures_and_a_detector(finished: Path, images: Path):
    run = RunFolder(finished)
    summary, rows = run.read_json("summary.json"), run.read_rows()
    assert [row["step"] for row in rows] == [3, 6]
    assert summary["epoch_images"] == 3 * TINY["batch_size"]
    assert {"val_ap", "val_ap50", "train_class", "train_proposal"} <= set(rows[0])
    metrics = run.read_json("evaluation/detection/metrics.json")
    assert metrics["scores"]["ap"] == summary["test_ap"]
    assert metrics["intervals"]["ap"]["value"] == summary["test_ap"]
    with run.split.open() as file:
        split = list(csv.DictReader(file))
    assert metrics["images"] == sum(row["split"] == "test" for row in split) == summary["parts"]["test"]
    assert set(split[0]["class"].split(";")) <= {"red", "blue"}
    detections = run.read_json("evaluation/detection/detections.json")
    tested = {row["key"] for row in split if row["split"] == "test"}
    assert {row["file_name"] for row in detections["images"]} == tested
    assert {row["category_id"] for row in detections["annotations"]} <= {3, 7}
    for name in ("train_batch", "detections", "worst_detections", "precision_recall", "curves"):
        with Image.open(run.plots / f"{name}.png") as picture:
            assert picture.width > 100
    assert task_of(str(finished)) == DETECTION
    page = (finished / "report.html").read_text()
    assert f"On {metrics['images']} test images" in page
    assert page.count("<figcaption>") == 5
    assert "paucal detect --config" in page


def test_list_of_runs__shows_the_average_precision(finished: Path):
    listed = list_runs(finished)[0]
    summary = RunFolder(finished).read_json("summary.json")
    assert (listed.verb, listed.value("test")) == ("detect", summary["test_ap"])
    assert listed.value("val") == summary["best_val_ap"]


def test_config_of_a_run__begins_as_the_run_did(finished: Path, capsys):
    assert main(["detect", "--config", str(finished / "config.yaml"), "--print-config"]) == 0
    told = capsys.readouterr().out
    assert "init: none" in told
    assert "steps: 6 " in told
    assert "model: test_resnet " in told


def test_resumed_run__is_the_one_that_was_not_stopped(finished: Path, images: Path, tmp_path: Path):
    settings = DetectSettings(data=str(images), output=str(tmp_path / "run"), steps=6, judge_every=3, **TINY)
    stopped = begin(DetectionJob(), settings, GIVEN, SilentConsole(), [StopAfter(4)])
    assert isinstance(stopped, Stopped)
    assert (stopped.step, stopped.total_steps) == (4, 6)
    resume(DetectionJob(), stopped.run, SilentConsole())
    ours, theirs = read_weights(stopped.run / "model.safetensors"), read_weights(finished / "model.safetensors")
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items())
    last, other = (load_checkpoint(run / "checkpoints" / "last.ckpt") for run in (stopped.run, finished))
    assert last["state_dict"].keys() == other["state_dict"].keys()
    assert all(torch.equal(value, other["state_dict"][name]) for name, value in last["state_dict"].items())
    scores = [RunFolder(run).read_json("summary.json")["test_ap"] for run in (stopped.run, finished)]
    assert scores[0] == scores[1]


def test_predictions__of_the_command_line_lie_in_the_images(finished: Path, images: Path, tmp_path: Path):
    output = tmp_path / "found.json"
    words = ["predict", str(finished), str(images / "3.png"), str(images / "0.png"), "--format", "json"]
    assert main([*words, "--output", str(output), "--pictures", str(tmp_path / "drawn")]) == 0
    found = json.loads(output.read_text())
    assert [Path(row["file_name"]).name for row in found["images"]] == ["3.png", "0.png"]
    assert found["annotations"]
    for row in found["annotations"]:
        left, top, width, height = row["bbox"]
        assert left >= 0
        assert top >= 0
        assert left + width <= 96.1
        assert top + height <= 64.1
    assert sorted(path.name for path in (tmp_path / "drawn").iterdir()) == ["1-3.png", "2-0.png"]
    assert main([*words, "--pictures", str(tmp_path / "drawn")]) == 2  # nothing is written over


def test_predictions__are_those_of_the_test(finished: Path, images: Path):
    """What is written of the test images is what a person gets for them."""
    stored = RunFolder(finished).read_json("evaluation/detection/detections.json")
    first = stored["images"][0]
    row = detect_objects(finished, [str(images / first["file_name"])])[0]
    expected = [one for one in stored["annotations"] if one["image_id"] == first["id"]]
    assert len(row.found) == len(expected)
    best = row.found.boxes[0].tolist()
    left, top, width, height = expected[0]["bbox"]
    assert best == pytest.approx([left, top, left + width, top + height], abs=0.1)
    assert float(row.found.scores[0]) == pytest.approx(expected[0]["score"], abs=1e-3)


@pytest.mark.parametrize("to", ["coco", "yolo", "voc", "csv", "label-studio"])
def test_answers__are_written_as_labels_that_are_read_back(
    finished: Path, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to: str
):
    monkeypatch.setattr(
        "paucal.verbs.predict.layouts.MIN_SHOWN_SCORE", 0.05
    )  # a detector of six steps is sure of nothing
    paths = [str(images / f"{number}.png") for number in (3, 0, 7)]
    found = {Path(row.path or "").name: row.found for row in detect_objects(finished, paths)}
    assert sum(map(len, found.values())) > 3
    assert main(["predict", str(finished), *paths, "--to", to, "--output", str(tmp_path / "out")]) == 0
    if to == "label-studio":
        tasks = json.loads((tmp_path / "out/tasks.json").read_text())
        scores = [[region["score"] for region in task["predictions"][0]["result"]] for task in tasks]
        assert [len(rows) for rows in scores] == [len(found[f"{number}.png"]) for number in (3, 0, 7)]
        assert "annotations" not in tasks[0]
        return
    read = open_boxed_images(tmp_path / "out")
    for index, key in enumerate(read.images.keys):
        expected, boxes = found[Path(key).name], read.boxes_of(index)
        assert boxes.corners == pytest.approx(expected.boxes, abs=0.02)
        assert [read.classes[label] for label in boxes.labels] == [("red", "blue")[label] for label in expected.labels]
    if to == "coco":
        document = json.loads((tmp_path / "out/annotations/instances_default.json").read_text())
        assert all(0.05 <= row["score"] <= 1 for row in document["annotations"])


def test_labels__need_a_folder_and_a_layout_for_boxes(finished: Path, images: Path, tmp_path: Path, capsys):
    words = ["predict", str(finished), str(images / "3.png")]
    assert main([*words, "--to", "coco"]) == 2
    assert "needs --output, a new folder" in " ".join(capsys.readouterr().err.split())
    assert main([*words, "--to", "folders", "--output", str(tmp_path / "out")]) == 2
    assert "this model predicts boxes, which --to folders does not support" in " ".join(capsys.readouterr().err.split())
    assert main([*words, "--to", "coco", "--format", "json", "--output", str(tmp_path / "out")]) == 2


@pytest.mark.slow
def test_export__writes_files_that_find_the_same_objects(finished: Path, tmp_path: Path):
    found = export_model(finished, output=str(tmp_path / "out"), format=["pt2", "onnx"], images=4)
    assert [path.name for path in found.files] == ["model.pt2", "model.onnx", "export.json"]
    for comparison in found.comparisons.values():
        assert (comparison.images, comparison.agreement) == (4, 1.0)
        assert comparison.largest < 1e-4
    assert "model.onnx" in (finished / "report.html").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "file"), [("onnx", "model.onnx"), ("openvino", "model.xml")])
def test_exported_file__finds_the_same_objects_with_its_runtime_alone(finished, images, tmp_path, name, file):
    pytest.importorskip(name)
    export_model(finished, output=str(tmp_path / "out"), format=[name], images=2)
    subject = ExportableDetector(RunFolder(finished), SilentConsole())
    given = subject.prepare(Image.open(images / "3.png").convert("RGB"), False)
    with torch.no_grad():
        own = subject.network(given)
    answer = torch.from_numpy(run_alone(tmp_path / "out" / file, given.numpy(), tmp_path)).float()
    assert compare_objects(own, answer).agreement == 1.0


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--format", "coreml"], "a detector's number of regions depends on the image: use --format onnx"),
        (["--format", "onnx", "--int8"], "--int8 is for classifiers and segmenters, but this model is a detector"),
        (["--format", "pt2", "--with-preprocessing"], "this model is a detector: remove --with-preprocessing"),
        (["--format", "html"], "--format html is for classifiers"),
    ],
)
def test_export__refuses_what_a_detector_cannot_be(finished: Path, tmp_path: Path, capsys, flags, message):
    assert main(["export", str(finished), "--output", str(tmp_path / "out"), *flags]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "out").exists()


BAD = {
    "no data": ({"data": ""}, "DATA is missing"),
    "two lengths": ({"steps": 5, "epochs": 3}, "--epochs and --steps all set the length"),
    "a recipe": ({"recipe": "dhvt"}, "'dhvt' is unknown, expected one of detector-coco-1x"),
    "compiled": ({"compile": True}, "--compile is not supported for detection"),
    "a batch to be tried": ({"batch_size": "auto"}, "--batch-size auto"),
    "no time": ({"time": "soon"}, "--time is 'soon'"),
    "a size out of range": ({"img_size": [5]}, "--img-size"),
    "a stage too many": ({"freeze": 50, "steps": 2}, "stages"),
    "a start that is not there": ({"init": "nowhere", "steps": 2}, "no file or run folder 'nowhere'"),
    "a model that is not there": ({"model": "resnet1", "steps": 2}, "There is no model"),
    "a stride that no map has": ({"finest": 12}, "--finest is 12"),
    "a wrong fraction": ({"val_fraction": 0.9, "test_fraction": 0.9, "steps": 2}, "leave no training images"),
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_settings__are_refused_before_anything_is_written(images: Path, tmp_path: Path, kind: str):
    changes, words = BAD[kind]
    settings = {"data": str(images), **TINY, "output": str(tmp_path / "run"), **changes}
    with pytest.raises(UserError, match=words):
        detect(**settings)
    assert not (tmp_path / "run").exists()


def test_unreadable_images__are_refused_or_left_out_with_their_boxes(tmp_path: Path):
    folder = write_coco(tmp_path / "set", 20).parent
    content = (folder / "4.png").read_bytes()
    (folder / "4.png").write_bytes(content[: len(content) // 2])
    settings = without_none_init(DetectSettings(data=str(folder), steps=2, **TINY))
    bars = SilentConsole().progress
    with pytest.raises(UserError, match=r"4\.png"):
        assemble(settings, GIVEN, bars)
    made = assemble(replace(settings, on_bad_image="skip"), GIVEN, bars)
    assert len(made.images.images) == 19
    assert made.images.images.keys[4] == "5.png"
    assert made.images.boxes_of(4).corners.tolist() == assemble_whole(tmp_path).boxes_of(5).corners.tolist()


def assemble_whole(tmp_path: Path):
    from paucal.tasks.detection.images import open_boxed_images

    return open_boxed_images(write_coco(tmp_path / "whole", 20))


def test_chosen__are_the_settings_that_have_a_rule():
    assert rule_chosen_names(DetectSettings) == set(RULES)


def test_measuring__leaves_the_detector_as_it_was(images: Path):
    made = assemble(
        without_none_init(DetectSettings(data=str(images), time="1m", **TINY)), GIVEN, SilentConsole().progress
    )
    before = {name: value.clone() for name, value in made.objective.state_dict().items()}
    torch.manual_seed(5)
    pace = DetectionJob().measure(made)
    drawn = torch.rand(1)
    torch.manual_seed(5)
    assert torch.equal(drawn, torch.rand(1))
    assert pace.step > 0
    assert pace.val_image == pace.test_image > 0
    assert all(torch.equal(value, before[name]) for name, value in made.objective.state_dict().items())


@pytest.mark.parametrize("left", [120.0, 600.0, 7200.0])
def test_planned_length__fills_the_time_and_no_more(left: float):
    counts = {"train": 200, "val": 80, "test": 70}
    found = plan_steps_for_time(Pace(0.5, 0.1, 0.1, 12.0), left, counts, epochs_per_step=4 / 200, max_epochs=10_000)
    assert 0.9 * left < found.seconds <= left
    looks = -(-found.steps // found.judge_every)
    assert looks * 80 * 0.1 <= 0.16 * left + 8
    assert found.seconds == pytest.approx(found.steps * 0.5 + looks * 8 + 7 + 12, abs=9)


def test_planned_length__ends_where_more_passes_would_not_help_and_where_nothing_fits():
    counts = {"train": 200, "val": 80, "test": 70}
    assert plan_steps_for_time(Pace(0.01, 0.001, 0.001, 12.0), 36000, counts, 4 / 200, max_epochs=60).steps == 3000
    assert plan_steps_for_time(Pace(30.0, 0.1, 0.1, 12.0), 120, counts, 4 / 200, 60).steps == 0


def test_time__is_planned_stored_and_kept_when_resumed(images: Path, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(DetectionJob, "measure", lambda job, setup, tunes_threads: Pace(1.0, 0.1, 0.1, 12.0))
    settings = DetectSettings(data=str(images), output=str(tmp_path / "run"), time="50s", **TINY)
    stopped = begin(DetectionJob(), settings, {**GIVEN, "time": "flag"}, SilentConsole(), [StopAfter(2)])
    assert isinstance(stopped, Stopped)
    stored = RunFolder(stopped.run).settings
    assert 10 <= stored["steps"] <= 38
    assert stopped.total_steps == stored["steps"]
    assert RunFolder(stopped.run).read_yaml("config.yaml")["origin"]["steps"].startswith("auto: ")
    kept = RunFolder(stopped.run).read_json("time_plan.json")
    assert (kept["budget"], kept["step"], kept["evaluation"]) == (
        50.0,
        1.0,
        pytest.approx(0.1 * counts(stopped)["val"]),
    )
    assert kept["closing"] == pytest.approx(0.1 * counts(stopped)["test"] + 12)


def counts(stopped: Stopped) -> dict[str, int]:
    rows = (stopped.run / "split.csv").read_text().splitlines()
    return {part: sum(part in row.split(",") for row in rows) for part in ("val", "test")}


def test_time__that_does_not_suffice_is_refused_with_one_that_does(images: Path, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(DetectionJob, "measure", lambda job, setup, tunes_threads: Pace(20.0, 1.0, 1.0, 12.0))
    with pytest.raises(UserError, match=r"a step takes 20\.0 s here.*give --time \d+m or more"):
        detect(images, output=str(tmp_path / "run"), time="30s", **TINY)


@pytest.mark.parametrize(("device", "expected"), [(None, "cuda"), ("cpu", "cpu")])
def test_start__is_chosen_for_the_device_of_the_run(
    images: Path, monkeypatch: pytest.MonkeyPatch, device: str | None, expected: str
):
    devices = []

    def choose(model: str | None, device: str, side: int):
        devices.append(device)
        raise UserError("chosen")

    monkeypatch.setattr("paucal.rules.resolve.best_device", lambda: ("cuda", True))
    monkeypatch.setattr(initial_weights, "choose_weights", choose)
    with pytest.raises(UserError, match="chosen"):
        assemble(DetectSettings(data=str(images), device=device), {}, SilentConsole().progress)
    assert devices == [expected]
