"""The table of layouts: what is recognised, in folders, archives and files, and what other verbs are told of it."""

import json
import re
import shutil
import tarfile
import zipfile
from pathlib import Path

import pytest
from PIL import Image

from data.boxes.written import PIXELS, write_cvat, write_label_studio, write_labelme, write_tables, write_yolo
from paucal.data.boxes.opening import LAYOUTS, find_annotation_files, read_boxes, root_of_set
from paucal.data.sources.opening import open_images
from paucal.tasks.detection.settings import BOX_LAYOUTS, DetectSettings
from paucal.types import UserError
from tasks.detection.made import write_coco, write_voc

SETS = {
    "Pascal VOC XML": lambda root: write_voc(root),
    "COCO JSON": lambda root: write_coco(root).parent,
    "CVAT XML for images": lambda root: write_cvat(root),
    "LabelMe JSON": lambda root: write_labelme(root),
    "Label Studio JSON": lambda root: write_label_studio(root),
    "YOLO text files": lambda root: write_yolo(root),
    "a CSV of boxes": lambda root: write_tables(root, PIXELS, {"boxes.csv": range(6)}),
}


def test_the_table__has_an_entry_for_each_set():
    assert [layout.name for layout in LAYOUTS] == list(SETS)


def test_help__names_every_layout():
    formats = [re.sub(r" (JSON|XML|XML for images|text files)$", "", layout.name) for layout in LAYOUTS]
    assert sorted(formats) == sorted(BOX_LAYOUTS.replace("or ", "").split(", "))
    assert BOX_LAYOUTS in DetectSettings.__dataclass_fields__["data"].metadata["help"]


@pytest.mark.parametrize("name", SETS)
def test_each_layout__is_recognised_and_train_says_its_name(tmp_path: Path, name: str):
    root = SETS[name](tmp_path / "set")
    found = find_annotation_files(root)
    assert found is not None
    assert found.name == name
    with pytest.raises(UserError, match=rf"has boxes \(.*\) as {name}, and no classes of images: `paucal detect`"):
        open_images(root)
    assert len(open_images(root, labelled=False)) == 6


def pack(root: Path, file: Path, prefix: str) -> Path:
    if file.suffix == ".zip":
        with zipfile.ZipFile(file, "w") as archive:
            for path in sorted(root.rglob("*")):
                archive.write(path, prefix + path.relative_to(root).as_posix())
            archive.writestr("__MACOSX/._0.xml", "x")
    else:
        with tarfile.open(file, "w") as archive:
            archive.add(root, prefix or ".")
    return file


@pytest.mark.parametrize("ending", [".zip", ".tar"])
@pytest.mark.parametrize("prefix", ["", "cells/", "VOCdevkit/VOC2012/"])
@pytest.mark.parametrize("name", SETS)
def test_archives__are_read_as_the_folder_they_were_made_of(tmp_path: Path, name: str, prefix: str, ending: str):
    tree, plain = read_boxes(SETS[name](tmp_path / "set"))
    file = pack(tmp_path / "set", tmp_path / f"set{ending}", prefix)
    packed, described = read_boxes(file)
    assert {Path(one.key).name: (one.boxes, one.names, one.declared_split) for one in described.images} == {
        Path(one.key).name: (one.boxes, one.names, one.declared_split) for one in plain.images
    }
    for position in range(3):
        stores = [tree.make_store([plain.images[position].key]), packed.make_store([described.images[position].key])]
        assert stores[0].read(0).tobytes() == stores[1].read(0).tobytes()
    with pytest.raises(UserError, match=f"has boxes as {name}"):
        open_images(file)


def test_archives__note_the_links_that_are_left_out(tmp_path: Path):
    root = write_voc(tmp_path / "set")
    image = next(root.rglob("*.png"))
    (image.parent / "linked.png").symlink_to(image.name)
    _, annotations = read_boxes(pack(root, tmp_path / "set.tar", ""))
    assert any(note.startswith("1 link was left out (") for note in annotations.notes)


def test_archives_in_a_folder_and_compressed_ones__are_named(tmp_path: Path):
    (tmp_path / "tars").mkdir()
    file = pack(write_voc(tmp_path / "set"), tmp_path / "tars/0.tar", "")
    with pytest.raises(
        UserError, match=r"boxes as Pascal VOC XML in archives \(0\.tar\), .*: give one archive as DATA"
    ):
        read_boxes(tmp_path / "tars")
    with pytest.raises(UserError, match=r"has boxes \(0\.tar\) as Pascal VOC XML in archives"):
        open_images(tmp_path / "tars")
    shutil.move(file, tmp_path / "set.tar.gz")
    with pytest.raises(UserError, match="compressed as a whole"):
        read_boxes(tmp_path / "set.tar.gz")


