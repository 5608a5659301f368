"""YOLO text files: data.yaml in its forms, lists, names, labels beside or apart, and what is refused by its line."""

from pathlib import Path

import pytest
import yaml
from PIL import Image

from data.boxes.written import NAMES, PART, write_yolo
from paucal.data.boxes.annotations import AnnotationSet
from paucal.data.boxes.opening import read_boxes
from paucal.types import UserError
from tasks.detection.made import pictures


def told(root: Path, **content: object) -> Path:
    (root / "data.yaml").write_text(yaml.safe_dump(content))
    return root


def require_read(described: AnnotationSet, has_parts: bool = True) -> None:
    assert len(described.images) == 6
    for one in described.images:
        n = int(Path(one.key).stem)
        rows = pictures(6)[n][1]
        assert one.names == [row[0] for row in rows]
        for box, row in zip(one.boxes, rows, strict=True):
            assert box == pytest.approx(row[1:], abs=1e-3)
        assert one.declared_split == (PART[n] if has_parts else "")


FOLDERS = {part: f"images/{part}" for part in ("train", "val", "test")}
CONFIGS = {
    "plain": FOLDERS,
    "lists of folders": {part: [folder] for part, folder in FOLDERS.items()},
    "relative path": {**FOLDERS, "path": "."},
    "path of another machine": {**FOLDERS, "path": "/content/datasets/cells"},
    "path above": {**FOLDERS, "path": "../datasets/cells"},
    "absolute folders": {part: f"/home/me/cells/{folder}" for part, folder in FOLDERS.items()},
    "slashes": {part: f"./{folder}/" for part, folder in FOLDERS.items()},
    "windows": {part: folder.replace("/", "\\") for part, folder in FOLDERS.items()},
    "within path": {"path": "images", "train": "train", "val": "val", "test": "test"},
}


@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize("names", [NAMES, dict(enumerate(NAMES))], ids=["list", "dict"])
def test_data_yaml__in_its_forms(tmp_path: Path, kind: str, names: object):
    root = told(write_yolo(tmp_path / "set"), names=names, nc=2, **CONFIGS[kind])
    require_read(read_boxes(root)[1])
    described = read_boxes(root / "data.yaml")[1]
    require_read(described)
    assert described.class_numbers == {"red": 0, "blue": 1}


@pytest.mark.parametrize(
    ("images", "labels"),
    [("{}/images", "{}/labels"), ("{}", "{}"), ("images/{}", "images/{}"), ("Images/{}", "Labels/{}")],
)
def test_labels__lie_in_parallel_or_beside(tmp_path: Path, images: str, labels: str):
    root = write_yolo(tmp_path / "set", images, labels)
    (root / "classes.txt").write_text("\ufeffred\r\nblue\r\n", encoding="utf-8")
    require_read(read_boxes(root)[1])
    roboflow = {part: f"../{images.format(part)}" for part in ("train", "val", "test")}
    require_read(read_boxes(told(root, names=NAMES, **roboflow))[1])


def test_lists__of_images_in_yaml_and_beside(tmp_path: Path):
    root = write_yolo(tmp_path / "set", "images", "labels")
    for part in ("train", "val", "test"):
        lines = [f"./images/{n}.png" for n, own in PART.items() if own == part]
        (root / f"{part}.txt").write_text("\n".join(lines))
    (root / "obj.names").write_text("red\nblue\n")
    require_read(read_boxes(root)[1])
    (root / "obj.names").unlink()
    require_read(read_boxes(told(root, names=NAMES, train="train.txt", val=["val.txt"], test="test.txt"))[1])


def test_lists__with_images_that_are_missing_are_told_of(tmp_path: Path):
    root = told(write_yolo(tmp_path / "set", "images", "labels"), names=NAMES, train="train.txt", val="val.txt")
    (root / "train.txt").write_text("./images/0.png\n./images/8.png\n./images/9.png\n")
    (root / "val.txt").write_text("./images/1.png\n")
    assert "2 lines of train.txt without an image, such as './images/8.png'" in read_boxes(root)[1].notes


@pytest.mark.parametrize("names", ["red\n\nblue\n", "\nred\nblue\n"])
def test_names_after_an_empty_line__are_refused(tmp_path: Path, names: str):
    root = write_yolo(tmp_path / "set", "images", "labels")
    (root / "classes.txt").write_text(names)
    with pytest.raises(UserError, match="is empty, so the class numbers after this line are unclear"):
        read_boxes(root)
    (root / "classes.txt").write_text("red\r\nblue\r\n\r\n \r\n")
    require_read(read_boxes(root)[1], has_parts=False)


def test_yaml_elsewhere__names_the_folder_of_the_images(tmp_path: Path):
    root = write_yolo(tmp_path / "set")
    (tmp_path / "configs").mkdir()
    for path in (str(root), "../set"):
        content = {"path": path, "names": NAMES, **FOLDERS}
        (tmp_path / "configs/cells.yaml").write_text(yaml.safe_dump(content))
        require_read(read_boxes(tmp_path / "configs/cells.yaml")[1])


def test_outlines__have_a_box_and_points(tmp_path: Path):
    root = told(write_yolo(tmp_path / "set", outline=True), names=NAMES, **FOLDERS)
    described = read_boxes(root)[1]
    require_read(described)
    first = next(one for one in described.images if one.key.endswith("/0.png"))
    left, top, right, bottom = pictures(6)[0][1][0][1:]
    expected = [left, top, right, top, right, bottom, left, bottom]
    assert first.outlines[0][0] == pytest.approx(expected, abs=1e-3)


