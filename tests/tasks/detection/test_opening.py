"""Boxes from COCO JSON and VOC XML: the same objects from both, and one sentence for everything that is wrong."""

import json
import os
import struct
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from paucal.data.splits.split import make_split
from paucal.tasks.detection.images import open_boxed_images
from paucal.types import UserError
from tasks.detection.made import change, coco, pictures, write_coco, write_voc, write_xml

DATA = Path(__file__).parents[4] / "shared" / "data"
with_data = pytest.mark.skipif(not (DATA / "bccd").is_dir(), reason="the real images are not here")


def test_both_formats__give_the_same_boxes(tmp_path: Path):
    voc, json_file = open_boxed_images(write_voc(tmp_path / "voc")), write_coco(tmp_path / "coco")
    listed = open_boxed_images(json_file.parent)
    assert voc.classes == ("blue", "red")
    assert listed.classes == ("red", "blue")
    assert (voc.category_ids, listed.category_ids) == ((1, 2), (3, 7))
    for index, (_, rows) in enumerate(pictures(6)):
        for boxed in (voc, listed):
            known = boxed.boxes_of(index)
            assert known.corners.tolist() == [list(row[1:]) for row in rows]
            assert [boxed.classes[label] for label in known.labels] == [row[0] for row in rows]
            assert known.size == (64, 96)
    assert [key.rpartition("/")[2] for key in voc.images.keys] == [key.rpartition("/")[2] for key in listed.images.keys]


def test_presence__says_which_classes_an_image_shows_so_that_sets_are_cut_by_class(tmp_path: Path):
    boxed = open_boxed_images(write_voc(tmp_path / "voc", 24))
    assert boxed.images.multi_hot is not None
    for index, row in enumerate(boxed.images.multi_hot):
        assert set(np.flatnonzero(row)) == set(boxed.boxes_of(index).labels)
    split = make_split(boxed.images)
    assert split.counts()["train"] > 10
    assert min(split.counts()[part] for part in ("val", "test")) >= 1


def test_image_lists__of_voc_say_which_part_an_image_belongs_to(tmp_path: Path):
    root = write_voc(tmp_path / "voc")
    lists = root / "ImageSets" / "Main"
    lists.mkdir(parents=True)
    for part, stems in {"train": "0\n1\n", "val": "2\n", "test": "3 1\n4\n"}.items():
        (lists / f"{part}.txt").write_text(stems)
    boxed = open_boxed_images(root)
    assert boxed.images.declared_splits == ["train", "train", "val", "test", "test"]
    (lists / "val.txt").write_text("2\n0\n")
    with pytest.raises(UserError, match="lists '0', which is also in the list of train"):
        open_boxed_images(root)


def test_folders__named_after_parts_are_those_parts(tmp_path: Path):
    for seed, part in enumerate(("train", "valid", "test")):
        write_coco(tmp_path / "set" / part, 3, seed)
    boxed = open_boxed_images(tmp_path / "set")
    assert sorted(boxed.images.declared_splits) == ["test"] * 3 + ["train"] * 3 + ["val"] * 3
    assert boxed.images.keys[0] == "test/0.png"


def test_annotations_folder__above_the_images_is_found(tmp_path: Path):
    root = tmp_path / "set"
    file = write_coco(root / "train2017")
    (root / "annotations").mkdir()
    file.rename(root / "annotations" / "instances_train2017.json")
    assert set(open_boxed_images(root).images.keys) == {f"train2017/{n}.png" for n in range(6)}
    assert set(open_boxed_images(root).images.declared_splits) == {"train"}
    alone = open_boxed_images(root / "annotations" / "instances_train2017.json")
    assert alone.images.keys[0] == "train2017/0.png"