UNREAD = {
    "VGG Image Annotator": ("via.json", '{"a.png1": {"regions": [{"shape_attributes": {"name": "rect"}}]}}'),
    "Supervisely": ("ann/a.png.json", '{"objects": [{"classTitle": "cat", "points": {}}]}'),
    "Create ML": ("a.json", '[{"image": "a.png", "annotations": [{"label": "x", "coordinates": {"x": 1}}]}]'),
    "Datumaro": ("default.json", '{"items": [{"annotations": [{"type": "bbox", "label_id": 0, "bbox": [1]}]}]}'),
    "BDD100K": ("bdd.json", '[{"name": "a.png", "labels": [{"box2d": {"x1": 1}}]}]'),
    "KITTI": ("label_2/a.txt", "Car 0.00 0 -1.57 10.0 10.0 20.0 20.0 1.5 1.6 3.9 1.0 1.5 10.0 -1.5\n"),
    "DOTA": ("labelTxt/a.txt", "imagesource:x\ngsd:1\n1.0 2.0 3.0 2.0 3.0 4.0 1.0 4.0 plane 0\n"),
    "VisDrone": ("annotations/a.txt", "684,8,273,116,0,0,0,0\n"),
    "TFRecord": ("a.tfrecord", "x"),
}


@pytest.mark.parametrize("name", UNREAD)
def test_layouts_that_are_not_read__are_called_by_their_names(tmp_path: Path, name: str):
    file, text = UNREAD[name]
    path = tmp_path / "set" / file
    path.parent.mkdir(parents=True)
    path.write_text(text)
    Image.new("RGB", (30, 30)).save(tmp_path / "set/a.png")
    with pytest.raises(
        UserError, match=rf"has boxes as {name}.* annotations .*is not supported: convert the boxes to COCO JSON"
    ):
        read_boxes(tmp_path / "set")
    with pytest.raises(UserError, match=f"has boxes .* as {name}"):
        open_images(tmp_path / "set")


def test_two_layouts_of_one_set__count_once_and_of_different_images_not_at_all(tmp_path: Path):
    root = write_voc(tmp_path / "set")
    (root / "labels").mkdir()
    for n in range(5):
        (root / f"labels/{n}.txt").write_text("0 0.5 0.5 0.1 0.1\n")
    described = read_boxes(root)[1]
    assert len(described.images) == 6
    assert described.notes == ("the boxes were read as Pascal VOC XML, and the boxes as YOLO text files were skipped",)
    (root / "Annotations/2.xml").unlink()
    with pytest.raises(
        UserError, match=r"boxes as Pascal VOC XML \(5 images\) and as YOLO.* \(5 images\) of different images"
    ):
        read_boxes(root)
    (root / "labels/0.txt").write_text("damaged\n")
    assert "YOLO text files beside Pascal VOC XML was skipped" in read_boxes(root)[1].notes[0]


def test_class_folders__stay_classes_whatever_lies_beside(tmp_path: Path):
    for name in ("cat", "dog"):
        (tmp_path / "set" / name).mkdir(parents=True)
        for n in range(3):
            Image.new("RGB", (9, 9)).save(tmp_path / "set" / name / f"{name}{n}.png")
            (tmp_path / "set" / name / f"{name}{n}.txt").write_text("0 0.5 0.5 0.1 0.1\n")
    (tmp_path / "set/notes.json").write_text(json.dumps({"images": 6, "annotations": [], "categories": []}))
    assert open_images(tmp_path / "set").classes == ("cat", "dog")


def test_folders_of_images_and_labels__are_no_classes(tmp_path: Path):
    root = write_yolo(tmp_path / "set", "images", "labels")
    Image.new("RGB", (9, 9)).save(root / "labels/overview.png")
    with pytest.raises(UserError, match=r"has boxes \(labels\) as YOLO text files"):
        open_images(root)


def test_annotation_files_alone__give_their_images(tmp_path: Path):
    root = write_coco(tmp_path / "set", 6).parent
    Image.new("RGB", (9, 9)).save(root / "more.png")
    assert len(open_images(root / "_annotations.coco.json", labelled=False)) == 6
    with pytest.raises(UserError, match="has boxes as COCO JSON"):
        open_images(root / "_annotations.coco.json")
    table = write_tables(tmp_path / "table", PIXELS, {}) / "boxes.csv"
    table.write_text("filename,class,xmin,ymin,xmax,ymax\nimages/0.png,a,1,2,3,4\nimages/1.png,b,1,2,3,4\n")
    images = open_images(table)
    assert images.classes == ("a", "b")
    assert "only one label per image is read; the boxes (xmin, ymin, xmax, ymax) are not read" in images.notes


def test_own_roots__are_folders_above_those_of_images_and_labels():
    assert root_of_set("VOCdevkit/VOC2012/Annotations/cam/1.xml") == "VOCdevkit/VOC2012"
    for file in ("Annotations/cam/1.xml", "train/labels/1.txt", "COCO/train.json", "day/1.xml", "1.json"):
        assert root_of_set(file) == ""
