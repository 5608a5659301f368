"""Several processes on one machine, started by paucal or by torchrun."""

import os
import subprocess
import sys

import pytest
import yaml
from PIL import Image

from cli.calls import QUICK, table

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
    assert done.stdout.count("the region task joins") == 1
    assert done.stdout.count("pre-trained:") == 1
    rows = table(tmp_path / "run" / "metrics.csv")
    assert [float(row["step"]) for row in rows] == [1797 // 256, 2 * (1797 // 256)]
    assert [bool(row["train_region"]) for row in rows] == [False, True]
    assert all(0 < float(row["val_knn"]) <= 1 for row in rows)
    assert (tmp_path / "run" / "report.html").exists()
