"""Where results go: nothing of anybody is replaced, and a place that will not do is refused at the beginning."""

import csv
import json
import os
import shutil
import signal
from pathlib import Path

import pytest
from lightning.pytorch import Callback

from cli.calls import QUICK, call, failure, make_photos
from paucal.methods.training_settings import TrainSettings
from paucal.runner import life
from paucal.runner.console import Console
from paucal.runner.life import begin
from paucal.runner.run_folder import aside_path, move_aside
from paucal.runs.lock import RunLock
from paucal.tasks.classification.job import TrainingJob
from paucal.types import UserError


def content(folder) -> dict[str, bytes]:
    """Return what lies in a folder."""
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.fixture
def run(trained, tmp_path):
    """A finished run of one's own."""
    return shutil.copytree(trained / "run", tmp_path / "run")


@pytest.mark.parametrize("verb", ["train", "pretrain"])
@pytest.mark.parametrize("problem", [RuntimeError, KeyboardInterrupt])
def test_overwrite__gives_the_old_run_back_when_the_new_one_fails(verb, problem, trained, run, monkeypatch, capsys):
    def fit(*_, **__):
        assert (run / "config.yaml").exists()
        assert not (run / "summary.json").exists()
        raise problem("in the middle")

    monkeypatch.setattr(life, "fit", fit)
    before = content(run)
    words = [verb, trained / "photos", *QUICK, "--output", run, "--overwrite"]
    if problem is KeyboardInterrupt:
        assert call(*words) == 130
    else:
        with pytest.raises(problem):
            call(*words)
    assert content(run) == before
    assert not aside_path(run).exists()
    said = capsys.readouterr().out
    assert f"the old run is kept in {run}.replaced until the new run has saved its first checkpoint" in said
    assert f"restored the old run in {run}" in said


def test_overwrite__with_a_rate_that_destroys_the_weights_gives_the_old_run_back(trained, run, capsys):
    before = content(run)
    failure(capsys, "train", trained / "photos", *QUICK, "--output", run, "--overwrite", "--lr", "1e300")
    assert content(run) == before


