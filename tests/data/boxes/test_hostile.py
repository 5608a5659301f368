"""Numbers that no box has, in every layout: NaN, infinity and shapes far beyond their image."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from data.boxes.written import PIXELS, write_cvat, write_label_studio, write_labelme, write_tables, write_yolo
from paucal.tasks.detection.images import open_boxed
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
        boxed, refusal = open_boxed(root), ""
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
