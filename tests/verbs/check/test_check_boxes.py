"""`paucal check` on images with boxes."""

import json
import shutil
from pathlib import Path

import pytest
from PIL import Image

import paucal
from cli.calls import make_photos
from paucal.cli.main import main
from paucal.data.checking.findings import Finding
from paucal.data.sources.opening import open_images
from paucal.tasks.detection.images import open_boxed_images
from paucal.types import UserError
from paucal.verbs.check.annotations import BOXES, MASKS, applicable_findings
from tasks.detection.made import change, write_coco, write_voc

pytestmark = pytest.mark.usefixtures("kept_models")


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
    assert [one.name for one in applicable_findings(made)] == [kind, "near-duplicates"]
    assert applicable_findings(made[1:]) == made[1:]


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
    assert texts(found, "tiny-boxes") == ["1 box with a side under 8 pixels, in 1 image"]
    assert texts(found, "repeated-boxes") == ["1 box drawn twice on one object, in 1 image"]
    assert texts(found, "images-without-boxes") == ["1 image of 12 without a box, used as negatives"]
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
    assert texts(found, "outside-boxes") == ["1 box outside of their image, in 1 image"]
    assert keys(found, "outside-boxes") == ["0.png"]
    assert "outside the image" in texts(found, "bad-boxes")[0]
    assert next(one.advice for one in found.findings if one.name == "bad-boxes") == "correct the box"


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


def test_boxes_of_an_image_that_is_not_there__are_no_classes_of_their_folders(tmp_path: Path):
    file = write_coco(tmp_path / "set", 6)
    (file.parent / "images").mkdir()
    for image in file.parent.glob("*.png"):
        image.rename(file.parent / "images" / image.name)
    shutil.copytree(file.parent / "images", file.parent / "other")
    images = json.loads(file.read_text())["images"]
    images[0]["file_name"] = "nowhere.png"
    change(file, images=images)
    found = paucal.check(file.parent)
    assert found.misleads
    assert "nowhere.png" in texts(found, "bad-boxes")[0]
    with pytest.raises(UserError, match="has boxes"):
        open_images(file.parent)


def test_class_folders_with_a_stray_json__are_still_classes(tmp_path: Path):
    photos = make_photos(tmp_path / "photos", 2, 4)
    (photos / "notes.json").write_text('{"images": 8}')
    found = paucal.check(photos)
    assert texts(found, "boxes") == []
    assert found.facts["classes"] == 2


@pytest.mark.parametrize(("side", "count"), [((3, 40), 1), ((40, 3), 1), ((7.9, 20), 1), ((8, 20), 0), ((20, 30), 0)])
def test_tiny_boxes__are_those_with_a_shorter_side_under_8_pixels(tmp_path: Path, side: tuple, count: int):
    file = write_coco(tmp_path / "set", 4)
    rows = annotations(file)
    rows[0]["bbox"] = [1, 1, *side]
    change(file, annotations=rows)
    found = paucal.check(file.parent)
    assert texts(found, "tiny-boxes") == [f"{count} box with a side under 8 pixels, in 1 image"] * count
    assert [one.advice[:30] for one in found.findings if one.name == "tiny-boxes"] == [
        "remove such small boxes, or cu"
    ] * count


def test_the_size_in_the_middle__is_of_medians(tmp_path: Path):
    make_photos(tmp_path / "photos", 2, 3)
    sizes = [(20, 90), (30, 70), (40, 80), (50, 30), (60, 20), (70, 10)]
    for path, size in zip(sorted((tmp_path / "photos").rglob("*.png")), sizes, strict=True):
        Image.new("RGB", size).save(path)
    facts = paucal.check(tmp_path / "photos").facts["sizes"]
    assert facts["median"] == [50, 45]  # of the heights 10 to 90, and of the widths 20 to 70
    assert (facts["smallest"], facts["largest"]) == ([10, 70], [80, 40])


