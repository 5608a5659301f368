"""`paucal export --max-size --max-ms`: the best file that fits, a smaller model where none does, or one sentence."""

import json
import shutil
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

import paucal
from cli.calls import call, failure, make_photos
from paucal.models.weights.table import PretrainedWeights
from paucal.runner.console import RecordingConsole, SilentConsole
from paucal.runner.life import Stopped
from paucal.runs import RunFolder
from paucal.types import UserError
from paucal.verbs.export import fitting, graphs, students, subjects
from paucal.verbs.export.launch import export_all
from paucal.verbs.export.settings import ExportSettings
from paucal.verbs.export.students import Student
from paucal.verbs.export.subjects import ExportableClassifier

pytestmark = [
    pytest.mark.skipif(find_spec("onnxscript") is None, reason="exports ONNX files"),
    pytest.mark.usefixtures("kept_graphs"),
]
TINY = "test_efficientnet"  # of timm, 0.1 M parameters


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fit") / "run"
    settings = {"model": "vit_mini", "model_args": ["depth=1"], "epochs": 2, "init": "none", "img_size": 16, "seed": 0}
    paucal.train("digits", output=folder, workers=0, device="cpu", method="supervised", **settings)
    return folder


@pytest.fixture
def one_student(monkeypatch):
    """Let a single small network from scratch be the only student, with the same weights in each test."""
    torch.manual_seed(0)
    monkeypatch.setattr(students, "ready_weights", lambda device: {})
    monkeypatch.setattr(students, "UNTRAINED_STUDENT", TINY)
    monkeypatch.setattr(students, "SIDES", (16,))


def export(run, output, **settings):
    return paucal.export_model(run, output=output, format=["onnx"], images=40, **settings)


def sizes(run, tmp_path):
    found = paucal.export_model(run, output=tmp_path / "both", format=["onnx"], int8=True, images=40)
    return {name: comparison.size for name, comparison in found.comparisons.items()}


def test_file_of_8_bits__is_kept_where_the_other_is_too_large(run, tmp_path):
    size = sizes(run, tmp_path)
    assert size["model.int8.onnx"] < 0.6 * size["model.onnx"]
    found = export(run, tmp_path / "small", max_size=f"{size['model.onnx'] - 1}B", max_ms=10_000.0)
    assert sorted(path.name for path in found.folder.iterdir()) == ["export.json", "model.int8.onnx"]
    comparison = found.comparisons["model.int8.onnx"]
    assert comparison.size == size["model.int8.onnx"] == (found.folder / "model.int8.onnx").stat().st_size
    stored = json.loads((found.folder / "export.json").read_text())
    assert stored["limits"] == {"size": size["model.onnx"] - 1, "milliseconds": 10_000.0}
    assert comparison.accuracy is not None
    own, small = comparison.accuracy
    assert f"test images: {100 * small:.1f} % (" in found.said[-2]
    assert f"the run's model: {100 * own:.1f} % (" in found.said[-2]
    report = (run / "report.html").read_text()
    assert f">{100 * small:.1f} %, " in report  # with its interval
    found = export(run, tmp_path / "large", max_size="1GB")
    assert list(found.comparisons) == ["model.onnx"]  # the more precise one of two that are as good


def test_nothing_that_fits__is_one_sentence_with_the_closest_file_and_leaves_nothing(
    run, tmp_path, capsys, one_student
):
    words = ["export", run, "--format", "onnx", "--images", "40", "--max-size", "9KB", "--output", tmp_path / "none"]
    message = failure(capsys, *words)
    assert "no file is within 0.009 MB: the closest is model.int8.onnx" in message
    assert "give a larger --max-size or --max-ms" in message
    assert not (tmp_path / "none").exists()


def test_smaller_model__that_fails_after_all_leaves_no_untrained_file_as_the_closest(
    run, tmp_path, monkeypatch, one_student
):
    opened, open_again = [], subjects.open_again
    monkeypatch.setattr(
        subjects, "open_again", lambda *args, **words: opened.append(args) or open_again(*args, **words)
    )
    monkeypatch.setattr(fitting, "train_student", lambda teacher, *rest: teacher)
    monkeypatch.setattr(
        fitting.Limits, "excess", lambda self, found: 0.5 if found.images == fitting.TIMED_IMAGES else 2.0
    )
    console, settings = RecordingConsole(), ExportSettings(format=["onnx"], images=40, max_size="5MB")
    with pytest.raises(UserError, match=r"no file is within 5 MB: the closest is model\.onnx with"):
        export_all(str(run), replace(settings, output=str(tmp_path / "out")), console)
    assert len(opened) == 1  # the untrained student is timed on the images that were read for the run's own files
    assert [line for line in console.said if "exporting the graph" in line and TINY in line] == []


