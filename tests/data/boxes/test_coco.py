"""COCO JSON in the folders that programs write it to, with all that programs write for numbers and names."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from paucal.data.boxes.annotations import AnnotationSet, box_of_run_lengths, run_lengths_of
from paucal.data.boxes.opening import read_boxes
from paucal.types import UserError
from tasks.detection.made import coco, pictures, write_coco

PARTS = {"train": range(6), "val": range(6, 9)}


def write_parts(root: Path, images: str, file: str, name: str = "{n}.png", year: str = "2017") -> Path:
    """Write images of two parts, and a JSON of each; "{part}" in paths stands for the part."""
    drawn = pictures(9)
    for part, numbers in PARTS.items():
        word, listed = part + year, []
        for n in numbers:
            key = images.format(part=word) + f"/{n}.png"
            (root / key).parent.mkdir(parents=True, exist_ok=True)
            drawn[n][0].save(root / key)
            listed.append((name.format(n=n, key=key), drawn[n][0].size, drawn[n][1]))
        path = root / file.format(part=word)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(coco(listed, {"red": 3, "blue": 7})))
    return root


def declared(described: AnnotationSet) -> dict[str, str]:
    return {Path(one.key).stem: one.declared_split for one in described.images}


@pytest.mark.parametrize(
    ("images", "file", "name"),
    [
        ("images/{part}", "annotations/instances_{part}.json", "{n}.png"),
        ("{part}", "annotations/instances_{part}.json", "{n}.png"),
        ("{part}", "annotations/{part}.json", "{key}"),
        ("images", "{part}.json", "{n}.png"),
        ("PNG", "COCO/{part}.json", "{n}.png"),
        ("images/{part}", "labels/{part}.json", "images/x/{n}.png"),
        ("{part}/images", "{part}/annotations/instances_default.json", "{n}.png"),
        ("{part}", "{part}/_annotations.coco.json", "{n}.png"),
        ("images/{part}", "annotations/cells_{part}_v2.json", "/home/me/data/{n}.png"),
        ("images", "annotations/instances_{part}.json", "https://host.example/a/{n}.png"),
        ("images/{part}", "annotations/instances_{part}.json", "../{key}"),
    ],
)
def test_parts__as_programs_lay_them_out(tmp_path: Path, images: str, file: str, name: str):
    root = write_parts(tmp_path / "set", images, file, name)
    described = read_boxes(root)[1]
    expected = {str(n): part for part, numbers in PARTS.items() for n in numbers}
    assert declared(described) == expected
    for one in described.images:
        n = int(Path(one.key).stem)
        assert one.key == images.format(part=expected[str(n)] + "2017") + f"/{n}.png"
        assert one.boxes == [row[1:] for row in pictures(9)[n][1]]
        assert one.names == [row[0] for row in pictures(9)[n][1]]
    alone = read_boxes(root / file.format(part="val2017"))[1]
    assert declared(alone) == dict.fromkeys("678", "")
    assert described.notes == alone.notes == ()


def test_files_of_other_things__are_passed_over_and_named(tmp_path: Path):
    root = write_parts(tmp_path / "set", "{part}", "annotations/instances_{part}.json")
    content = json.loads((root / "annotations/instances_val2017.json").read_text())
    captions = {"images": content["images"], "annotations": [{"id": 1, "image_id": 6, "caption": "cells"}]}
    (root / "annotations/captions_val2017.json").write_text(json.dumps(captions))
    points = [{**row, "keypoints": [0] * 51} for row in content["annotations"]]
    (root / "annotations/person_keypoints_val2017.json").write_text(json.dumps({**content, "annotations": points}))
    (root / "annotations/image_info_test2017.json").write_text(json.dumps({**content, "annotations": []}))
    described = read_boxes(root)[1]
    assert declared(described) == {str(n): part for part, numbers in PARTS.items() for n in numbers}
    assert described.notes == (
        "3 files other than instances_*.json were skipped: captions_val2017.json, image_info_test2017.json, "
        "person_keypoints_val2017.json",
    )


def test_a_file_of_all_images__is_passed_over_where_it_says_the_same(tmp_path: Path):
    root = write_parts(tmp_path / "set", "images", "annotations/{part}.json")
    drawn = pictures(9)
    rows = [(f"{n}.png", drawn[n][0].size, drawn[n][1]) for n in range(9)]
    (root / "annotations/all.json").write_text(json.dumps(coco(rows, {"red": 3, "blue": 7})))
    described = read_boxes(root)[1]
    assert set(declared(described).values()) == {"train", "val"}
    assert described.notes == ("annotations/all.json repeats other files, and was skipped",)
    rows[0] = (*rows[0][:2], [])
    (root / "annotations/all.json").write_text(json.dumps(coco(rows, {"red": 3, "blue": 7})))
    with pytest.raises(
        UserError, match=r"described twice in .*, in 'annotations/all\.json' and 'annotations/train2017"
    ):
        read_boxes(root)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "cp1252"])
def test_encodings__are_those_of_any_text(tmp_path: Path, encoding: str):
    file = write_coco(tmp_path / "set")
    text = file.read_text().replace('"red"', '"Käfer"')
    file.write_bytes(text.encode(encoding))
    described = read_boxes(file.parent)[1]
    assert set(described.class_numbers) == {"Käfer", "blue"}
    assert bool(described.notes) == (encoding == "cp1252")


def changed(tmp_path: Path, change: Any) -> AnnotationSet:
    file = write_coco(tmp_path / "set")
    content = json.loads(file.read_text())
    for row in content["annotations"]:
        change(row, content)
    file.write_text(json.dumps(content))
    return read_boxes(file)[1]


@pytest.mark.parametrize("form", [str, float, lambda number: f"{number}.0", lambda number: number])
def test_ids__are_one_number_however_they_are_written(tmp_path: Path, form: Any):
    expected = read_boxes(write_coco(tmp_path / "plain"))[1]

    def change(row: dict, content: dict) -> None:
        row.update(image_id=form(int(float(row["image_id"]))), category_id=form(int(row["category_id"])))

    described = changed(tmp_path, change)
    assert [(one.boxes, one.names) for one in described.images] == [(o.boxes, o.names) for o in expected.images]
    assert described.class_numbers == {"red": 3, "blue": 7}


def test_long_ids__are_not_rounded(tmp_path: Path):
    file = write_coco(tmp_path / "set")
    content = json.loads(file.read_text())
    for row in content["images"]:
        row["id"] += 20230101123456789
    for row in content["annotations"]:
        row["image_id"] = str(row["image_id"] + 20230101123456789)
    file.write_text(json.dumps(content))
    expected = read_boxes(write_coco(tmp_path / "plain"))[1]
    assert [one.boxes for one in read_boxes(file)[1].images] == [one.boxes for one in expected.images]


@pytest.mark.parametrize(
    ("mark", "is_crowd"), [(1, True), ("1", True), (True, True), (0, False), ("0", False), (None, False)]
)
def test_crowds__in_all_spellings(tmp_path: Path, mark: Any, is_crowd: bool):
    described = changed(tmp_path, lambda row, content: row.update(iscrowd=mark))
    assert {many for one in described.images for many in one.crowd} == {is_crowd}


def test_boxes__given_by_their_edges_are_refused(tmp_path: Path):
    def as_edges(row: dict[str, Any], _: Any) -> None:
        left, top, width, height = row["bbox"]
        row["bbox"] = [left, top, left + width, top + height]

    with pytest.raises(
        UserError, match=r"boxes that would end outside .* but all boxes would be inside as left, top, right and bottom"
    ):
        changed(tmp_path, as_edges)


def test_boxes__that_end_outside_here_and_there_are_read(tmp_path: Path):
    def moved(row: dict[str, Any], content: dict[str, Any]) -> None:
        if row is content["annotations"][0]:
            row["bbox"] = [20, 20, 90, 60]

    assert changed(tmp_path, moved).images[0].boxes[0] == (20, 20, 110, 80)


def test_boxes__come_from_outlines_where_there_are_none(tmp_path: Path):
    mask = np.zeros((64, 96), dtype=bool)
    mask[10:20, 30:50] = True
    outlines = [[[30, 10, 50, 10, 50, 20, 30, 20]], run_lengths_of(mask)]

    def change(row: dict, content: dict) -> None:
        row.update(segmentation=outlines[row["id"] % 2], bbox=[] if row["id"] % 3 else None)

    described = changed(tmp_path, change)
    assert {box for one in described.images for box in one.boxes} == {(30, 10, 50, 20)}
    with pytest.raises(UserError, match="has a 'bbox' None, expected left, top, width and height"):
        changed(tmp_path, lambda row, content: row.update(bbox=None, segmentation=[]))


@pytest.mark.parametrize("seed", range(20))
def test_runs__have_the_box_of_their_mask(seed: int):
    generator = np.random.default_rng(seed)
    mask = generator.random(tuple(generator.integers(1, 9, 2))) < (0.1, 0.5, 1.0)[seed % 3]
    box = box_of_run_lengths(run_lengths_of(mask))
    rows, columns = np.nonzero(mask)
    if not len(rows):
        assert box is None
        return
    assert box == (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1)
    assert sum(run_lengths_of(mask)["counts"]) == mask.size


def test_runs_that_are_none__have_no_box():
    for size, counts in (([2, 2], [1, 9]), ([2], [1]), ([2, 2], "?"), ([0, 0], []), ([2, 2], [-1, 5]), ([2, 2], [[4]])):
        assert box_of_run_lengths({"size": size, "counts": counts}) is None


def test_images_that_are_not_there__are_named_for_what_they_are(tmp_path: Path):
    for name, words in {
        "https://host.example/9.png": "a URL: download the images",
        "C:\\pictures\\9.png": "a path out of the data folder, which has no such image",
        "../../9.png": "a path out of the data folder",
        "9.png": "there is no such image in",
    }.items():
        file = write_coco(tmp_path / "set")
        content = json.loads(file.read_text())
        content["images"][0]["file_name"] = name
        file.write_text(json.dumps(content))
        with pytest.raises(UserError, match=words):
            read_boxes(file.parent)


def test_scores__are_noted(tmp_path: Path):
    described = changed(tmp_path, lambda row, content: row.update(score=0.5))
    assert described.notes == ("the boxes of _annotations.coco.json have scores, like the predictions of a detector",)


def test_images_of_parts__by_the_folders_in_one_file(tmp_path: Path):
    root, rows = tmp_path / "set", []
    for n, (image, boxes) in enumerate(pictures(6)):
        key = f"{'train' if n < 4 else 'valid'}/{n}.png"
        (root / key).parent.mkdir(parents=True, exist_ok=True)
        image.save(root / key)
        rows.append((key, image.size, boxes))
    (root / "boxes.json").write_text(json.dumps(coco(rows, {"red": 1, "blue": 2})))
    for place in (root, root / "boxes.json"):
        assert [one.declared_split for one in read_boxes(place)[1].images] == ["train"] * 4 + ["val"] * 2
    Image.new("RGB", (8, 8)).save(root / "train" / "new.png")
    assert read_boxes(root)[1].notes == ("1 image without an annotation is left out",)
    assert read_boxes(root / "boxes.json")[1].notes == ()
