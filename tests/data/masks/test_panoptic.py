"""COCO's panoptic JSON: drawn as masks of classes, refused where it is damaged, and no photographs of other verbs."""

import json
import os
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from cli.calls import failure
from paucal.data.masks.masked_images import MaskedImages, images_of_pairs, read_masks
from paucal.data.masks.pairs import find_pairs
from paucal.data.sources.opening import open_images
from paucal.types import UserError

RANDOM = np.random.default_rng(0)
SEGMENTS = {"train": [7, 256, 65_536 + 300], "val": [1, 511, 70_000]}  # numbers in each of three colours
CATEGORIES = [{"id": 1, "name": "cell", "isthing": 1}, {"id": 90, "name": "sky, grey", "isthing": 0}]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAUCAL_IMAGE_CACHE", str(tmp_path / "cache" / "images"))


def write(root: Path, png: str = "annotations/panoptic_{}2017", change: Callable[[Any], None] = lambda content: None):
    """Write three images of each part: the first segment is of cells, the others of sky, and a row has no label."""
    for part, numbers in SEGMENTS.items():
        images, rows = [], []
        for n in range(3):
            name = f"{part}{n}.jpg"
            photo = root / f"{part}2017" / name
            photo.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(RANDOM.integers(0, 256, (12, 16, 3), dtype=np.uint8)).save(photo)
            ids = np.zeros((12, 16), dtype=np.int64)
            for place, number in enumerate(numbers):
                ids[3 * place : 3 * place + 3] = number
            folder = root / png.format(part)
            folder.mkdir(parents=True, exist_ok=True)
            stored = np.stack([ids % 256, ids // 256 % 256, ids // 65_536], -1).astype(np.uint8)
            Image.fromarray(stored).save(folder / f"{part}{n}.png")
            images.append({"id": n, "file_name": name, "width": 16, "height": 12})
            segments = [{"id": number, "category_id": 1 if k == 0 else 90} for k, number in enumerate(numbers)]
            rows.append({"image_id": n, "file_name": f"{part}{n}.png", "segments_info": segments})
        content = {"images": images, "annotations": rows, "categories": CATEGORIES}
        change(content)
        (root / "annotations").mkdir(exist_ok=True)
        (root / f"annotations/panoptic_{part}2017.json").write_text(json.dumps(content))
    return root


def read(place: Path) -> MaskedImages:
    pairs = find_pairs(place)
    return read_masks(images_of_pairs(pairs, str(place)), pairs)


@pytest.mark.parametrize("png", ["annotations/panoptic_{}2017", "panoptic_{}2017"])
def test_segments__are_drawn_as_the_classes_of_their_categories(tmp_path: Path, png: str):
    root = write(tmp_path / "set", png)
    masked = read(root)
    assert masked.images.classes == ("cell", "sky, grey")
    assert masked.images.keys == [f"{part}2017/{part}{n}.jpg" for part in SEGMENTS for n in range(3)]
    assert masked.images.declared_splits == ["train"] * 3 + ["val"] * 3
    assert masked.masks.read(4).tolist() == [[0] * 16] * 3 + [[1] * 16] * 6 + [[255] * 16] * 3
    before = find_pairs(root).pairs[0].masks[0].stat().st_mtime_ns
    assert read(root).masks.read(0).tolist() == masked.masks.read(0).tolist()
    assert find_pairs(root).pairs[0].masks[0].stat().st_mtime_ns == before  # drawn once
    assert open_images(root, labelled=False).keys == masked.images.keys  # no mask is a photograph


def test_changed_pngs__are_drawn_anew(tmp_path: Path):
    root = write(tmp_path / "set")
    before = read(root).masks.read(0)
    for file in (root / "annotations/panoptic_train2017").iterdir():
        Image.fromarray(np.asarray(Image.open(file))[::-1]).save(file)
    assert read(root).masks.read(0).tolist() == before[::-1].tolist() != before.tolist()


def test_images_without_an_annotation__are_counted(tmp_path: Path):
    root = write(tmp_path / "set", change=lambda content: content["annotations"].pop())
    pairs = find_pairs(root)
    assert len(pairs.pairs) == 4
    assert "2 images without a mask were left out" in pairs.notes
    assert len(find_pairs(write(tmp_path / "whole")).notes) == 1


def test_two_processes__draw_the_same_set_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    root = write(tmp_path / "set")
    replace = os.replace

    def lose(source: Path, target: Path) -> None:
        shutil.copytree(source, target)  # the other process
        replace(source, target)

    monkeypatch.setattr(os, "replace", lose)
    assert read(root).masks.read(4).tolist()[0] == [0] * 16
    assert [path.name for path in (tmp_path / "cache").rglob("unfinished-*")] == []


def test_an_archive__is_read_like_its_folder(tmp_path: Path):
    root = write(tmp_path / "set")
    with zipfile.ZipFile(tmp_path / "set.zip", "w") as archive:
        for path in sorted(root.rglob("*.*")):
            archive.write(path, path.relative_to(root))
    assert read(tmp_path / "set.zip").masks.read(4).tolist() == read(root).masks.read(4).tolist()


def test_other_verbs__name_paucal_segment(tmp_path: Path, capsys: pytest.CaptureFixture):
    root = write(tmp_path / "set")
    for verb, noun in (("train", "classes of images"), ("detect", "boxes")):
        words = failure(capsys, verb, root, "--output", tmp_path / "run")
        assert f"masks as COCO's panoptic JSON (annotations/panoptic_train2017.json), and no {noun}" in words
        assert "`paucal segment` learns masks" in words


def _set(path: str, value: Any) -> Callable[[Any], None]:
    def change(content: Any) -> None:
        *above, last = (int(name) if name.isdecimal() else name for name in path.split("."))
        for name in above:
            content = content[name]
        content[last] = value

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_set("annotations.0.segments_info.0.category_id", 5), "of a category that is not listed"),
        (_set("annotations.0.segments_info.0.id", "7"), "a segment without an id"),
        (_set("annotations.0.segments_info.0.id", 9), "pixels of the segment 7, which is not listed in the JSON file"),
        (_set("annotations.0.segments_info", None), "a segment without an id"),
        (_set("annotations.0.file_name", "../../x.png"), "describes '../../x.png', but there is no such image"),
        (_set("annotations.0.image_id", 99), "segments of the image 99, but does not list the image"),
        (_set("annotations.0.image_id", 1), "describe 'train2017/train1.jpg' twice"),
        (_set("images.0.file_name", "gone.jpg"), "describes 'gone.jpg', but there is no such image"),
        (_set("images.0", {"id": 0}), "has no list 'images' of entries with file_name, id"),
        (_set("categories.1.id", 1), "has 2 categories, expected 1 to 255 categories with unique ids and unique names"),
        (_set("categories.1.name", " "), "has 2 categories"),
        (_set("categories", []), "has 0 categories"),
    ],
)
def test_damaged_files__are_refused_in_a_sentence(tmp_path: Path, change: Callable[[Any], None], words: str):
    with pytest.raises(UserError, match=words.replace("(", r"\(").replace(".", r"\.")) as problem:
        read(write(tmp_path / "set", change=change))
    assert "\n" not in str(problem.value)