def test_key_points__are_passed_over_where_the_yaml_has_their_shape(tmp_path: Path):
    root = write_yolo(tmp_path / "set")
    for path in (root / "labels").rglob("*.txt"):
        path.write_text("".join(f"{text} 0.5 0.5 2 0.1 0.1 2\n" for text in path.read_text().splitlines()))
    require_read(read_boxes(told(root, names=NAMES, kpt_shape=[2, 3], **FOLDERS))[1])


def test_without_names__classes_are_numbers(tmp_path: Path):
    described = read_boxes(write_yolo(tmp_path / "set"))[1]
    assert described.class_numbers == {"0": 0, "1": 1}
    assert "there is no data.yaml and no classes.txt, so the class numbers are used as class names" in described.notes


def test_empty_labels_missing_labels_and_missing_images(tmp_path: Path):
    root = told(write_yolo(tmp_path / "set", "images", "labels"), names=NAMES, train="images", val="images")
    (root / "labels/0.txt").write_text("")
    (root / "labels/1.txt").unlink()
    (root / "images/2.png").unlink()
    described = read_boxes(root)[1]
    assert [(Path(one.key).stem, len(one.boxes) > 0) for one in described.images] == [
        *(("0", False), ("3", True), ("4", True), ("5", True), ("1", False)),
    ]
    assert described.images[-1].declared_split == "train"
    assert described.notes == (
        "val and train have the same images, which are used as train only",
        "1 label file without an image was left out, such as labels/2.txt",
        "1 image without a label file was read as having no objects",
    )


def test_missing_labels__mean_nothing_where_no_yaml_names_the_images(tmp_path: Path):
    root = write_yolo(tmp_path / "set", "images", "labels")
    (root / "labels/1.txt").unlink()
    described = read_boxes(root)[1]
    assert [Path(one.key).stem for one in described.images] == ["0", "2", "3", "4", "5"]
    assert "1 image without an annotation is left out" in described.notes


BAD = {
    "0 0.5 0.5 0.1": "expected a class number and either four numbers",
    "0 0.5 0.5 0.1 0.1 0.9": "expected a class number and either four numbers",
    "red 0.5 0.5 0.1 0.1": "expected a class number and either four numbers",
    "0.5 0.5 0.5 0.1 0.1": "expected a class number",
    "-1 0.5 0.5 0.1 0.1": "expected a class number",
    "0 0.5 0.5 0.1 1.2": "with a number below 0 or above 1: give fractions",
    "0 48 32 10 10": "with a number below 0 or above 1: give fractions",
    "2 0.5 0.5 0.1 0.1": r"has the class 2, but .*data\.yaml names 2 classes \(0 to 1\)",
}


@pytest.mark.parametrize("text", BAD)
def test_lines_that_are_no_object__are_refused_by_file_and_line(tmp_path: Path, text: str):
    root = told(write_yolo(tmp_path / "set"), names=NAMES, **FOLDERS)
    (root / "labels/train/1.txt").write_text(f"0 0.5 0.5 0.1 0.1\n\n{text}\n")
    with pytest.raises(UserError, match=rf"line 3 of '.*labels/train/1\.txt' .*{BAD[text]}"):
        read_boxes(root)


REFUSED = {
    "no folder": ({**FOLDERS, "train": "nowhere"}, "gives 'nowhere' as the train images, but .* has no such images"),
    "shared images": (
        {"train": ["images/train", "images/val"], "val": "images/val"},
        "has 1 image in train and in val",
    ),
    "yes and no": (
        {**FOLDERS, "names": [True, False]},
        "has the class number 0 with the name True, expected an integer and a text",
    ),
    "no names": ({**FOLDERS, "names": {}}, "has no names of classes"),
    "a number": ({**FOLDERS, "train": 5}, "gives train as 5, expected a folder or a list"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_configurations_that_do_not_fit__are_refused(tmp_path: Path, kind: str):
    content, words = REFUSED[kind]
    root = told(write_yolo(tmp_path / "set"), **{"names": NAMES, **content})
    with pytest.raises(UserError, match=words):
        read_boxes(root)


def test_twins_and_several_files__are_refused(tmp_path: Path):
    root = told(write_yolo(tmp_path / "set"), names=NAMES, **FOLDERS)
    Image.new("RGB", (8, 8)).save(root / "images/train/0.bmp")
    with pytest.raises(UserError, match=r"may describe 'images/train/0\.bmp' or 'images/train/0\.png'"):
        read_boxes(root)
    (root / "images/train/0.bmp").unlink()
    (root / "other.yaml").write_text((root / "data.yaml").read_text())
    with pytest.raises(UserError, match=r"several YAML files of a YOLO data set \(data\.yaml, other\.yaml\)"):
        read_boxes(root)
    require_read(read_boxes(root / "other.yaml")[1])


@pytest.mark.parametrize(("text", "counts"), [("inf 0.5 0.5 0.1 0.1", False), ("0 0.5 0.5 0.1 0.1", True)])
def test_text_without_image__is_a_label_only_if_it_begins_with_a_class(tmp_path: Path, text: str, counts: bool):
    root = told(write_yolo(tmp_path / "set"), names=NAMES, **FOLDERS)
    (root / "labels/train/notes.txt").write_text(text)
    described = read_boxes(root)[1]
    note = "1 label file without an image was left out, such as labels/train/notes.txt"
    assert (note in described.notes) is counts
