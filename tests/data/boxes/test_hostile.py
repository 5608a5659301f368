"""What no honest set has, in every layout: NaN and infinity, paths that lead out, entities, endless polygons."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from data.boxes.written import PIXELS, write_cvat, write_label_studio, write_labelme, write_tables, write_yolo
from paucal.tasks.detection.images import open_boxed_images
from paucal.types import UserError
from tasks.detection.made import write_coco, write_voc

BAD = ("nan", "inf", "-inf", "1e300")


def replace_first(file: Path, pattern: str, text: str) -> None:
    changed, count = re.subn(pattern, text, file.read_text(), count=1)
    assert count == 1, f"{pattern} is not in {file}"
    file.write_text(changed)


def json_number(text: str) -> str:
    return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}.get(text, text)


def yolo(root: Path, number: str) -> Path:
    write_yolo(root, "images", "labels")
    (root / "labels/0.txt").write_text(f"0 0.5 {number} 0.1 0.1\n")
    return root


def coco(root: Path, number: str) -> Path:
    replace_first(write_coco(root), r'"bbox": \[\d+', f'"bbox": [{json_number(number)}')
    return root


def voc(root: Path, number: str) -> Path:
    write_voc(root)
    replace_first(root / "Annotations/0.xml", r"<xmax>\d+", f"<xmax>{number}")
    return root


def cvat(root: Path, number: str) -> Path:
    return write_cvat(root, extra=f'<box label="red" xtl="1" ytl="{number}" xbr="9" ybr="9"/>')


def ellipse(root: Path, number: str) -> Path:
    return write_cvat(root, extra=f'<ellipse label="red" cx="{number}" cy="9" rx="3" ry="3"/>')


def labelme(root: Path, number: str) -> Path:
    write_labelme(root)
    replace_first(root / "0.json", r'"points": \[\[[\d.]+', f'"points": [[{json_number(number)}')
    return root


def studio(root: Path, number: str) -> Path:
    write_label_studio(root)
    file = next(root.glob("*.json"))
    replace_first(file, r'"width": [\d.]+', f'"width": {json_number(number)}')
    return root


def table(root: Path, number: str) -> Path:
    write_tables(root, PIXELS, {"boxes.csv": range(6)})
    file = next(root.rglob("*.csv"))
    lines = file.read_text().splitlines()
    place = lines[0].split(",").index("xmax")
    row = lines[1].split(",")
    row[place] = number
    file.write_text("\n".join([lines[0], ",".join(row), *lines[2:]]) + "\n")
    return root


MAKERS = (yolo, coco, voc, cvat, ellipse, labelme, studio, table)


@pytest.mark.parametrize("number", BAD)
@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
def test_numbers_that_no_box_has__are_refused_in_a_sentence(
    tmp_path: Path, make: Callable[[Path, str], Path], number: str
):
    root = make(tmp_path / "set", number)
    try:
        boxed, refusal = open_boxed_images(root), ""
    except UserError as problem:
        boxed, refusal = None, str(problem)
    if boxed is None:
        assert "\n" not in refusal
        assert refusal.endswith(".")
        return
    assert number != "nan"  # a box that reaches over the edge is cut there, however far it reaches
    for index in range(len(boxed.images)):
        boxes = boxed.boxes_of(index)
        assert (boxes.corners >= 0).all()
        assert (boxes.corners[:, 2:] <= boxes.size[::-1]).all()


def rename(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))


def in_json(name: str) -> str:
    return json.dumps(name)[1:-1]


def coco_path(root: Path, name: str) -> None:
    rename(write_coco(root), '"file_name": "0.png"', f'"file_name": "{in_json(name)}"')


def voc_path(root: Path, name: str) -> None:
    write_voc(root)
    (root / "JPEGImages/0.png").unlink()
    rename(root / "Annotations/0.xml", "<filename>0.png", f"<filename>{name}")


def cvat_path(root: Path, name: str) -> None:
    rename(write_cvat(root) / "annotations.xml", 'name="0.png"', f'name="{name}"')


def labelme_path(root: Path, name: str) -> None:
    write_labelme(root)
    content = json.loads((root / "0.json").read_text())
    (root / "0.json").write_text(json.dumps({**content, "imagePath": name}))
    (root / "0.png").unlink()


def studio_path(root: Path, name: str) -> None:
    write_label_studio(root)
    rename(next(root.glob("*.json")), "/data/upload/1/0.png", in_json(name))


def table_path(root: Path, name: str) -> None:
    rename(write_tables(root, PIXELS, {"boxes.csv": range(6)}) / "boxes.csv", "0.png", name)


def yolo_list(root: Path, name: str) -> None:
    write_yolo(root)
    (root / "train.txt").write_text(f"{name}\n")
    (root / "data.yaml").write_text("train: train.txt\nval: images/val\nnames: [red, blue]\n")


PATHS = (coco_path, voc_path, cvat_path, labelme_path, studio_path, table_path, yolo_list)


@pytest.mark.parametrize(
    "name", ["../secret.png", "{}/secret.png", "..\\secret.png"], ids=["up", "absolute", "windows"]
)
@pytest.mark.parametrize("make", PATHS, ids=lambda make: make.__name__)
def test_paths_out_of_the_set__are_refused_in_a_sentence(tmp_path: Path, make: Callable[[Path, str], None], name: str):
    Image.new("RGB", (96, 64)).save(tmp_path / "secret.png")
    make(tmp_path / "set", name.format(tmp_path))
    with pytest.raises(UserError, match="no such image") as refusal:
        open_boxed_images(tmp_path / "set")
    assert "\n" not in str(refusal.value)


LAUGHS = "".join(f'<!ENTITY a{n} "{f"&a{n - 1};" * 10}">' for n in range(1, 10))


@pytest.mark.parametrize("entity", [f'<!ENTITY a0 "x">{LAUGHS}', '<!ENTITY a9 SYSTEM "file:///etc/passwd">'])
@pytest.mark.parametrize("file", ["Annotations/0.xml", "annotations.xml"])
def test_entities__are_refused_in_every_xml(tmp_path: Path, file: str, entity: str):
    root = (write_voc if file.startswith("A") else write_cvat)(tmp_path / "set")
    text = (root / file).read_text().replace("red", "&a9;")
    (root / file).write_text(f"<!DOCTYPE a [{entity}]>{text}")
    with pytest.raises(UserError, match="declares a document type"):
        open_boxed_images(root)


ZIGZAG = [(4 + 80 * (n % 2), 4 + n % 50) for n in range(16_000)]  # 1.3 million pixels long


def coco_polygon(root: Path) -> None:
    content = json.loads(write_coco(root).read_text())
    content["annotations"][0]["segmentation"] = [[value for point in ZIGZAG for value in point]]
    (root / "_annotations.coco.json").write_text(json.dumps(content))


def yolo_polygon(root: Path) -> None:
    write_yolo(root, "images", "labels")
    (root / "labels/0.txt").write_text(" ".join(["0", *(f"{x / 96:.4f} {y / 64:.4f}" for x, y in ZIGZAG)]) + "\n")


def labelme_polygon(root: Path) -> None:
    write_labelme(root)
    content = json.loads((root / "0.json").read_text())
    shapes = [{"label": "red", "points": ZIGZAG, "shape_type": "polygon"}]
    (root / "0.json").write_text(json.dumps({**content, "shapes": shapes}))


def cvat_polygon(root: Path) -> None:
    points = ";".join(f"{x},{y}" for x, y in ZIGZAG)
    write_cvat(root, "polygon", extra=f'<polygon label="red" points="{points}"/>')


def studio_polygon(root: Path) -> None:
    write_label_studio(root, "polygon")
    file = next(root.glob("*.json"))
    content = json.loads(file.read_text())
    points = [[100 * x / 96, 100 * y / 64] for x, y in ZIGZAG]
    content[0]["annotations"][0]["result"][0]["value"]["points"] = points
    file.write_text(json.dumps(content))


POLYGONS = (coco_polygon, yolo_polygon, labelme_polygon, cvat_polygon, studio_polygon)


@pytest.mark.parametrize("make", POLYGONS, ids=lambda make: make.__name__)
def test_endless_polygons__are_refused_in_a_sentence(tmp_path: Path, make: Callable[[Path], None]):
    make(tmp_path / "set")
    with pytest.raises(UserError, match=r"an outline of '\w+' of more than 1,000,000 pixels in length") as refusal:
        open_boxed_images(tmp_path / "set")
    assert "\n" not in str(refusal.value)
