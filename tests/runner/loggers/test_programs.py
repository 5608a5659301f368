"""The three programs themselves, each read back with its own means; skipped where they are not installed."""

import json
import math
import os
import struct
import subprocess
import sys
import time

import pytest

import paucal
from cli.calls import QUICK, make_photos
from paucal.runner.console import SilentConsole
from paucal.runner.life import begin, resume
from paucal.runs import RunFolder
from paucal.tasks.classification.job import TrainingJob
from runner.loggers.test_filling import SHORT, settings_of
from tasks.pretraining.short_runs import StopAfter

# Their own use of older interfaces of others.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::PendingDeprecationWarning")


@pytest.fixture(autouse=True)
def _no_network(monkeypatch):
    for name, value in {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "DO_NOT_TRACK": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "WANDB_PROJECT", "WANDB_DIR"):
        monkeypatch.delenv(name, raising=False)


def stopped_and_resumed(photos, output, logger):
    """Return the result of a run that was stopped in its second epoch, and went on."""
    settings, given = settings_of(photos, output, logger=[logger])
    begin(TrainingJob(), settings, given, SilentConsole(), [StopAfter(4)])
    return resume(TrainingJob(), output, SilentConsole())


def rows_of(run, name):
    return [(int(row["step"]), row[name]) for row in run.history]


@pytest.fixture
def photos(tmp_path):
    return make_photos(tmp_path / "photos", classes=2, each=30)