def test_file__that_is_too_slow_when_timed_again_is_not_kept(run, tmp_path, monkeypatch):
    compare_all, slow = fitting.compare_all, [20_000.0]

    def time_again(*args, **words):
        found = compare_all(*args, **words)
        return replace(found, milliseconds=(1.0, slow.pop())) if slow else found

    monkeypatch.setattr(fitting, "compare_all", time_again)
    found = export(run, tmp_path / "second", max_ms=10_000.0)
    assert list(found.comparisons) == ["model.int8.onnx"]
    slow += [20_000.0, 20_000.0]
    monkeypatch.setattr(fitting, "possible_students", lambda teacher: [])
    with pytest.raises(
        UserError, match="ms per image, too close to the limit, since measured times vary, so nothing was"
    ):
        export(run, tmp_path / "none", max_ms=10_000.0)


def test_file__that_seems_a_little_too_slow_is_timed_again(run, tmp_path, monkeypatch):
    compare_all, slow = fitting.compare_all, [11_000.0, 12_000.0]

    def measured(*args, **words):
        found = compare_all(*args, **words)
        return replace(found, milliseconds=(1.0, slow.pop())) if slow else found

    monkeypatch.setattr(fitting, "compare_all", measured)
    found = export(run, tmp_path / "out", max_ms=10_000.0)
    assert slow == []
    assert list(found.comparisons) == ["model.onnx"]
    comparison = found.comparisons["model.onnx"]
    assert (comparison.images, comparison.milliseconds[1] < 1000) == (40, True)  # scores of all, time of the last


def test_student__that_seems_a_little_too_slow_is_timed_again_before_a_smaller_one_is_tried(
    run, tmp_path, monkeypatch, one_student
):
    compare_all, measure = fitting.compare_all, graphs.GraphWriter.measure
    monkeypatch.setattr(
        graphs.GraphWriter, "measure", lambda *args: replace(measure(*args), milliseconds=(1.0, 1.2 * 0.9 * 1000))
    )
    monkeypatch.setattr(
        fitting, "compare_all", lambda *args, **words: replace(compare_all(*args, **words), milliseconds=(77.0, 800.0))
    )
    teacher = ExportableClassifier(RunFolder(run), SilentConsole())
    limits, settings = fitting.Limits(None, 1000.0), ExportSettings(format=["onnx"])
    asked = teacher, ["onnx"], limits, settings, tmp_path
    ((_, files),) = fitting._measure_students(*asked)
    assert [file.comparison.milliseconds for file in files] == [
        (1.0, 800.0),
        (1.0, 800.0),
    ]  # as timed


@pytest.mark.parametrize("missing", ["images", "run"])
def test_data__is_judged_on_where_the_images_are_missing_and_then_no_smaller_model_learns(
    run, tmp_path, capsys, missing
):
    photos, copy = make_photos(tmp_path / "photos", classes=1), tmp_path / "copy"
    shutil.copytree(run, copy)
    config = (copy / "config.yaml").read_text()
    (copy / "config.yaml").write_text(config.replace("data: digits", f"data: {tmp_path / 'gone'}"))
    if missing == "run":
        shutil.rmtree(copy)
        copy.mkdir()
        for name in ("model.json", "model.safetensors"):
            shutil.copy(run / name, copy)
    found = export(copy, tmp_path / "out", max_size="1GB", data=str(photos))
    assert any(f"on 12 images of {photos}" in line for line in found.said if "kept" not in line)
    words = ["--format", "onnx", "--max-size", "9KB", "--data", photos, "--output", tmp_path / "none"]
    assert "no file is within 0.009 MB: the closest is model.onnx" in failure(capsys, "export", copy, *words)


def test_smaller_model__averages_mirror_images_as_asked(run, tmp_path, monkeypatch):
    monkeypatch.setattr(students, "begin", lambda job, settings, *rest: shutil.copytree(run, settings.output))
    teacher, student = ExportableClassifier(RunFolder(run), SilentConsole(), mirror=True), Student(TINY, 16, False)
    images = torch.rand(2, 3, 16, 16)
    for subject in (
        students.build_untrained(teacher, student),
        students.train_student(teacher, student, "1m", tmp_path / "student"),
    ):
        torch.testing.assert_close(subject.network(images), subject.network(images.flip(-1)))


