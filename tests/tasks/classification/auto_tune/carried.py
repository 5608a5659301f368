"""A package that carries a small network, as the extra `weights` does with real ones."""

import hashlib

import timm
import torch

from paucal.models.weights import table
from paucal.models.weights.table import Package, PretrainedWeights

MODEL = "test_resnet"
# Given with a rate they leave one way to tune, so that no trial is made.
ONE_WAY = {"freeze": 2, "eval_mode": True, "crop_scale": 0.5}


def install(tmp_path, monkeypatch, models=(MODEL,)):
    """Make packages of weights that can be found, and nothing else; no network is asked."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    site, found = tmp_path / "site", []
    for number, model in enumerate(models):
        folder = site / f"carried_{number}"
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text("raise SystemExit('never imported')")
        torch.manual_seed(3 + number)
        file = folder / "small.pth"
        torch.save(timm.create_model(model).state_dict(), file)
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        package = Package(f"carried-{number}", f"carried_{number}", "small.pth", digest, file.stat().st_size)
        tag = timm.get_pretrained_cfg(model).tag
        found.append(PretrainedWeights(f"{model}.{tag}", "MIT", 1, "made by a test", "cpu", package))
    monkeypatch.setattr(table, "CANDIDATES", tuple(found))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    monkeypatch.syspath_prepend(str(site))
    return found