@pytest.mark.slow
def test_tensorboard__has_every_epoch_once_and_the_settings_with_the_scores(photos, tmp_path):
    pytest.importorskip("tensorboard", reason="the extra tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = stopped_and_resumed(photos, tmp_path / "my run", "tensorboard")
    events = EventAccumulator(str(tmp_path / "my run" / "tensorboard"))
    events.Reload()
    for name in ("train_loss", "val_top1", "lr"):
        assert [(one.step, one.value) for one in events.Scalars(name)] == [
            (step, pytest.approx(value, rel=1e-6)) for step, value in rows_of(run, name)
        ]
    (top1,) = events.Scalars("test_top1")
    assert top1.value == pytest.approx(run.metrics["top1"])
    assert "_hparams_/session_start_info" in events.summary_metadata
    text = str(events.summary_metadata["_hparams_/session_start_info"])
    assert "batch_size" in text
    assert "vit_mini" in text


def test_tensorboard__refuses_a_folder_that_it_would_take_for_a_variable(photos, tmp_path, monkeypatch):
    pytest.importorskip("tensorboard", reason="the extra tensorboard is not installed")
    monkeypatch.setenv("ELSEWHERE", "other")
    with pytest.raises(paucal.UserError, match="expand an environment variable"):
        paucal.train(photos, output=tmp_path / "$ELSEWHERE", logger=["tensorboard"], **SHORT)
    assert not (tmp_path / "other").exists()


@pytest.mark.slow
def test_mlflow__has_every_epoch_once_the_settings_and_the_scores(photos, tmp_path):
    pytest.importorskip("mlflow", reason="the extra mlflow is not installed")
    pytest.importorskip("sqlalchemy", reason="mlflow-skinny has no store of its own")
    from mlflow.tracking import MlflowClient

    run = stopped_and_resumed(photos, tmp_path / "my run", "mlflow")
    client = MlflowClient(f"sqlite:///{tmp_path / 'my run' / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("paucal")
    assert experiment is not None
    (found,) = client.search_runs([experiment.experiment_id])
    assert found.info.run_id == RunFolder(run.folder).read_json("loggers.json")["ids"]["mlflow"]
    assert (found.info.status, found.info.run_name) == ("FINISHED", "my run")
    for name in ("train_loss", "val_top1"):
        told = [(one.step, one.value) for one in client.get_metric_history(found.info.run_id, name)]
        assert told == [(step, pytest.approx(value)) for step, value in rows_of(run, name)]
    assert found.data.metrics["test_top1"] == pytest.approx(run.metrics["top1"])
    assert (found.data.params["model"], found.data.params["lr"]) == ("vit_mini", "0.002")
    assert not (tmp_path / "mlruns").exists()


@pytest.mark.slow
def test_mlflow__goes_where_its_own_variable_says(photos, tmp_path, monkeypatch):
    pytest.importorskip("mlflow", reason="the extra mlflow is not installed")
    pytest.importorskip("sqlalchemy", reason="mlflow-skinny has no store of its own")
    from mlflow.tracking import MlflowClient

    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'ours.db'}")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "flowers")
    monkeypatch.chdir(tmp_path)  # without a server, artifacts of such a store lie where one stands
    paucal.train(photos, output=tmp_path / "run", logger=["mlflow"], **{**SHORT, "epochs": 1})
    assert MlflowClient(f"sqlite:///{tmp_path / 'ours.db'}").get_experiment_by_name("flowers") is not None
    assert not (tmp_path / "run" / "mlflow.db").exists()


@pytest.mark.slow
def test_wandb__has_every_epoch_once_the_settings_and_the_scores_under_one_id(photos, tmp_path):
    pytest.importorskip("wandb", reason="the extra wandb is not installed")
    run = stopped_and_resumed(photos, tmp_path / "run", "wandb")
    number = RunFolder(run.folder).read_json("loggers.json")["ids"]["wandb"]
    files = sorted((run.folder / "wandb").glob(f"offline-run-*/run-{number}.wandb"))
    assert len(list((run.folder / "wandb").glob("offline-run-*"))) == len(files) == 2
    records = [record for path in files for record in finished_records(path)]
    told = [history(record) for record in records if record.HasField("history")]
    for name in ("train_loss", "val_top1"):
        values = [(row["trainer/global_step"], row[name]) for row in told if name in row]
        assert values == [(step, pytest.approx(value)) for step, value in rows_of(run, name)]
    (top1,) = [row["test_top1"] for row in told if "test_top1" in row]
    assert top1 == pytest.approx(run.metrics["top1"])
    stored = [item for record in records if record.HasField("config") for item in record.config.update]
    assert {item.key: json.loads(item.value_json) for item in stored}["model"] == "vit_mini"
    assert [record.exit.exit_code for record in records if record.HasField("exit")] == [1, 0]


def finished_records(path):
    """Return all records of a run, once the program's own process has written them."""
    for _ in range(100):
        found = list(wandb_records(path))
        if any(record.HasField("exit") for record in found):
            return found
        time.sleep(0.2)
    raise AssertionError(f"{path} has no end")


def wandb_records(path):
    """Yield the records of a file in the log format of LevelDB, which W&B uses with 7 bytes before it."""
    from wandb.proto import wandb_internal_pb2

    data, place, parts = path.read_bytes(), 7, b""
    while place + 7 <= len(data):
        left = 32768 - place % 32768
        if left < 7:  # too few for a header: the block ends in zeros
            place += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, place)
        if place + 7 + length > len(data):
            return
        parts += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part of one
            yield wandb_internal_pb2.Record.FromString(parts)
            parts = b""


def history(record):
    found = {item.key or "/".join(item.nested_key): item.value_json for item in record.history.item}
    return {name: json.loads(text) for name, text in found.items() if not math.isnan(json.loads(text))}


@pytest.mark.slow
def test_two_processes__fill_one_log(tmp_path):
    pytest.importorskip("tensorboard", reason="the extra tensorboard is not installed")
    words = ["train", *QUICK, "--batch-size", "32", "--output", "run", "--devices", "2", "--logger", "tensorboard"]
    command = [sys.executable, "-m", "paucal.cli.main", *words]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, cwd=tmp_path, timeout=300, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("tensorboard: logging to") == 1
    assert len(list((tmp_path / "run" / "tensorboard").glob("events.*"))) == 1