def test_smaller_model__that_is_interrupted_interrupts_the_export(run, tmp_path, monkeypatch):
    monkeypatch.setattr(students, "begin", lambda *rest: Stopped(Path("run"), 1, 2))
    teacher = ExportableClassifier(RunFolder(run), SilentConsole())
    with pytest.raises(KeyboardInterrupt):
        students.train_student(teacher, Student(TINY, 16, False), "1m", tmp_path / "student")


@pytest.mark.slow
def test_smaller_model__learns_from_the_run_and_is_reported_beside_it(run, tmp_path, monkeypatch, one_student):
    size, asked = sizes(run, tmp_path), {}

    def train_student(teacher, student, time, folder):
        asked.update(student=student, time=time)
        settings = {"teacher": teacher.run.path, "add": ["distillation"], "distillation_targets": "probabilities"}
        settings |= {
            "model": student.name,
            "img_size": student.side,
            "split": teacher.run.split,
            "method": "supervised",
        }
        paucal.train("digits", output=folder, epochs=1, init="none", workers=0, device="cpu", **settings)
        return ExportableClassifier(RunFolder(folder), teacher.console)

    monkeypatch.setattr(fitting, "train_student", train_student)
    # Both files of the run are made too slow, and the student's are not.
    monkeypatch.setattr(fitting.Limits, "excess", lambda self, found: 2.0 if found.size in size.values() else 0.5)
    found = export(run, tmp_path / "out", max_ms=1.0, time="20s")
    assert asked == {"student": Student(TINY, 16, False), "time": "20s"}
    (name,) = found.comparisons
    assert {path.name for path in found.folder.iterdir()} == {"export.json", name, "student"}
    assert f"{name} of {TINY} at 16 pixels" in (run / "report.html").read_text()
    accuracy = found.comparisons[name].accuracy
    assert accuracy is not None
    before, after = accuracy
    student = paucal.load(found.folder / "student")
    assert student.card.backbone.name == TINY
    assert (
        before
        == json.loads((tmp_path / "both" / "export.json").read_text())["comparisons"]["model.onnx"]["accuracy"][0]
    )
    assert after != before  # two epochs of the run against one of the student


@pytest.mark.slow
def test_smaller_model__is_trained_within_the_time(run, tmp_path, one_student, monkeypatch):
    # How well the 8 bits of a model trained for a minute agree with it depends on how fast this machine trains.
    monkeypatch.setattr(graphs, "MIN_INT8_AGREEMENT", 0.0)
    limit = f"{min(sizes(run, tmp_path).values()) - 1}B"
    words = ["export", run, "--format", "onnx", "--max-size", limit, "--time", "1m", "--output", tmp_path / "out"]
    assert call(*words) == 0
    student = RunFolder(tmp_path / "out" / "student")
    assert student.settings["distillation_targets"] == "probabilities"
    assert student.settings["teacher"] == str(run)


def test_students__are_the_smallest_network_at_hand_then_one_from_scratch(run, monkeypatch):
    ready = [
        PretrainedWeights("resnet50.a1_in1k", "MIT", 98, "a test"),
        PretrainedWeights("resnet10t.c3_in1k", "MIT", 22, "a test"),
    ]
    monkeypatch.setattr(students, "ready_weights", lambda device: dict.fromkeys(ready, "cache"))
    found = list(students.possible_students(ExportableClassifier(RunFolder(run), SilentConsole())))
    assert found[:6] == [Student("resnet10t.c3_in1k", side, True) for side in (224, 192, 160, 128, 96, 64)]
    assert found[6:] == [Student(students.UNTRAINED_STUDENT, 64, False)]  # the run's images have 16 pixels


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--max-size", "5"], "--max-size is '5', expected a size"),
        (["--time", "5m"], "--time limits the training of the smaller model"),
        (["--max-ms", "5", "--format", "coreml"], "choose among files that run on this machine"),
        (["--max-ms", "5", "--format", "safetensors"], "choose among files that run on this machine"),
        (["--max-ms", "0"], "--max-ms"),
        (["--max-ms", "5", "--time", "banana"], "--time is 'banana', expected"),
        (["--max-ms", "5", "--int8"], "remove --int8"),
    ],
)
def test_limits__that_cannot_be_are_refused(run, tmp_path, capsys, words, message):
    assert message in failure(capsys, "export", run, *words, "--output", tmp_path / "out")
    assert not (tmp_path / "out").exists()