def test_overwrite__replaces_the_run_once_the_new_one_is_safe(trained, run):
    seen = []

    class Looks(Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            seen.append((aside_path(run).exists(), (run / "checkpoints" / "last.ckpt").exists()))

    (run / "summary.json").write_text('{"title": "old"}')
    settings = TrainSettings(
        data=str(trained / "photos"), img_size=[16], model_args=["depth=1"], epochs=2, workers=0, batch_size=8,
        output=str(run), overwrite=True,
    )  # fmt: skip
    begin(TrainingJob(), settings, {}, Console(), [Looks()])
    assert seen[0] == (True, False)
    assert all(aside != saved for aside, saved in seen[:-1])
    assert not aside_path(run).exists()
    assert json.loads((run / "summary.json").read_text())["title"] != "old"
    assert not (run / "lock.json").exists()


def test_overwrite__after_a_kill_the_next_call_gives_the_old_run_back(trained, run, capsys):
    before = content(run)
    move_aside(run)
    (run / "checkpoints").mkdir(parents=True)
    (run / "config.yaml").write_text("new")
    message = failure(capsys, "train", trained / "photos", *QUICK, "--output", run)
    assert "exists already" in message
    assert content(run) == before


@pytest.mark.parametrize("verb", ["train", "pretrain"])
def test_overwrite__refuses_what_is_not_only_a_run(verb, trained, run, tmp_path, monkeypatch, capsys):
    words = [verb, *QUICK, "--overwrite", "--output"]
    photos = make_photos(run / "plots" / "photos")
    before = content(tmp_path)
    assert "--data: " in failure(capsys, *words, run, photos)
    assert "is inside the run folder, which --overwrite would remove" in failure(capsys, *words, run, photos)
    assert "--init: " in failure(capsys, *words, run, trained / "photos", "--init", run)
    (tmp_path / "link").symlink_to("run")
    assert "is a link to 'run': name the run itself" in failure(capsys, *words, tmp_path / "link", trained / "photos")
    (tmp_path / "link").unlink()
    monkeypatch.chdir(run)
    assert "is the working directory" in failure(capsys, *words, ".", trained / "photos")
    assert content(tmp_path) == before


def test_live_run__is_neither_resumed_nor_overwritten(trained, run, capsys):
    (run / "summary.json").unlink()
    lock = RunLock(run)
    lock.acquire()
    before = content(run)
    assert "is being written by process" in failure(capsys, "train", "--resume", run)
    words = ["train", trained / "photos", *QUICK, "--output", run]
    assert "is being written by process" in failure(capsys, *words, "--overwrite")
    assert content(run) == before
    lock.release()


UNNAMEABLE = [
    ("", "is empty"),
    ("~nobody-of-that-name/x", "no such user"),
    ("file/run", "cannot be written (not a directory)"),
    ("x" * 300, "cannot be written (file name too long)"),
    ("/proc/run", "cannot be written"),
]


@pytest.mark.parametrize(("place", "message"), UNNAMEABLE)
def test_place__that_cannot_be_written_is_refused_by_every_verb(place, message, trained, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("x")
    photos, run = trained / "photos", trained / "run"
    calls = [
        ["train", photos, *QUICK, "--output", place],
        ["pretrain", photos, *QUICK, "--output", place],
        ["label", photos, "--teacher", run, "--output", place],
        ["eval", run, photos, "--output", place],
        ["eval", run, photos, "--protocol", "knn", "--output", place],
        ["label", photos, "--teacher", run, "--output", "maps", "--picture", place + ".png"],
        ["predict", run, photos, "--output", place],
    ]
    for words in calls if place else calls[:5]:
        sentence = failure(capsys, *words)
        assert message in sentence or "there is no folder" in sentence, sentence
        assert len(sentence) < 400
        assert sorted(os.listdir(tmp_path)) == ["file"]


def test_home__is_meant_by_its_sign(trained, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert call("predict", trained / "run", trained / "photos", "--output", "~/answers.csv") == 0
    assert (tmp_path / "answers.csv").exists()


NOBODY = "~nobody-of-that-name/x"


@pytest.mark.parametrize(
    "words",
    [
        ["train", NOBODY],
        ["train", "--init", NOBODY],
        ["train", "--labels", NOBODY],
        ["train", "--resume", NOBODY],
        ["pretrain", NOBODY],
        ["pretrain", "--monitor", NOBODY],
        ["eval", NOBODY],
        ["eval", "resnet18", NOBODY, "--protocol", "knn"],
        ["eval", "resnet18", "digits", "--protocol", "knn", "--cache", NOBODY],
        ["predict", "runs/1", NOBODY],
        ["label", NOBODY, "--teacher", "runs/1", "--output", "maps"],
        ["label", "digits", "--teacher", NOBODY, "--output", "maps"],
    ],
    ids=" ".join,
)
def test_home__of_nobody_is_one_sentence(words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert "there is no such user" in failure(capsys, *words)


def test_home__of_nobody_is_one_sentence_from_python():
    import paucal

    for changes in ({"data": NOBODY}, {"init": NOBODY}, {"output": NOBODY}):
        with pytest.raises(UserError, match="there is no such user"):
            paucal.train(**changes)


def test_place__among_the_images_is_refused_by_every_verb(trained, tmp_path, monkeypatch, capsys):
    photos, run = make_photos(tmp_path / "photos"), trained / "run"
    (tmp_path / "link").symlink_to(photos / "class0")
    before = content(tmp_path)
    for inside in (photos, photos / "runs" / "1", tmp_path / "link" / "run"):
        for words in (
            ["train", photos, *QUICK, "--output", inside],
            ["pretrain", photos, *QUICK, "--output", inside],
            ["pretrain", trained / "photos", "--monitor", photos, *QUICK, "--output", inside],
            ["label", photos, "--teacher", run, "--output", inside],
            ["label", photos, "--teacher", run, "--output", tmp_path / "m", "--picture", inside / "maps.png"],
            ["eval", run, photos, "--output", inside],
            ["eval", run, trained / "photos", photos, "--protocol", "knn", "--output", inside],
        ):
            assert "is inside the images of" in failure(capsys, *words), words
    monkeypatch.chdir(photos)
    assert "'runs' is inside the images" in failure(capsys, "train", ".", *QUICK)
    assert "is the name of an image" in failure(capsys, "predict", run, photos, "--output", photos / "class0" / "p.png")
    assert content(tmp_path) == before


def test_eval__replaces_its_own_results_only(trained, tmp_path, capsys):
    words = ["eval", trained / "run", trained / "photos", "--output"]
    for name in ("metrics.json", "segmentation.json", "predictions.csv", "confusion.png"):
        other = tmp_path / name.partition(".")[0]
        other.mkdir()
        (other / name).write_text('{"accuracy": 0.9}')
        message = failure(capsys, *words, other)
        assert f"{name}' would be replaced, but was not written by an evaluation with paucal" in message
        assert (other / name).read_text() == '{"accuracy": 0.9}'
    (tmp_path / "results.json").write_text("{}")
    assert "results.json' would be replaced" in failure(capsys, *words, tmp_path, "--protocol", "knn")
    assert call(*words, tmp_path / "own") == 0
    (tmp_path / "own" / "notes.txt").write_text("x")
    assert call(*words, tmp_path / "own") == 0
    assert (tmp_path / "own" / "notes.txt").exists()


def test_label__replaces_no_picture(labelled, tmp_path, capsys):
    (tmp_path / "holiday.png").write_text("x")
    words = ["label", labelled / "photos", "--teacher", labelled / "teacher", "--output", labelled / "maps"]
    message = failure(capsys, *words, "--img-size", "64", "--picture", tmp_path / "holiday.png")
    assert "--picture: " in message
    assert "exists already" in message
    assert (tmp_path / "holiday.png").read_text() == "x"


def test_disk__that_is_full_ends_a_run_with_a_sentence(trained, tmp_path, capsys):
    resource = pytest.importorskip("resource")
    run = tmp_path / "run"
    assert call("train", trained / "photos", *QUICK, "--time-limit", "0.01s", "--output", run) == 130
    before = (run / "checkpoints" / "last.ckpt").read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))  # no file may grow beyond, as on a full disk
    try:
        message = failure(capsys, "train", "--resume", run, "--time-limit", "1h")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "File too large" in message
    assert "run again" in message
    assert (run / "checkpoints" / "last.ckpt").read_bytes() == before
    assert not [file for file in run.rglob("*") if file.name.endswith(".tmp") or file.name == "lock.json"]
    assert call("train", "--resume", run) == 0


@pytest.fixture
def terminal():
    """Let SIGHUP have its usual meaning, also where the tests themselves run under `nohup`, which has it ignored."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("terminal")
def test_hangup__saves_and_goes_on(trained, tmp_path):
    class HangsUp(Callback):
        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            os.kill(os.getpid(), signal.SIGHUP)

    settings = TrainSettings(
        data=str(trained / "photos"), img_size=[16], model_args=["depth=1"], epochs=2, workers=0,
        output=str(tmp_path / "r"),
    )  # fmt: skip
    stopped = begin(TrainingJob(), settings, {}, Console(), [HangsUp()])
    assert (stopped.step, (tmp_path / "r" / "checkpoints" / "last.ckpt").exists()) == (1, True)
    assert not (tmp_path / "r" / "lock.json").exists()


def test_config__that_is_a_device_is_refused(capsys):
    assert "not a regular file (a folder, a pipe or a device)" in failure(capsys, "train", "--config", "/dev/zero")


@pytest.mark.parametrize(
    "words", [["train", "DATA", "--init", "LOOP", "--output", "RUN", "--overwrite"], ["eval", "RUN", "LOOP"]]
)
def test_link__that_leads_to_itself_is_one_sentence(words, trained, run, tmp_path, capsys):
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    places = {"DATA": trained / "photos", "LOOP": tmp_path / "loop", "RUN": run}
    before = content(run)
    assert "loop" in failure(capsys, *(places.get(word, word) for word in words))
    assert content(run) == before


@pytest.mark.parametrize(
    ("flags", "form"),
    [
        (["--output", "a.json"], "json"),
        (["--output", "a.JSON"], "json"),
        (["--output", "a.json", "--format", "json"], "json"),
        (["--output", "a.csv"], "csv"),
        (["--output", "a.txt"], "csv"),
        (["--output", "a"], "csv"),
        (["--output", "run.2024"], "csv"),
        (["--output", "a.txt", "--format", "json"], "json"),
    ],
)
def test_output__has_the_form_that_its_name_says(flags, form, trained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    image = trained / "photos" / "class0" / "0.png"
    assert call("predict", trained / "run", image, *flags) == 0
    content = Path(flags[1]).read_text()
    rows = json.loads(content) if form == "json" else list(csv.DictReader(content.splitlines()))
    assert [row["path"] for row in rows] == [str(image)]


ENDINGS = ["xlsx", "XLS", "ods", "parquet", "feather", "tsv", "jsonl", "yaml", "html", "pkl", "npz", "sqlite", "csv.gz"]


@pytest.mark.parametrize("ending", ENDINGS)
def test_output__of_another_form_is_refused_before_the_work(ending, trained, tmp_path, capsys):
    name = tmp_path / f"a.{ending}"
    for words in (["predict", trained / "run", trained / "photos"], ["runs", trained]):
        message = failure(capsys, *words, "--output", name)
        assert f"{str(name)!r} is the name of " in message
        assert "tables are written as .csv or .json" in message
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("name", "form"), [("a.json", "csv"), ("a.csv", "json")])
def test_output__that_contradicts_the_format_is_refused(name, form, trained, tmp_path, capsys):
    words = ["predict", trained / "run", trained / "photos", "--output", tmp_path / name, "--format", form]
    assert f"ends in .{name[2:]}, but --format is {form}: change --output or --format." in failure(capsys, *words)


def test_runs__are_written_as_the_name_says(trained, tmp_path):
    for name in ("a.json", "a.CSV"):
        assert call("runs", trained, "--output", tmp_path / name) == 0
    assert [row["run"] for row in json.loads((tmp_path / "a.json").read_text())] == ["run"]
    assert (tmp_path / "a.CSV").read_text().startswith("run,state,")