def test_holes_unused_classes_bare_images_and_empty_boxes__are_kept_or_told(tmp_path: Path):
    file = write_coco(tmp_path / "set", numbers={"pieces": 0, "red": 3, "blue": 70})
    content = json.loads(file.read_text())
    content["annotations"] = [row for row in content["annotations"] if row["image_id"] != 2]
    content["annotations"].append({"id": 9999, "image_id": 0, "category_id": 3, "bbox": [5, 5, 0, 10], "iscrowd": 0})
    content["annotations"].append({"id": 9998, "image_id": 0, "category_id": 3, "bbox": [-9, 5, 20, 10], "iscrowd": 1})
    file.write_text(json.dumps(content))
    boxed = open_boxed_images(file.parent)
    assert (boxed.classes, boxed.category_ids) == (("red", "blue"), (3, 70))
    assert len(boxed.boxes_of(2)) == 0
    assert boxed.boxes_of(0).corners[-1].tolist() == [0, 5, 11, 15]
    assert boxed.boxes_of(0).crowd.tolist() == [False] * (len(boxed.boxes_of(0)) - 1) + [True]
    assert boxed.images.notes == (
        "1 box without an area dropped",
        "1 box cut at the edge of the image",
        "1 box marked as a crowd: neither trained on nor counted",
        "1 class without a box left out: pieces",
        "1 image without a box, used as negatives",
    )


def test_two_categories_of_one_name__stay_two_classes(tmp_path: Path):
    file = write_coco(tmp_path / "set")
    rows = [{"id": 3, "name": "cell"}, {"id": 7, "name": "cell"}]
    change(file, categories=rows)
    assert open_boxed_images(file).classes == ("cell", "cell (7)")


BAD_BOXES = {
    "outside": ([200, 5, 10, 10], "a box of 'red' outside the image"),
    "negative size": ([20, 5, -10, 10], "left <= right and top <= bottom"),
    "not a number": ([float("nan"), 5, 10, 10], "are not finite numbers"),
    "three numbers": ([1, 2, 3], "expected left, top, width and height"),
    "words": (["a", 2, 3, 4], "expected left, top, width and height"),
}


@pytest.mark.parametrize("kind", BAD_BOXES)
def test_coco__refuses_boxes_that_cannot_be_meant(tmp_path: Path, kind: str):
    box, words = BAD_BOXES[kind]
    file = write_coco(tmp_path / "set")
    rows = json.loads(file.read_text())["annotations"]
    change(file, annotations=[*rows, {"id": 1e6, "image_id": 0, "category_id": 3, "bbox": box}])
    with pytest.raises(UserError, match=words):
        open_boxed_images(file)


def test_coco__refuses_what_it_does_not_list(tmp_path: Path):
    file = write_coco(tmp_path / "set")
    rows = json.loads(file.read_text())["annotations"]
    for row, words in (
        (
            {"image_id": 0, "category_id": 4, "bbox": [1, 1, 5, 5]},
            "of the category 4, expected one of 3, 7",
        ),
        ({"image_id": 77, "category_id": 3, "bbox": [1, 1, 5, 5]}, "of the image 77, which is not in 'images'"),
        ({"image_id": [1], "category_id": 3, "bbox": [1, 1, 5, 5]}, "which is not in 'images'"),
    ):
        change(file, annotations=[*rows, row])
        with pytest.raises(UserError, match=words):
            open_boxed_images(file)


def named(name: object, number: object = 0) -> list[dict]:
    return [{"id": number, "file_name": name, "width": 96, "height": 64}]


BAD_FILES = {
    "empty": ("", "cannot be read"),
    "no JSON": ("{", "cannot be read"),
    "a list": ("[]", "lacks 'images', 'annotations' or 'categories'"),
    "nothing in it": (json.dumps({"images": [], "annotations": [], "categories": []}), "has no annotated image"),
    "no box": (json.dumps({**coco([("0.png", (96, 64), [])], {"red": 1})}), "has no box in 1 image"),
    "no file": (json.dumps(coco([("9.png", (96, 64), [])], {"red": 1})), "there is no such image"),
    "out of it": (
        json.dumps({**coco([], {"red": 1}), "images": named("../secret.png")}),
        "a path out of the data folder",
    ),
    "absolute": (
        json.dumps({**coco([], {"red": 1}), "images": named("/etc/passwd")}),
        "a path out of the data folder",
    ),
    "no name": (json.dumps({**coco([], {"red": 1}), "images": named(None)}), "without an id or a file_name"),
    "two of one id": (json.dumps({**coco([], {"red": 1}), "images": named("0.png") * 2}), "two images with the id 0"),
    "one twice": (
        json.dumps({**coco([], {"red": 1}), "images": named("0.png") + named("0.png", 1)}),
        "is described twice",
    ),
    "another size": (
        json.dumps(coco([("0.png", (97 + 9, 64), [])], {"red": 1})),
        "has 106x64 pixels, but the image has 96x64",
    ),
    "turned": (json.dumps(coco([("0.png", (64, 96), [])], {"red": 1})), "as after an EXIF rotation"),
    "images in words": (json.dumps({"images": "all", "annotations": [], "categories": []}), "that is not a list"),
    "category without name": (
        json.dumps({"images": [], "annotations": [], "categories": [{"id": 1}]}),
        "a category without a name or a unique id",
    ),
}


