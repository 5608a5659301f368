"""Pre-training that goes on from trained weights: careful settings, and a stop where it makes them worse."""

import json
from types import SimpleNamespace

import pytest
import torch
import yaml

from paucal.methods.pretraining import resolve_pretraining
from paucal.methods.pretraining_settings import PretrainSettings
from paucal.models.trained import load_trained
from paucal.rules.resolve import DataAndMachine, InitialWeightsInfo
from paucal.runner.console import SilentConsole
from paucal.runner.life import Stopped, begin, resume
from paucal.runs import RunFolder
from paucal.tasks.pretraining.job import PretrainingJob
from paucal.tasks.pretraining.monitor import KNN_SCORE
from paucal.tasks.pretraining.stage_watch import expects_healthy_start, health_scale
from tasks.pretraining.short_runs import StopAfter

TRAINED = InitialWeightsInfo("timm's weights", normalise="model")
LITTLE = InitialWeightsInfo("runs/1", "resnet18", images_seen=20_000)
SMALL = {
    **{"model": "test_resnet", "img_size": [32], "local_crops": [2], "local_size": [16], "batch_size": 8},
    **{"epochs": 3, "device": "cpu", "workers": 0},
}


def chosen(start_facts, method, device="cuda", n_train=3000):
    facts = DataAndMachine(n_train, 0, 400, device=device, initial_weights=start_facts, n_images=n_train)
    return resolve_pretraining(PretrainSettings(method=method, model="resnet18", batch_size=32), facts)


@pytest.mark.parametrize("method", ["lejepa", "visreg", "diet"])
def test_trained_weights__get_a_low_rate_few_passes_and_frozen_stages(method):
    settings, reasons = chosen(TRAINED, method)
    assert (settings.lr, settings.epochs, settings.freeze) == (1e-4, 30, 2)
    assert chosen(TRAINED, method, "cpu")[0].epochs == 5
    assert chosen(TRAINED, method, "cpu", 30_000)[0].epochs == 3
    assert all(reasons[name].startswith("pretrained weights") for name in ("lr", "epochs", "freeze"))


@pytest.mark.parametrize("method", ["lejepa", "visreg", "diet"])
@pytest.mark.parametrize("facts", [None, LITTLE])
def test_random_and_hardly_trained_weights__are_trained_as_ever(method, facts):
    settings, _ = chosen(facts, method)
    assert (settings.epochs, settings.freeze) == (300, 0)
    assert settings.lr > 1.5e-4


def test_diet__has_a_class_for_each_image_and_no_local_crops():
    settings, _ = chosen(None, "diet")
    assert (settings.diet_classes, settings.local_crops, settings.diet_smoothing) == (3000, [0], 0.8)
    assert chosen(None, "diet", n_train=100_000)[0].diet_classes == 65536


def run(pictures, output, method, callbacks=(), **changes):
    given = {**SMALL, "method": method, "data": str(pictures), "output": str(output), **changes}
    given = {name: value for name, value in given.items() if value is not None}
    return begin(PretrainingJob(), PretrainSettings(**given), dict.fromkeys(given, "flag"), SilentConsole(), callbacks)


@pytest.mark.parametrize(("method", "column"), [("visreg", "train_shape"), ("diet", "train_image")])
def test_method__trains_a_run_that_can_be_loaded(pictures, tmp_path, method, column):
    result = run(pictures, tmp_path / "run", method, epochs=2)
    assert not isinstance(result, Stopped)
    rows = RunFolder(result.folder).read_rows()
    assert len(rows) == 2
    assert all(torch.isfinite(torch.tensor(row[column])) for row in rows)
    assert rows[-1]["feature_spread"] > 0
    assert load_trained(result.folder).module(torch.zeros(1, 3, 32, 32)).shape == (1, 96)
    assert yaml.safe_load((result.folder / "config.yaml").read_text())["settings"]["freeze"] == 0


@pytest.fixture(scope="module")
def begun(pictures, tmp_path_factory):
    """The folder of a run of one epoch, to start from."""
    result = run(pictures, tmp_path_factory.mktemp("begun") / "run", "lejepa", epochs=1)
    assert not isinstance(result, Stopped)
    return result.folder


@pytest.mark.parametrize(("scores", "ends"), [([0.9, 0.5, 0.5, 0.5], 2), ([0.9, 0.5, 0.895, 0.5, 0.91], None)])
def test_run__stops_where_it_makes_its_trained_weights_worse(pictures, begun, tmp_path, monkeypatch, scores, ends):
    trained_enough(monkeypatch)
    left = iter(scores)  # of the start, then of the epochs
    monkeypatch.setattr("paucal.tasks.pretraining.assembly.open_monitor", lambda *_: lambda *_: {KNN_SCORE: next(left)})
    given = {"init": str(begun), "epochs": len(scores) - 1, "model": None}
    ended = run(pictures, tmp_path / "run", "lejepa", **given)
    assert json.loads((tmp_path / "run" / "monitor.json").read_text()) == {KNN_SCORE: 0.9}
    assert len(RunFolder(tmp_path / "run").read_rows()) == (ends or len(scores) - 1)
    assert isinstance(ended, Stopped) == (ends is not None)
    said = "training makes the weights worse: nearest neighbours classify 50.0 % of the monitor's images"
    assert (said in (tmp_path / "run" / "train.log").read_text()) == (ends is not None)


def trained_enough(monkeypatch):
    """Let weights of short runs count as trained."""
    monkeypatch.setattr("paucal.rules.resolve.UNDERTRAINED_IMAGES", 0)


def test_resumed_run__remembers_the_epochs_that_made_its_weights_worse(pictures, begun, tmp_path, monkeypatch):
    trained_enough(monkeypatch)
    left = iter([0.9, 0.5, 0.5, 0.5])
    monkeypatch.setattr("paucal.tasks.pretraining.assembly.open_monitor", lambda *_: lambda *_: {KNN_SCORE: next(left)})
    given = {"init": str(begun), "epochs": 4, "model": None}
    assert isinstance(run(pictures, tmp_path / "run", "lejepa", [StopAfter(5)], **given), Stopped)
    assert len(RunFolder(tmp_path / "run").read_rows()) == 1
    assert isinstance(resume(PretrainingJob(), tmp_path / "run", SilentConsole()), Stopped)
    assert len(RunFolder(tmp_path / "run").read_rows()) == 2
    assert "makes the weights worse" in (tmp_path / "run" / "train.log").read_text()


@pytest.mark.parametrize(
    ("method", "undertrained", "settled"),
    [
        *(("lejepa", False, True), ("visreg", False, True), ("diet", False, True)),
        *(("self-distillation", False, False), ("lejepa", True, False), ("lejepa", None, False)),
    ],
)
def test_grace__is_left_out_only_for_trained_features_without_new_heads(method, undertrained, settled):
    setup = SimpleNamespace(
        settings=PretrainSettings(method=method, warmup_epochs=1.0),
        plan=SimpleNamespace(steps_per_epoch=10, total_steps=1000),
        objective=SimpleNamespace(backbones=lambda: [SimpleNamespace(dim=8)]),
        load_report=None if undertrained is None else SimpleNamespace(undertrained=undertrained),
    )
    assert expects_healthy_start(setup) is settled
    assert (health_scale(setup).grace_steps == 0) is settled


def test_record_of_the_start__keeps_whether_its_weights_are_undertrained(pictures, begun, tmp_path):
    run(pictures, tmp_path / "run", "lejepa", init=str(begun), epochs=1, model=None)
    assert json.loads((tmp_path / "run" / "init.json").read_text())["undertrained"] is True
