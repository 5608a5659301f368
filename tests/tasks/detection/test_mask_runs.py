"""Runs that learn masks: from outlines to files, stopped and resumed, and used on images."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from paucal.cli.main import main
from paucal.runner.console import SilentConsole
from paucal.runner.initial_weights import without_none_init
from paucal.runner.life import Stopped, begin, resume
from paucal.runs import RunFolder
from paucal.runs.weights import load_checkpoint, read_weights
from paucal.tasks.detection.assembly import assemble
from paucal.tasks.detection.job import DetectionJob, detect
from paucal.tasks.detection.masks import RunLengths, unpack_mask
from paucal.tasks.detection.settings import DetectSettings
from paucal.types import UserError
from paucal.verbs.predict.detection import detect_objects
from tasks.curves import unrendered_curves
from tasks.detection.made import change, write_coco
from tasks.detection.outlined import write_outlined
from tasks.pretraining.short_runs import StopAfter

TINY = {
    **{"model": "test_resnet", "init": "none", "img_size": [96], "batch_size": 2, "device": "cpu", "workers": 0},
    **{"pyramid_channels": 16, "head_dim": 16, "regions": 32, "proposals": 64, "finest": 8, "anchor": 4},
    "copy_paste": 0.5,
}
GIVEN = dict.fromkeys(TINY, "flag")


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_outlined(tmp_path_factory.mktemp("outlines") / "set", 20).parent


@pytest.fixture(scope="module")
def finished(images: Path, tmp_path_factory: pytest.TempPathFactory, drawing: Any, fast_tier: bool) -> Path:
    run = tmp_path_factory.mktemp("runs") / "whole"
    with drawing(), unrendered_curves(fast_tier):
        detect(images, output=str(run), steps=4, judge_every=2, **TINY)
    return run


def test_run__leaves_the_scores_and_pictures_of_masks(finished: Path):
    run = RunFolder(finished)
    summary, rows = run.read_json("summary.json"), run.read_rows()
    assert {"val_ap", "val_mask_ap", "train_mask"} <= set(rows[0])
    stored = run.read_yaml("config.yaml")
    assert stored["origin"]["masks"] == "auto: every box has an outline"
    assert "Mask R-CNN on test_resnet" in summary["model"]
    metrics = run.read_json("evaluation/detection/metrics.json")
    assert metrics["intervals"]["mask_ap"]["value"] == metrics["scores"]["mask_ap"] == summary["test_mask_ap"]
    assert set(metrics["mask_per_class"]) == {"disc", "rectangle"}
    with (finished / "evaluation" / "detection" / "per_class.csv").open() as file:
        assert next(csv.reader(file)) == ["class", "objects", "ap", "ap50", "mask_ap", "mask_ap50"]
    detections = run.read_json("evaluation/detection/detections.json")
    assert detections["annotations"]
    assert all(row["segmentation"]["size"] == [64, 96] for row in detections["annotations"])
    assert (run.plots / "mask_precision_recall.png").is_file()
    page = (finished / "report.html").read_text()
    assert "For masks instead of boxes" in page
    assert page.count("<figcaption>") == 6
    assert page.count(">mask AP<") == 2


def test_eval__judges_masks_as_the_run_did(finished: Path, tmp_path: Path, capsys):
    assert main(["eval", str(finished), "--output", str(tmp_path / "judged")]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "mask AP 0." in said
    ours = json.loads((tmp_path / "judged" / "metrics.json").read_text())
    theirs = RunFolder(finished).read_json("evaluation/detection/metrics.json")
    for name in ("scores", "per_class", "mask_per_class"):
        assert ours[name] == pytest.approx(theirs[name], abs=1e-6)
    assert (tmp_path / "judged" / "mask_precision_recall.png").is_file()


@pytest.mark.slow
def test_resumed_run__is_the_one_that_was_not_stopped(finished: Path, images: Path, tmp_path: Path):
    settings = DetectSettings(data=str(images), output=str(tmp_path / "run"), steps=4, judge_every=2, **TINY)
    stopped = begin(DetectionJob(), settings, GIVEN, SilentConsole(), [StopAfter(3)])
    assert isinstance(stopped, Stopped)
    resume(DetectionJob(), stopped.run, SilentConsole())
    ours, theirs = read_weights(stopped.run / "model.safetensors"), read_weights(finished / "model.safetensors")
    assert any("mask_head" in name for name in ours)
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items())
    last, other = (load_checkpoint(run / "checkpoints" / "last.ckpt") for run in (stopped.run, finished))
    assert all(torch.equal(value, other["state_dict"][name]) for name, value in last["state_dict"].items())
    scores = [RunFolder(run).read_json("evaluation/detection/metrics.json") for run in (stopped.run, finished)]
    assert scores[0] == scores[1]


def test_predictions__of_the_command_line_hold_masks(finished: Path, images: Path, tmp_path: Path):
    output = tmp_path / "found.json"
    words = ["predict", str(finished), str(images / "3.png"), "--output", str(output)]
    assert main([*words, "--pictures", str(tmp_path / "drawn")]) == 0
    rows = json.loads(output.read_text())["annotations"]
    found = detect_objects(finished, [str(images / "3.png")])[0].found
    assert len(rows) == len(found) > 0
    for place, row in enumerate(rows):
        told = row["segmentation"]
        mask = unpack_mask(RunLengths(size=told["size"], counts=told["counts"].encode())).astype(bool)
        assert mask.shape == (64, 96)
        assert np.array_equal(mask, found.mask(place))
        assert row["area"] == mask.sum()
    assert (tmp_path / "drawn" / "1-3.png").is_file()


def setup(data: Path, **changes: object):
    settings = without_none_init(
        DetectSettings(**{"data": str(data), "steps": 2, **TINY, "copy_paste": 0.0, **changes})
    )
    return assemble(settings, {}, SilentConsole().progress)


def some_bare(folder: Path, count: int) -> Path:
    """Write a set where some boxes have no outline."""
    file = write_outlined(folder, 20)
    rows = json.loads(file.read_text())["annotations"]
    for row in rows[:count]:
        row["segmentation"] = []
    change(file, annotations=rows)
    return folder


def test_masks__are_learnt_where_every_box_has_an_outline_and_told_why(images: Path, tmp_path: Path):
    made = setup(images)
    assert (made.settings.masks, made.describe().partition(" on ")[0]) == ("on", "Mask R-CNN")
    assert setup(images, cascade=True).describe().startswith("Cascade Mask R-CNN")
    off = setup(images, masks="off")
    assert (off.settings.masks, off.describe().partition(" on ")[0]) == ("off", "Faster R-CNN")
    assert off.images.boxes_of(0).masks is None
    some = setup(some_bare(tmp_path / "some", 3), masks="auto")
    assert some.settings.masks == "off"
    assert some.origins["masks"] == f"auto: 3 of {some.images.count_boxes()} boxes have no outline"
    assert all(one.masks is None for one in some.images.boxes.values())
    none = setup(write_coco(tmp_path / "boxes", 20).parent)
    assert none.origins["masks"] == "auto: no box has an outline"


def test_masks__that_cannot_be_learnt_are_refused_before_anything_is_written(images: Path, tmp_path: Path):
    some, output = some_bare(tmp_path / "some", 3), tmp_path / "run"
    cases = [
        (some, {"masks": "on"}, r"--masks on needs an outline for every box, but 3 of \d+ boxes have no outline"),
        (some, {"copy_paste": 0.5}, "masks are off or boxes lack an outline"),
        (images, {"masks": "off", "copy_paste": 0.5}, r"--copy-paste 0\.5 cuts objects out by their masks"),
        (images, {"copy_paste": 1.5}, "--copy-paste"),
    ]
    for data, changes, words in cases:
        with pytest.raises(UserError, match=words) as refused:
            detect(data, output=str(output), steps=2, **{**TINY, "copy_paste": 0.0, **changes})
        assert "\n" not in str(refused.value)
        assert not output.exists()


def test_bad_outlines__end_the_command_with_one_sentence(tmp_path: Path, capsys):
    file = write_outlined(tmp_path / "set", 20)
    rows = json.loads(file.read_text())["annotations"]
    rows[2]["segmentation"] = [[1, 1, 9]]
    change(file, annotations=rows)
    words = ["detect", str(file.parent), "--steps", "2", "--output", str(tmp_path / "run")]
    assert main(words) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert "a polygon of 3 coordinates" in told
    assert "Traceback" not in told
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("drawn_pictures")
def test_training_pictures__show_the_masks(finished: Path, images: Path, tmp_path: Path):
    with Image.open(finished / "plots" / "train_batch.png") as picture:
        with_masks = np.asarray(picture.convert("RGB")).astype(int)
    made = setup(images, masks="off")
    RunFolder(tmp_path).plots.mkdir(parents=True)
    DetectionJob().write_beginning(RunFolder(tmp_path), made)
    with Image.open(tmp_path / "plots" / "train_batch.png") as picture:
        without = np.asarray(picture.convert("RGB")).astype(int)
    assert with_masks.shape[1] == without.shape[1]
    # A pure colour is in no mask: half of another is mixed into it.
    pure = [int(((one.max(2) - one.min(2)) > 150).sum()) for one in (with_masks, without)]
    assert pure[0] < 0.7 * pure[1]


@pytest.mark.slow
@pytest.mark.parametrize("cascade", [False, True], ids=["plain", "cascade"])
def test_a_short_training__finds_the_pixels_of_discs_and_rectangles(tmp_path: Path, cascade: bool):
    data = write_outlined(tmp_path / "set", 60).parent
    words = ["detect", str(data), "--output", str(tmp_path / "run"), "--steps", "300", "--judge-every", "300"]
    flags = {**TINY, "pyramid_channels": 32, "head_dim": 64, "regions": 64, "proposals": 128, "batch_size": 4}
    flags |= {"finest": 4, "lr": 0.0006, "copy_paste": 0}
    for name, value in flags.items():
        words += [f"--{name.replace('_', '-')}", *map(str, value if isinstance(value, list) else [value])]
    assert main([*words, *(["--cascade"] if cascade else [])]) == 0
    scores = RunFolder(tmp_path / "run").read_json("evaluation/detection/metrics.json")["scores"]
    assert scores["mask_ap50"] > 0.5  # an untrained detector has less than 0.01
