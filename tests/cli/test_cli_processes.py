"""Several processes on one machine, started by paucal or by torchrun."""

import os
import subprocess
import sys

import pytest
import torch.nn.functional as F
import yaml
from PIL import Image

from cli.calls import QUICK, table
from paucal.data.loader import make_eval_loader
from paucal.data.splits.split_csv import read_split
from paucal.evaluation.predictions import predict_all
from paucal.models.trained import load_trained
from paucal.runner.images import open_again
from paucal.runs import RunFolder

TORCHRUN = ["--standalone", "--nproc-per-node=2", "-m", "paucal.cli.main"]


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["auto", "fsdp"])
@pytest.mark.parametrize("launch", [["-m", "paucal.cli.main"], ["-m", "torch.distributed.run", *TORCHRUN]])
def test_two_processes__write_one_run_with_the_joint_batch(launch, strategy, tmp_path):
    import paucal

    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    flags = ["--strategy", strategy]
    flags += ["--devices", "2"] if "torch.distributed.run" not in launch else []
    command = [sys.executable, *launch, "train", *QUICK, "--batch-size", "32", "--output", "run", *flags]
    done = subprocess.run(command, env=environment, cwd=tmp_path, timeout=300, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("test accuracy:") == 1
    run = tmp_path / "run"
    config = yaml.safe_load((run / "config.yaml").read_text())["settings"]
    assert (config["devices"], config["nodes"]) == (2, 1)
    assert config["strategy"] == ("ddp" if strategy == "auto" else "fsdp")
    rows = table(run / "metrics.csv")
    assert [float(row["step"]) for row in rows] == [1259 // 64, 2 * (1259 // 64)]
    assert len(table(run / "evaluation/test/predictions.csv")) == 359
    model = paucal.load(run)  # refuses weights that are not in one piece
    assert model.probabilities([Image.new("RGB", (16, 16))]).shape == (1, 10)


@pytest.mark.slow
@pytest.mark.parametrize("launch", [["-m", "paucal.cli.main"], ["-m", "torch.distributed.run", *TORCHRUN]])
def test_two_processes__pretrain_together_and_let_the_region_task_join(launch, tmp_path):
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    small = ["--model-args", "depth=1", "embed_dim=16", "num_heads=2", "--out-dim", "32", "--head-norm", "none"]
    flags = [*small, "--batch-size", "128", "--epochs", "2", "--region-after", "1", "--monitor-data", "digits"]
    flags += ["--monitor-images", "80", "--local-crops", "1", "--output", "run"]
    flags += ["--devices", "2"] if "torch.distributed.run" not in launch else []
    command = [sys.executable, *launch, "pretrain", *flags]
    done = subprocess.run(command, env=environment, cwd=tmp_path, timeout=300, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("the region task starts") == 1
    assert done.stdout.count("pre-trained:") == 1
    rows = table(tmp_path / "run" / "metrics.csv")
    assert [float(row["step"]) for row in rows] == [1797 // 256, 2 * (1797 // 256)]
    assert [bool(row["train_region"]) for row in rows] == [False, True]
    assert all(0 < float(row["val_knn"]) <= 1 for row in rows)
    assert (tmp_path / "run" / "report.html").exists()


@pytest.mark.slow
def test_two_processes__judge_the_batch_norms_that_are_stored(tmp_path):
    """Each process scores its part of the images; in the last step its batch norms have seen another batch."""
    flags = ["--model", "test_resnet", "--init", "none", "--method", "supervised", "--img-size", "16", "--seed", "1"]
    flags += ["--epochs", "1", "--batch-size", "16", "--average", "0", "--soup", "0", "--calibrate", "none", "-j", "0"]
    command = [sys.executable, "-m", "paucal.cli.main", "train", "digits", *flags, "--devices", "2", "--output", "run"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, cwd=tmp_path, timeout=300, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    run, model = RunFolder(tmp_path / "run"), load_trained(tmp_path / "run")
    images = open_again(run)
    rows = read_split(run.split, images).indices("val")
    loader = make_eval_loader(images, rows, model.card.preprocessing.transform(), 16, 0)
    found = predict_all(model.module, loader, "cpu")
    stored = run.read_rows()[0]["val_loss"]
    # Each process's own batch norms give 0.0003 less.
    assert stored == pytest.approx(float(F.cross_entropy(found.logits, found.labels)), abs=1e-5)
