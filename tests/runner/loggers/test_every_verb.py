"""Every verb that makes a run fills the loggers: what they hold is what lies in the run."""

import json
from pathlib import Path

import pytest

import paucal
from cli.calls import SMALL as SEGMENTER
from cli.calls import call, make_photos, make_scenes
from paucal.runs import RunFolder
from tasks.detection.made import write_coco
from tasks.detection.test_detect_runs import TINY as DETECTOR
from tasks.pretraining.short_runs import SMALL as PRETRAINING

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::PendingDeprecationWarning"),
]


def detected(base: Path, output: Path) -> dict[str, str]:
    images = write_coco(base / "boxes", 20).parent
    paucal.detect(images, output=str(output), steps=4, judge_every=2, logger=["tensorboard"], **DETECTOR)
    return {"test_ap": "test_ap", "test_ap50": "test_ap50"}


def segmented(base: Path, output: Path) -> dict[str, str]:
    words = [*SEGMENTER, "--epochs", "2", "--lr", "0.01", "--logger", "tensorboard", "--output", output]
    assert call("segment", make_scenes(base / "scenes"), *words) == 0
    return {"test_mean_iou": "test_mean_iou"}


def pretrained(base: Path, output: Path) -> dict[str, str]:
    photos = make_photos(base / "photos", classes=2, each=20)
    paucal.pretrain(photos, output=str(output), logger=["tensorboard"], **{**PRETRAINING, "epochs": 2})
    return {}


@pytest.mark.parametrize("make", [detected, segmented, pretrained])
def test_tensorboard__has_the_rows_the_scores_and_the_settings(make, tmp_path):
    pytest.importorskip("tensorboard", reason="the extra tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    output = tmp_path / "run"
    scores = make(tmp_path, output)
    run = RunFolder(output)
    events = EventAccumulator(str(output / "tensorboard"))
    events.Reload()
    rows = run.read_rows()
    losses = [name for name in rows[0] if name.startswith("train_")]
    assert losses
    for name in losses:
        logged = [(one.step, one.value) for one in events.Scalars(name)]
        assert logged == [(row["step"], pytest.approx(row[name], rel=1e-6)) for row in rows]
    summary = json.loads((output / "summary.json").read_text())
    for name, stored in scores.items():
        (score,) = events.Scalars(name)
        assert score.value == pytest.approx(summary[stored])
    assert str(run.settings["model"]) in str(events.summary_metadata["_hparams_/session_start_info"])