@pytest.mark.parametrize("kind", BAD_FILES)
def test_coco__refuses_damaged_files_in_one_sentence(tmp_path: Path, kind: str):
    text, words = BAD_FILES[kind]
    file = write_coco(tmp_path / "set")
    file.write_text(text)
    with pytest.raises(UserError, match=words) as refused:
        open_boxed_images(file.parent)
    assert "\n" not in str(refused.value)


def test_links_out_of_the_folder__are_refused(tmp_path: Path):
    file = write_coco(tmp_path / "set")
    Image.new("RGB", (96, 64)).save(tmp_path / "elsewhere.png")
    (tmp_path / "set" / "0.png").unlink()
    os.symlink(tmp_path / "elsewhere.png", tmp_path / "set" / "0.png")
    with pytest.raises(UserError, match="is outside"):
        open_boxed_images(file.parent)


def xml_with(entity: str) -> str:
    return f"<!DOCTYPE a [{entity}]><annotation><filename>0.png</filename></annotation>"


BAD_XML = {
    "entities": (xml_with('<!ENTITY a "b"><!ENTITY c "&a;&a;">'), "declares a document type"),
    "an outer file": (xml_with('<!ENTITY a SYSTEM "file:///etc/passwd">'), "declares a document type"),
    "no XML": ("{}", "is not XML"),
    "empty": ("", "is not XML"),
    "no name": ("<annotation><object><bndbox/></object></annotation>", "an object without a name"),
    "no corners": ("<annotation><object><name>red</name></object></annotation>", "expected numbers for xmin"),
    "size in words": (
        "<annotation><size><width>w</width><height>1</height></size></annotation>",
        "width of 'w' and a height of '1'",
    ),
}


@pytest.mark.parametrize("kind", BAD_XML)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_voc__refuses_damaged_and_hostile_files(tmp_path: Path, kind: str, encoding: str):
    text, words = BAD_XML[kind]
    root = write_voc(tmp_path / "voc")
    (root / "Annotations" / "0.xml").write_bytes(text.encode(encoding))
    with pytest.raises(UserError, match=words):
        open_boxed_images(root)


def test_voc__of_a_missing_image_is_refused(tmp_path: Path):
    root = write_voc(tmp_path / "voc")
    (root / "JPEGImages" / "3.png").unlink()
    with pytest.raises(UserError, match=r"describes '3\.png', but there is no such image"):
        open_boxed_images(root)


def test_voc__beside_the_images_is_found_and_an_unknown_size_is_taken_from_the_image(tmp_path: Path):
    folder = tmp_path / "set"
    folder.mkdir()
    for number, (image, rows) in enumerate(pictures(3)):
        image.save(folder / f"{number}.png")
        write_xml(folder / f"{number}.xml", "", (0, 0), rows)
    boxed = open_boxed_images(folder)
    assert boxed.boxes_of(1).size == (64, 96)
    assert boxed.images.keys == ["0.png", "1.png", "2.png"]


@pytest.mark.parametrize("made", ["nothing", "images alone", "a text file"])
def test_places_without_boxes__are_refused_with_what_is_expected(tmp_path: Path, made: str):
    place = tmp_path / "set"
    if made == "images alone":
        write_coco(place).unlink()
    elif made == "a text file":
        place = tmp_path / "boxes.txt"
        place.write_text("0.png 1 2 3 4")
    with pytest.raises(
        UserError, match="there is no file or folder" if made == "nothing" else "Pascal VOC's Annotations"
    ):
        open_boxed_images(place)


def test_images_without_a_description__are_counted_and_not_taken_for_empty_ones(tmp_path: Path):
    file = write_coco(tmp_path / "set")
    Image.new("RGB", (96, 64)).save(tmp_path / "set" / "more.png")
    boxed = open_boxed_images(file.parent)
    assert "more.png" not in boxed.images.keys
    assert "1 image without an annotation is left out" in boxed.images.notes