@pytest.mark.parametrize("kind", ["missing image", "no fitting list", "own folder", "unread", "turned", "twice"])
def test_boxes_that_detect_cannot_begin_with__are_exit_code_1(tmp_path: Path, kind: str):
    root = write_voc(tmp_path / "set")
    if kind == "missing image":
        (root / "JPEGImages/3.png").unlink()
    elif kind == "no fitting list":
        (root / "ImageSets/Main").mkdir(parents=True)
        (root / "ImageSets/Main/train.txt").write_text("a\nb\n")
    elif kind == "own folder":
        (tmp_path / "VOCdevkit").mkdir()
        root.rename(tmp_path / "VOCdevkit/VOC2012")
        root = tmp_path / "VOCdevkit"
    elif kind == "unread":
        shutil.rmtree(root / "Annotations")
        (root / "via.json").write_text('{"0.png1": {"regions": [{"shape_attributes": {"name": "rect"}}]}}')
    elif kind == "turned":
        path = root / "Annotations/0.xml"
        path.write_text(path.read_text().replace("bndbox", "robndbox"))
    else:
        write_coco(root / "JPEGImages")
        change(root / "JPEGImages/_annotations.coco.json", images=[], annotations=[])
        for n in range(2):
            shutil.copy(root / "Annotations/0.xml", root / f"Annotations/x{n}.xml")
    assert main(["detect", str(root), "--print-config"]) == 2
    found = paucal.check(root)
    assert found.misleads
    assert len(texts(found, "bad-boxes")) == 1
    assert main(["check", str(root)]) == 1


@pytest.mark.parametrize("ending", [".zip", ".tar"])
def test_archives_of_boxes__are_checked(tmp_path: Path, ending: str):
    root = write_voc(tmp_path / "set", 12)
    file = shutil.make_archive(str(tmp_path / "set"), ending[1:], root)
    plain, packed = paucal.check(root), paucal.check(file)
    names = ("boxes", "boxes-per-class", "box-sizes")
    assert [texts(packed, name) for name in names] == [texts(plain, name) for name in names]
    assert not packed.misleads


def test_classes_with_annotations_beside_their_images__stay_classes(tmp_path: Path):
    photos = make_photos(tmp_path / "photos", 2, 4)
    for path in list(photos.rglob("*.png")):
        path.with_suffix(".txt").write_text("0 0.5 0.5 0.2 0.2\n")
    found = paucal.check(photos)
    assert texts(found, "boxes") == []
    assert (found.facts["classes"], found.misleads) == (2, False)


def test_a_sentence_with_values__is_not_torn_at_a_colon(tmp_path: Path):
    file = write_coco(tmp_path / "set")
    change(file, categories=[{"id": 3, "name": "red"}, {"id": 7}])
    (finding,) = [one for one in paucal.check(file).findings if one.name == "bad-boxes"]
    assert finding.text.endswith("has a category without a name or a unique id: {'id': 7}; correct the entry")
    assert finding.advice == ""


def test_names_alike_difficult_boxes_and_turned_images__are_said(tmp_path: Path):
    root = write_voc(tmp_path / "set", 8)
    path = root / "Annotations/0.xml"
    path.write_text(path.read_text().replace("<bndbox>", "<difficult>1</difficult><bndbox>", 1))
    for n in (1, 2, 3):
        path = root / f"Annotations/{n}.xml"
        path.write_text(path.read_text().replace("red", "Red").replace("blue", "Red"))
    exif = Image.Exif()
    exif[0x0112] = 3
    Image.new("RGB", (96, 64)).save(root / "JPEGImages/4.png", exif=exif)
    found = paucal.check(root)
    notes = texts(found, "source")
    total = sum(file.read_text().count("<object>") for file in (root / "Annotations").iterdir())
    assert texts(found, "boxes")[0].startswith(f"8 images with {total - 1} boxes of ")
    assert open_boxed_images(root).count_boxes() == total - 1
    assert "1 box marked as difficult: neither trained on nor counted" in notes
    assert any(note.startswith("some class names look the same ('Red' and 'red')") for note in notes)
    assert any(note.startswith("1 image is rotated by its EXIF tag (JPEGImages/4.png), and the size") for note in notes)
