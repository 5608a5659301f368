"""An archive of weights on another machine: a fresh environment with this package alone, and no network."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

import paucal
from tasks.classification.auto_tune.test_auto_tune import photos

ROOT = Path(__file__).parents[3]
ALONE = ["unshare", "--net", "--map-root-user"]  # a network without any device
NAMES = ("test_resnet.r160_in1k", "test_efficientnet.r160_in1k")


def call(*words, **options):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False, **options)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("uv") is None, reason="uv builds the package and the environment")
@pytest.mark.skipif(shutil.which("unshare") is None or call(*ALONE, "true")[0] != 0, reason="needs Linux namespaces")
def test_archives__are_added_and_raced_in_a_fresh_environment_without_a_network(tmp_path):
    import timm
    import torch

    for name in NAMES:
        torch.save(timm.create_model(name).state_dict(), tmp_path / f"{name}.pth")
        words = {"model": name, "licence": "Apache-2.0", "output": tmp_path / f"{name}.weights.zip"}
        paucal.pack_weights(tmp_path / f"{name}.pth", **words)
    code, said = call("uv", "build", "--wheel", "--out-dir", tmp_path / "wheel", cwd=ROOT)
    assert code == 0, said
    (wheel,) = (tmp_path / "wheel").glob("*.whl")
    assert call("uv", "venv", tmp_path / "venv")[0] == 0
    code, said = call("uv", "pip", "install", "--python", tmp_path / "venv/bin/python", wheel)
    if code:
        pytest.skip(f"the packages that this one needs cannot be installed: {said[-200:]}")
    own = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "HF_HUB_OFFLINE")}
    env = {**own, "HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    program = [*ALONE, tmp_path / "venv/bin/paucal"]
    for name in NAMES:
        code, said = call(*program, "weights", "add", tmp_path / f"{name}.weights.zip", env=env)
        assert code == 0, said
    data = photos(tmp_path / "photos", each=20)
    words = ["train", data, "--epochs", "0", "--img-size", "64", "-j", "0", "--output", tmp_path / "run"]
    code, said = call(*program, *words, env=env)
    assert code == 0, said
    assert all(f"trying {name}" in said or name in (tmp_path / "run/rungs.json").read_text() for name in NAMES)
