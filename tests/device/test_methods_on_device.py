"""A short run of every method on an accelerator, in every precision, stopped, resumed and compiled."""

import json
import math

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file

from device import calls
from device.machine import DEVICE, PRECISIONS, apart, marks, only, require
from paucal.methods.names import EXTRA_LOSSES, PRETRAINING_METHODS, TRAINING_METHODS
from paucal.models.trained import load_trained

pytestmark = marks()
each = pytest.mark.parametrize("method", calls.METHODS)
precisely = pytest.mark.parametrize("precision", PRECISIONS)
# Of the weights after six steps: AdamW carries what was rounded differently further apart.
DRIFT = {"32-true": 1e-2, "bf16-mixed": 5e-2, "16-mixed": 5e-2}


def test_every_method_and_loss__has_a_command():
    words = {word for _, flags, _ in calls.METHODS.values() for word in flags}
    assert {*TRAINING_METHODS, *EXTRA_LOSSES, *PRETRAINING_METHODS} - words <= {"self-distillation"}  # the default


@each
@precisely
def test_run__reports_every_loss_and_leaves_a_model(method, precision, things, tmp_path):
    require(precision)
    run = tmp_path / "run"
    assert calls.run(*calls.command(method, things, run, "--precision", precision)) == 0
    rows = calls.rows(run)
    assert len(rows) == 2
    for loss in calls.METHODS[method][2]:
        assert all(math.isfinite(row[f"train_{loss}"]) for row in rows)
    settings = yaml.safe_load((run / "config.yaml").read_text())["settings"]
    assert (settings["device"], settings["precision"]) == (DEVICE, precision)
    assert json.loads((run / "summary.json").read_text())["seconds"] > 0
    weights = load_file(run / "model.safetensors")
    assert all(torch.isfinite(value).all() for value in weights.values() if value.is_floating_point())
    assert {value.dtype for value in weights.values()} <= {torch.float32, torch.int64}
    assert load_trained(run, DEVICE).device.type == DEVICE


@each
@precisely
def test_resumed_run__equals_one_that_was_never_stopped(method, precision, things, tmp_path):
    require(precision)
    if precision == "16-mixed" and method != "pretrain":
        pytest.skip("the scale of float16 goes on alike for all methods: shown by pretrain and the toys")
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert calls.run(*calls.command(method, things, whole, "--precision", precision)) == 0
    calls.interrupted(method, things, parts, "--precision", precision)
    one, other = (load_file(run / "model.safetensors") for run in (whole, parts))
    assert one.keys() == other.keys()
    flat = [torch.cat([value.double().flatten() for value in weights.values()]) for weights in (one, other)]
    assert apart(*flat) < (DRIFT[precision] if DEVICE != "cpu" else 1e-12)
    steps = [[row["step"] for row in calls.rows(run)] for run in (whole, parts)]
    assert steps[0] == steps[1]


@each
def test_compiled_run__ends_near_the_other(method, things, tmp_path):
    torch.compiler.reset()
    plain, compiled = tmp_path / "plain", tmp_path / "compiled"
    assert calls.run(*calls.command(method, things, plain, "--precision", "32-true")) == 0
    assert calls.run(*calls.command(method, things, compiled, "--precision", "32-true", "--compile")) == 0
    for one, other in zip(calls.rows(plain), calls.rows(compiled), strict=True):
        for loss in calls.METHODS[method][2]:
            assert other[f"train_{loss}"] == pytest.approx(one[f"train_{loss}"], rel=0.1)


@pytest.mark.parametrize("method", ["supervised", "token-labeling"])
def test_batch_size_auto__trains(method, things, tmp_path):
    run = tmp_path / "run"
    words = calls.command(method, things, run)
    assert calls.run(*words, "--batch-size", "auto") == 0
    settings = yaml.safe_load((run / "config.yaml").read_text())
    reason = settings["origin"]["batch_size"]
    assert ("fits in memory" in reason) == (DEVICE == "cuda")
    assert ("only the memory of a GPU is tested" in reason) == (DEVICE != "cuda")


def test_run__without_flags_takes_the_device(things, tmp_path):
    words = [word for word in calls.command("supervised", things, tmp_path / "run") if word not in ("--device", DEVICE)]
    assert calls.run(*words) == 0
    settings = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["settings"]
    assert settings["device"] == DEVICE
    if DEVICE == "cuda":
        capable = torch.cuda.is_bf16_supported(including_emulation=False)
        assert settings["precision"] == ("bf16-mixed" if capable else "32-true")
        environment = json.loads((tmp_path / "run" / "env.json").read_text())
        assert environment["accelerator"] == torch.cuda.get_device_name()


def test_run__goes_on_on_the_cpu(things, tmp_path):
    run = tmp_path / "run"
    words = calls.command("drloc", things, run, "--precision", "32-true", "--time-limit", "0.01s")
    assert calls.run(*words) == 130
    assert calls.run("train", "--resume", run, "--device", "cpu", "--time-limit", "1h") == 0
    assert len(calls.rows(run)) == 2


def test_run__with_mixing_and_loader_processes(things, tmp_path):
    words = calls.command("drloc", things, tmp_path / "run", "--mixup", "0.8", "--cutmix", "1.0", "-j", "2")
    assert calls.run(*words) == 0
    assert math.isfinite(calls.rows(tmp_path / "run")[-1]["val_top1"])


def test_fine_tuning__from_a_run(things, tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    assert calls.run(*calls.command("pretrain", things, first)) == 0
    words = ["train", things.photos, "--init", first, "--device", DEVICE, "--epochs", "2", "-b", "8", "-j", "0"]
    assert calls.run(*words, "--layer-decay", "0.7", "--freeze-epochs", "1", "--output", second) == 0
    assert (second / "model.safetensors").exists()


def test_pretraining__watches_a_monitor(things, tmp_path):
    run = tmp_path / "run"
    words = calls.command("pretrain", things, run, "--monitor", "digits", "--monitor-images", "80")
    assert calls.run(*words, "--epochs", "1") == 0
    assert 0 <= calls.rows(run)[0]["val_knn"] <= 1


def test_maps__are_those_of_the_cpu(things, tmp_path):
    words = ["label", things.photos, "--teacher", things.cnn, "--min-accuracy", "0", "--img-size", "32"]
    assert calls.run(*words, "--device", "cpu", "--output", tmp_path / "maps") == 0
    there, here = (np.load(folder / "values.npy").astype(float) for folder in (things.maps, tmp_path / "maps"))
    assert np.abs(there - here).max() < 0.05
    same = np.load(things.maps / "indices.npy") == np.load(tmp_path / "maps" / "indices.npy")
    assert same.mean() > 0.98


@only("cuda")
@pytest.mark.parametrize(
    "more", [["--sync-bn"], ["--strategy", "fsdp"], ["--compile"]], ids=["ddp", "fsdp", "compiled"]
)
def test_two_devices__train_one_run(more, things, tmp_path):
    if torch.cuda.device_count() < 2:
        pytest.skip("NCCL gives no two processes one GPU: this needs two GPUs")
    import subprocess
    import sys

    words = calls.command("drloc", things, tmp_path / "run", "--devices", "2", "-b", "4", *more)
    subprocess.run([sys.executable, "-m", "paucal.cli.main", *map(str, words)], check=True, timeout=400)
    assert len(calls.rows(tmp_path / "run")) == 2