@with_data
def test_real_sets__have_the_boxes_that_their_makers_count():
    cells, chess = open_boxed_images(DATA / "bccd"), open_boxed_images(DATA / "chess")
    assert (len(cells.images), cells.count_boxes(range(364)), cells.classes) == (364, 4886, ("Platelets", "RBC", "WBC"))
    assert "2 boxes without an area dropped" in cells.images.notes
    assert (len(chess.images), chess.count_boxes(range(289)), len(chess.classes)) == (289, 2870, 13)
    assert make_split(chess.images).counts() == {"train": 202, "val": 58, "test": 29, "unused": 0}


def save_turned(path: Path, size: tuple[int, int], value: int) -> None:
    entry = struct.pack("<HHII", 0x0112, 4, 1, value)  # 4: a number of 32 bits, which can hold what is invalid
    exif = b"Exif\0\0II*\0\x08\0\0\0\x01\0" + entry + bytes(4)
    Image.new("RGB", size, (90, 90, 90)).save(path, exif=exif)


@pytest.mark.parametrize("value", [0, 9, 65537, 65542])
def test_invalid_exif_orientations__are_ignored(tmp_path: Path, value: int):
    root = write_voc(tmp_path / "set")
    expected = open_boxed_images(root).boxes_of(0)
    save_turned(root / "JPEGImages/0.png", (96, 64), value)
    boxed = open_boxed_images(root)
    assert boxed.images.notes == ()
    assert boxed.boxes_of(0).size == (64, 96)
    assert boxed.boxes_of(0).corners.tolist() == expected.corners.tolist()
    assert boxed.images.store.read(0).size == (96, 64)


@pytest.mark.parametrize(
    ("value", "size", "says_size", "is_ambiguous"),
    [
        *((2, (96, 64), True, True), (3, (96, 64), True, True), (4, (96, 64), True, True)),
        *(
            (6, (64, 96), True, False),
            (6, (64, 96), False, True),
            (8, (80, 80), True, True),
            (1, (96, 64), True, False),
        ),
    ],
)
def test_turned_images__whose_size_tells_nothing_are_named(
    tmp_path: Path, value: int, size: tuple[int, int], says_size: bool, is_ambiguous: bool
):
    root = write_voc(tmp_path / "set")
    save_turned(root / "JPEGImages/0.png", size, value)
    upright = size[::-1] if value >= 5 else size
    write_xml(root / "Annotations/0.xml", "0.png", upright if says_size else (0, 0), [("red", 1, 2, 30, 40)])
    boxed = open_boxed_images(root)
    said = [note for note in boxed.images.notes if "by its EXIF tag (JPEGImages/0.png)" in note]
    assert len(said) == is_ambiguous
    assert boxed.boxes_of(0).size == upright[::-1]


def test_boxes_drawn_before_an_image_was_turned__are_refused(tmp_path: Path):
    root = write_voc(tmp_path / "set")
    save_turned(root / "JPEGImages/0.png", (96, 64), 6)
    with pytest.raises(UserError, match="has 96x64 pixels, but the image has 64x96 after its EXIF rotation: store"):
        open_boxed_images(root)


def test_crowds_alone_and_shares_of_sides__are_refused_for_what_they_are(tmp_path: Path):
    file = write_coco(tmp_path / "set")
    rows = json.loads(file.read_text())["annotations"]
    change(file, annotations=[{**row, "iscrowd": 1} for row in rows])
    with pytest.raises(UserError, match=rf"all {len(rows)} boxes of '.*' are marked as crowds \(iscrowd\)"):
        open_boxed_images(file)
    change(file, annotations=[{**row, "bbox": [0.1, 0.2, 0.5, 0.6]} for row in rows])
    with pytest.raises(UserError, match="are at most 1, like fractions of the images' sides; expected pixels"):
        open_boxed_images(file)


def test_class_names_that_look_the_same__are_noted(tmp_path: Path):
    file = write_coco(tmp_path / "set")
    change(file, categories=[{"id": 3, "name": "RBC"}, {"id": 7, "name": "rbc "}])
    boxed = open_boxed_images(file)
    assert boxed.classes == ("RBC", "rbc ")
    assert boxed.images.notes == (
        "some class names look the same ('RBC' and 'rbc '): rename the classes if they should be one class",
    )
