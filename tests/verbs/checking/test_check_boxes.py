"""`paucal check` on images with boxes."""

import json
import shutil
from pathlib import Path

import pytest

import paucal
from cli.calls import make_photos
from paucal.data.checking.findings import Finding
from paucal.verbs.checking.masks import BOXES, MASKS, for_masks
from transfer.detection.made import change, write_coco, write_voc


def texts(found, name: str) -> list[str]:
    return [one.text for one in found.findings if one.name == name]


def keys(found, name: str) -> list[str]:
    images = found.checked.images.keys
    return [images[group[0]] for one in found.findings if one.name == name for group in one.groups]


def annotations(file: Path) -> list[dict]:
    return json.loads(file.read_text())["annotations"]


@pytest.mark.parametrize("layout", ["coco", "voc"])
def test_check__knows_boxes_and_counts_them_by_class(tmp_path: Path, layout: str):
    root = write_coco(tmp_path / "set", 12).parent if layout == "coco" else write_voc(tmp_path / "set", 12)
    rows = annotations(write_coco(tmp_path / "copy", 12))
    found = paucal.check(root)
    counts = {name: sum(row["category_id"] == number for row in rows) for name, number in (("red", 3), ("blue", 7))}
    words = f"12 images with {len(rows)} boxes of 2 classes: this is data for paucal detect"
    assert texts(found, "boxes") == [words]
    assert {f"{name} {count}" for name, count in counts.items()} == set(
        texts(found, "boxes-per-class")[0].removeprefix("boxes: ").split(", ")
    )
    small = sum(row["bbox"][2] * row["bbox"][3] < 32**2 for row in rows) / len(rows)
    assert texts(found, "box-sizes")[0].startswith(f"{100 * small:.0f} % of the boxes are small")
    assert not found.misleads
    assert not {"empty-boxes", "outside-boxes", "tiny-boxes", "repeated-boxes", "imbalance"} & {
        one.name for one in found.findings
    }


@pytest.mark.parametrize("kind", [BOXES, MASKS])
def test_advice_on_labels_of_whole_images__is_left_out(kind: str):
    made = [
        Finding(name, "warning", "text") for name in (kind, "alike-with-other-labels", "imbalance", "near-duplicates")
    ]
    assert [one.name for one in for_masks(made)] == [kind, "near-duplicates"]
    assert for_masks(made[1:]) == made[1:]


def test_what_is_wrong_with_boxes__is_found_with_its_images(tmp_path: Path):
    file = write_coco(tmp_path / "set", 12)
    rows = annotations(file)
    first = {number: next(row for row in rows if row["image_id"] == number) for number in range(6)}
    first[0]["bbox"][2:] = [0, 20]
    first[1]["bbox"] = [10, 10, 3, 4]
    rows.append({**first[2], "id": 9999})
    rows = [row for row in rows if row["image_id"] != 3]
    change(file, annotations=rows)
    found = paucal.check(file.parent)
    assert texts(found, "empty-boxes") == ["1 box without an area, in 1 image"]
    assert texts(found, "tiny-boxes") == ["1 box under 8 pixels, in 1 image"]
    assert texts(found, "repeated-boxes") == ["1 box drawn twice on one object, in 1 image"]
    assert texts(found, "images-without-boxes") == ["1 image of 12 without a box: they teach what is no object"]
    names = ("empty-boxes", "tiny-boxes", "repeated-boxes", "images-without-boxes")
    assert [keys(found, name) for name in names] == [["0.png"], ["1.png"], ["2.png"], ["3.png"]]
    assert not found.misleads


def test_boxes_that_detect_refuses__mislead(tmp_path: Path):
    file = write_coco(tmp_path / "set", 12)
    rows = annotations(file)
    rows[0]["bbox"] = [500, 500, 20, 20]
    change(file, annotations=rows)
    found = paucal.check(file)
    assert found.misleads
    assert texts(found, "outside-boxes") == ["1 box outside of the image they are of, in 1 image"]
    assert keys(found, "outside-boxes") == ["0.png"]
    assert "outside of it" in texts(found, "bad-boxes")[0]
    assert next(one.advice for one in found.findings if one.name == "bad-boxes") == "correct it"


def test_a_class_with_few_boxes_and_many_bare_images__are_warnings(tmp_path: Path):
    file = write_coco(tmp_path / "set", 12)
    rows = [row for row in annotations(file) if row["image_id"] < 5]
    change(file, annotations=rows)
    found = paucal.check(file.parent)
    red = sum(row["category_id"] == 3 for row in rows)
    blue = len(rows) - red
    assert 0 < min(red, blue) <= max(red, blue) < 10
    assert texts(found, "scarce-classes") == [f"2 classes with fewer than 10 boxes: red {red}, blue {blue}"]
    bare = next(one for one in found.findings if one.name == "images-without-boxes")
    assert (bare.level, len(bare.groups)) == ("warning", 7)


def test_an_image_in_two_parts__misleads(tmp_path: Path):
    for part, seed in (("train", 0), ("valid", 1), ("test", 2)):
        write_coco(tmp_path / "set" / part, 8, seed=seed)
    clean = paucal.check(tmp_path / "set")
    assert not clean.misleads
    shutil.copy(tmp_path / "set/train/3.png", tmp_path / "set/test/5.png")
    found = paucal.check(tmp_path / "set")
    assert found.misleads
    together = [set(group) for one in found.findings if one.level == "misleads" for group in one.groups]
    places = {found.checked.images.keys.index(key) for key in ("train/3.png", "test/5.png")}
    assert places in together


def test_damaged_annotations__are_said_with_the_images_looked_at(tmp_path: Path):
    file = write_coco(tmp_path / "set", 6)
    file.write_text(file.read_text()[:-20])
    found = paucal.check(file.parent)
    assert found.misleads
    assert texts(found, "bad-boxes")
    assert len(found.checked.images) == 6


def test_class_folders_with_a_stray_json__are_still_classes(tmp_path: Path):
    photos = make_photos(tmp_path / "photos", 2, 4)
    (photos / "notes.json").write_text('{"images": 8}')
    found = paucal.check(photos)
    assert texts(found, "boxes") == []
    assert found.facts["classes"] == 2
