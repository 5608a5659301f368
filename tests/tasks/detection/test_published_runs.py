"""Runs of the published detectors at a small size: stopped and resumed, stored and read back."""

from pathlib import Path
from typing import Any

import pytest
import torch

from paucal.recipes.detection import RECIPES
from paucal.runner.console import SilentConsole
from paucal.runner.life import Stopped, begin, resume
from paucal.runs import RunFolder
from paucal.runs.weights import load_checkpoint, read_weights
from paucal.tasks.detection.job import DetectionJob, detect
from paucal.tasks.detection.model import load_detector
from paucal.tasks.detection.settings import DetectSettings, detector_options
from paucal.verbs.predict.detection import detect_objects
from tasks.detection.outlined import write_outlined
from tasks.pretraining.short_runs import StopAfter

SWIN = ["embed_dim=12", "depths=[1,2,2,1]", "num_heads=[1,2,2,3]"]
SMALL = {
    **{"model_args": SWIN, "img_size": [64, 96], "batch_size": 2, "device": "cpu", "devices": 1, "workers": 0},
    **{"pyramid_channels": 16, "head_dim": 16, "regions": 32, "proposals": 40, "candidates": 80, "lr": 1e-3},
    **{"steps": 4, "judge_every": 2},
}


def published(kind: str) -> dict[str, Any]:
    """Return the settings of a recipe at a small size, from random weights."""
    settings = {name: value for name, value in RECIPES[f"{kind}-coco-1x"].settings.items() if name != "val_fraction"}
    return {**{name: value for name, value in settings.items() if name not in ("epochs", "milestones")}, **SMALL}


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_outlined(tmp_path_factory.mktemp("outlines") / "set", 16).parent


@pytest.mark.parametrize("kind", [pytest.param("detector", marks=pytest.mark.slow), "cascade"])
@pytest.mark.slow
def test_published_detectors__train_resume_and_come_back(kind: str, images: Path, tmp_path: Path):
    whole = detect(images, output=str(tmp_path / "whole"), init="none", **published(kind))
    run = RunFolder(whole.folder)
    losses = {name for name in run.read_rows()[0] if name.startswith("train_")}
    names = ("class", "box", "mask")
    assert {
        f"train_{name}{end}" for name in names for end in (("_1", "_2", "_3") if kind == "cascade" else ("",))
    } <= losses

    settings = DetectSettings(data=str(images), output=str(tmp_path / "stopped"), **published(kind))
    stopped = begin(DetectionJob(), settings, dict.fromkeys(published(kind), "flag"), SilentConsole(), [StopAfter(3)])
    assert isinstance(stopped, Stopped)
    resume(DetectionJob(), stopped.run, SilentConsole())
    ours, theirs = (read_weights(folder / "model.safetensors") for folder in (stopped.run, whole.folder))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items())
    states = [load_checkpoint(folder / "checkpoints" / "last.ckpt")["state_dict"] for folder in (stopped.run, run.path)]
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())

    detector, card, _ = load_detector(run)
    stored = detector_options(DetectSettings(**{**published(kind), "masks": "on"}))
    assert card.options == detector.options == stored
    assert card.backbone.name == "padded_swin_tiny_patch4_window7_224"
    first = run.read_json("evaluation/detection/detections.json")
    expected = [one for one in first["annotations"] if one["image_id"] == first["images"][0]["id"]]
    row = detect_objects(run.path, [str(images / first["images"][0]["file_name"])])[0]
    assert len(row.found) == len(expected)
    assert sorted(row.found.scores.tolist()) == pytest.approx(sorted(one["score"] for one in expected), abs=1e-3)
