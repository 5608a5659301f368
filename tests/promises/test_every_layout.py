"""Each layout of the pages is recognised, checked, converted and read back equal; and trained on and predicted."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import paucal
from paucal.data.label_kinds import describe_labels
from paucal.data.masks.masked_images import images_of_pairs, read_masks
from paucal.data.masks.pairs import find_pairs
from paucal.data.sources.opening import open_images
from paucal.verbs.check.annotations import BAD_BOXES, BAD_MASKS
from paucal.verbs.check.annotations import BOXES as BOXED
from paucal.verbs.check.annotations import MASKS as MASKED
from promises.every_layout import BOXES, CLASSES, MASKS
from tasks.detection.made import pictures
from tasks.detection.test_detect_runs import TINY
from verbs.convert.test_convert import NO_OUTLINES, described

SEGMENTER = {"model": "test_resnet", "init": "none", "img_size": [32], "width": 8, "batch_size": 4, "workers": 0}
CLASSIFIER = {"model": "vit_mini", "model_args": ["depth=1"], "init": "none", "img_size": 16, "workers": 0}


@pytest.fixture(autouse=True)
def quick_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let checks compare images without features of a network."""
    monkeypatch.setattr("paucal.verbs.check.launch.find_local_weights", lambda: None)


def require_seen(place: Path, verb: str, images: int, classes: set[str]) -> None:
    """The recogniser names this verb, and a check finds the images and the classes, and refuses nothing."""
    assert list(describe_labels(place)) == [verb]
    result = paucal.check(str(place))
    names = {finding.name for finding in result.findings}
    assert not names & {BAD_BOXES, BAD_MASKS, "refused", "unlabelled", "unreadable"}
    assert {"detect": BOXED, "segment": MASKED}.get(verb) in {*names, None}
    assert len(result.checked.images) == images
    assert set(result.checked.images.classes) == classes


def things(place: Path, outlines: bool) -> list[Any]:
    """Return the objects of each image, in the order of the images' pixels."""
    return [
        [
            (name, [round(edge, 2) for edge in box], crowd, outlines and bool(outline))
            for name, box, crowd, outline in row
        ]
        for _, (_, _, row) in sorted(described(place).items(), key=lambda pair: pair[0])
    ]


@pytest.mark.parametrize("layout", BOXES)
def test_boxes__are_recognised_checked_converted_and_read_back(tmp_path: Path, layout: str):
    place = BOXES[layout](tmp_path / "set")
    require_seen(place, "detect", 6, {"red", "blue"})
    for to in ("coco", "csv"):
        result = paucal.convert(str(place), to=to, output=str(tmp_path / to))
        assert result.images == 6
        assert things(tmp_path / to, to not in NO_OUTLINES) == things(place, to not in NO_OUTLINES)


def masks_of(place: Path) -> list[tuple[bytes, Any]]:
    pairs = find_pairs(place)
    masked = read_masks(images_of_pairs(pairs, str(place)), pairs)
    names = np.array([*masked.images.classes, *["void"] * (256 - len(masked.images.classes))])
    found = [
        (np.asarray(masked.images.store.read(n)).tobytes(), names[masked.masks.read(n)].tolist())
        for n in range(len(masked.images))
    ]
    return sorted(found)


@pytest.mark.parametrize("layout", MASKS)
def test_masks__are_recognised_checked_converted_and_read_back(tmp_path: Path, layout: str):
    place = MASKS[layout](tmp_path / "set")
    first = masks_of(place)
    require_seen(place, "segment", len(first), {name for _, rows in first for row in rows for name in row} - {"void"})
    result = paucal.convert(str(place), to="masks", output=str(tmp_path / "masks"))
    assert result.lost == {}
    assert masks_of(tmp_path / "masks") == first


def classes_of(place: Path) -> list[tuple[bytes, list[str]]]:
    images = open_images(place)
    return sorted((np.asarray(images.store.read(n)).tobytes(), images.classes_of(n)) for n in range(len(images)))


@pytest.mark.parametrize("layout", CLASSES)
def test_classes__are_recognised_checked_converted_and_read_back(tmp_path: Path, layout: str):
    place = CLASSES[layout](tmp_path / "set")
    first = classes_of(place)
    require_seen(place, "train", len(first), {name for _, names in first for name in names})
    for to in ("csv", "label-studio"):
        assert paucal.convert(str(place), to=to, output=str(tmp_path / to)).lost == {}
        assert classes_of(tmp_path / to) == first


@pytest.mark.slow
@pytest.mark.parametrize("layout", BOXES)
def test_boxes__are_trained_on_and_predicted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str):
    monkeypatch.setattr(pictures, "__defaults__", ((64, 96), 8))  # the seed whose parts have both classes
    place = BOXES[layout](tmp_path / "set")
    run = paucal.detect(str(place), steps=1, output=str(tmp_path / "run"), masks="off", **TINY)
    found = paucal.detect_objects(run, str(next((tmp_path / "set").rglob("*.png"), tmp_path / "none")))
    assert len(found) == 1
    assert set(run.metrics) >= {"ap", "ap50"}


@pytest.mark.slow
@pytest.mark.parametrize("layout", MASKS)
def test_masks__are_trained_on_and_predicted(tmp_path: Path, layout: str):
    place = MASKS[layout](tmp_path / "set")
    run = paucal.segment(str(place), epochs=1, crops=1, output=str(tmp_path / "run"), **SEGMENTER)
    image = next(path for path in (tmp_path / "set").rglob("*.png") if "ask" not in str(path.relative_to(tmp_path)))
    assert len(paucal.predict_masks(run, str(image), output=str(tmp_path / "out"))) == 1
    assert "mean_iou" in run.metrics


@pytest.mark.slow
@pytest.mark.parametrize("layout", CLASSES)
def test_classes__are_trained_on_and_predicted(tmp_path: Path, layout: str):
    place = CLASSES[layout](tmp_path / "set")
    run = paucal.train(str(place), epochs=1, output=str(tmp_path / "run"), **CLASSIFIER)
    rows = paucal.predict(run, str(next((tmp_path / "set").rglob("*.png"))))
    assert rows[0].predicted in run.model.classes
