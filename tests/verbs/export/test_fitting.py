"""`paucal export --max-size --max-ms`: the best file that fits, a smaller model where none does, or one sentence."""

import json
import shutil
from pathlib import Path

import pytest
import torch

import paucal
from cli.calls import call, failure
from paucal.models.weights.table import Trained
from paucal.runner.console import SilentConsole
from paucal.runner.life import Stopped
from paucal.runs import RunFolder
from paucal.verbs.export import fitting, students
from paucal.verbs.export.students import Student
from paucal.verbs.export.subjects import ClassifierSubject

pytest.importorskip("onnxscript")
TINY = "test_vit"  # of timm, 0.4 M parameters


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fit") / "run"
    settings = {"model": "vit_mini", "model_args": ["depth=2"], "epochs": 3, "init": "none", "img_size": 16, "seed": 0}
    paucal.train("digits", output=folder, workers=0, device="cpu", method="supervised", **settings)
    return folder


@pytest.fixture
def one_student(monkeypatch):
    """Let a single small network from scratch be the only student."""
    monkeypatch.setattr(students, "ready_weights", lambda device: {})
    monkeypatch.setattr(students, "UNTRAINED", TINY)
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
    assert f"right for {100 * small:.1f} % (" in found.said[-2]
    assert f"the run's model for {100 * own:.1f} % (" in found.said[-2]
    report = (run / "report.html").read_text()
    assert f">{100 * small:.1f} %, " in report  # with its interval
    found = export(run, tmp_path / "large", max_size="1GB")
    assert list(found.comparisons) == ["model.onnx"]  # the more precise one of two that are as good


def test_nothing_that_fits__is_one_sentence_with_the_closest_file_and_leaves_nothing(
    run, tmp_path, capsys, one_student
):
    words = ["export", run, "--format", "onnx", "--images", "40", "--max-size", "9KB", "--output", tmp_path / "none"]
    message = failure(capsys, *words)
    assert "no file keeps to 0.009 MB: the closest is model.int8.onnx" in message
    assert "give a larger --max-size or --max-ms" in message
    assert not (tmp_path / "none").exists()


def test_smaller_model__averages_mirror_images_as_asked(run, tmp_path, monkeypatch):
    monkeypatch.setattr(students, "begin", lambda job, settings, *rest: shutil.copytree(run, settings.output))
    teacher, student = ClassifierSubject(RunFolder(run), SilentConsole(), mirror=True), Student(TINY, 16, False)
    images = torch.rand(2, 3, 16, 16)
    for subject in (
        students.untrained(teacher, student, SilentConsole()),
        students.teach(teacher, student, "1m", tmp_path / "student", SilentConsole()),
    ):
        torch.testing.assert_close(subject.network(images), subject.network(images.flip(-1)))


def test_smaller_model__that_is_interrupted_interrupts_the_export(run, tmp_path, monkeypatch):
    monkeypatch.setattr(students, "begin", lambda *rest: Stopped(Path("run"), 1, 2))
    teacher = ClassifierSubject(RunFolder(run), SilentConsole())
    with pytest.raises(KeyboardInterrupt):
        students.teach(teacher, Student(TINY, 16, False), "1m", tmp_path / "student", SilentConsole())


@pytest.mark.slow
def test_smaller_model__learns_from_the_run_and_is_reported_beside_it(run, tmp_path, monkeypatch, one_student):
    size, asked = sizes(run, tmp_path), {}

    def teach(teacher, student, time, folder, console):
        asked.update(student=student, time=time)
        settings = {"teacher": teacher.run.path, "add": ["distillation"], "distillation_targets": "probabilities"}
        settings |= {
            "model": student.name,
            "img_size": student.side,
            "split": teacher.run.split,
            "method": "supervised",
        }
        paucal.train("digits", output=folder, epochs=1, init="none", workers=0, device="cpu", **settings)
        return ClassifierSubject(RunFolder(folder), console)

    monkeypatch.setattr(fitting, "teach", teach)
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
    assert after != before  # three epochs of the run against one of the student


@pytest.mark.slow
def test_smaller_model__is_trained_within_the_time(run, tmp_path, one_student):
    limit = f"{min(sizes(run, tmp_path).values()) - 1}B"
    words = ["export", run, "--format", "onnx", "--max-size", limit, "--time", "60s", "--output", tmp_path / "out"]
    assert call(*words) == 0
    student = RunFolder(tmp_path / "out" / "student")
    assert student.settings["distillation_targets"] == "probabilities"
    assert student.settings["teacher"] == str(run)


def test_students__are_the_smallest_network_at_hand_then_one_from_scratch(run, monkeypatch):
    ready = [Trained("resnet50.a1_in1k", "MIT", 98, "a test"), Trained("resnet10t.c3_in1k", "MIT", 22, "a test")]
    monkeypatch.setattr(students, "ready_weights", lambda device: dict.fromkeys(ready, "cache"))
    found = list(students.possible_students(ClassifierSubject(RunFolder(run), SilentConsole())))
    assert found[:6] == [Student("resnet10t.c3_in1k", side, True) for side in (224, 192, 160, 128, 96, 64)]
    assert found[6:] == [Student(students.UNTRAINED, 64, False)]  # the run's images have 16 pixels


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--max-size", "5"], "--max-size is '5', expected a size"),
        (["--time", "5m"], "--time is for the smaller model of --max-size and --max-ms"),
        (["--max-ms", "5", "--format", "coreml"], "choose among files that run on this machine"),
        (["--max-ms", "5", "--format", "safetensors"], "choose among files that run on this machine"),
        (["--max-ms", "0"], "--max-ms"),
        (["--max-ms", "5", "--time", "banana"], "--time is 'banana', expected"),
        (["--max-ms", "5", "--int8"], "leave out --int8"),
    ],
)
def test_limits__that_cannot_be_are_refused(run, tmp_path, capsys, words, message):
    assert message in failure(capsys, "export", run, *words, "--output", tmp_path / "out")
    assert not (tmp_path / "out").exists()
