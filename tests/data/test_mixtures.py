"""Random mixtures of layouts in one folder, and hostile values in annotation files: opened, or refused in words."""

import copy
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from xml.sax.saxutils import quoteattr

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from data.boxes.written import PIXELS, labelme, region, rows_of, task, write_cvat, yolo_line
from paucal.data.boxes.label_studio import encode_brush
from paucal.data.label_kinds import describe_labels, report_other_label_kinds
from paucal.data.masks.masked_images import images_of_pairs, read_masks
from paucal.data.masks.pairs import find_pairs
from paucal.data.sources.opening import open_images
from paucal.tasks.detection.images import open_boxed_images
from paucal.types import UserError
from tasks.detection.made import coco, pictures, write_xml

PICTURES = pictures(4)
SIZE = PICTURES[0][0].size
MAX_WORDS = 2500  # characters of a message; the longest lists every layout


def save(image: Image.Image, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path)


def classes(root: Path) -> None:
    for n, (image, _) in enumerate(PICTURES):
        save(image.rotate(90 * n, expand=True), root / ("cat", "dog")[n % 2] / f"c{n}.png")


def class_table(root: Path) -> None:
    lines = [f"t{n}.png,{('cat', 'dog')[n % 2]}\n" for n in range(4)]
    (root / "labels.csv").write_text("".join(["image_path,label\n", *lines]))
    for n, (image, _) in enumerate(PICTURES):
        save(image, root / f"t{n}.png")


def masks(root: Path) -> None:
    for n, (image, _) in enumerate(PICTURES):
        save(image, root / f"images/m{n}.png")
        save(Image.fromarray((np.asarray(image)[..., 0] > 150).astype(np.uint8)), root / f"masks/m{n}.png")


def boxes_in(root: Path, write: Callable[[Path, int, str], None]) -> None:
    for n, (image, _) in enumerate(PICTURES):
        save(image, root / f"images/b{n}.png")
        write(root, n, f"b{n}.png")


def yolo(root: Path) -> None:
    def write(root: Path, n: int, name: str) -> None:
        (root / "labels").mkdir(exist_ok=True)
        (root / f"labels/b{n}.txt").write_text("\n".join(yolo_line(row, SIZE) for row in PICTURES[n][1]))

    boxes_in(root, write)


def voc(root: Path) -> None:
    def write(root: Path, n: int, name: str) -> None:
        (root / "Annotations").mkdir(exist_ok=True)
        write_xml(root / f"Annotations/b{n}.xml", name, SIZE, PICTURES[n][1])

    boxes_in(root, write)


def coco_file(root: Path) -> None:
    boxes_in(root, lambda root, n, name: None)
    content = coco([(f"b{n}.png", SIZE, rows) for n, (_, rows) in enumerate(PICTURES)], {"red": 1, "blue": 2})
    (root / "instances.json").write_text(json.dumps(content))


def box_table(root: Path) -> None:
    boxes_in(root, lambda root, n, name: None)
    rows = [[f"b{n}.png", *row[1:]] for n in range(4) for row in rows_of(n, PIXELS)]
    (root / "boxes.csv").write_text("\n".join(",".join(row) for row in [PIXELS, *rows]))


def labelme_files(root: Path) -> None:
    def write(root: Path, n: int, name: str) -> None:
        shapes = [
            {"label": label, "points": [[left, top], [right, bottom]], "shape_type": "rectangle"}
            for label, left, top, right, bottom in PICTURES[n][1]
        ]
        (root / f"images/b{n}.json").write_text(labelme(shapes, name, SIZE))

    boxes_in(root, write)


def unlabelled(root: Path) -> None:
    for n, (image, _) in enumerate(PICTURES):
        save(image, root / f"more/u{n}.png")


def litter(root: Path) -> None:
    (root / "notes.json").write_text('{"images": 3}')
    (root / "README.txt").write_text("a set\n1 2 3\n")
    (root / "config.yaml").write_text("name: x\n")
    (root / ".DS_Store").write_bytes(b"\0\1")
    (root / "__MACOSX").mkdir(exist_ok=True)


PIECES = (classes, class_table, masks, yolo, voc, coco_file, box_table, labelme_files, unlabelled, litter)


def read_set(root: Path) -> int:
    with report_other_label_kinds(root, "segment"):
        pairs = find_pairs(root)
    return len(read_masks(images_of_pairs(pairs, str(root)), pairs).images)


VERBS: dict[str, Callable[[Path], int]] = {
    "train": lambda root: len(open_images(root)),
    "detect": lambda root: len(open_boxed_images(root).images),
    "segment": read_set,
    "predict": lambda root: len(open_images(root, labelled=False)),
}


def outcome(verb: str, place: Path) -> int | str:
    """Return the number of images that a verb opens, or the sentence that refuses the place."""
    try:
        return VERBS[verb](place)
    except UserError as problem:
        words = str(problem)
        assert "\n" not in words
        assert 20 < len(words) < MAX_WORDS
        return words


@settings(max_examples=15, deadline=None, derandomize=True)
@given(st.sets(st.sampled_from(PIECES), min_size=1, max_size=4), st.booleans())
def test_mixtures__are_recognised_as_what_each_verb_opens(pieces: set[Callable[[Path], None]], below: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "set" / ("inner" if below else "")
        root.mkdir(parents=True)
        for piece in sorted(pieces, key=lambda piece: piece.__name__):
            piece(root)
        seen = describe_labels(root)
        for verb in ("train", "detect", "segment"):
            told = outcome(verb, root)
            if isinstance(told, int):
                assert verb in seen, (verb, told, seen)
                assert told >= 4
            elif verb not in seen:  # refused for lack of labels: it says what other verbs would read
                assert all(f"`paucal {other}`" in told for other in seen), (verb, told, seen)
        if pieces - {litter}:
            assert isinstance(outcome("predict", root), int)


HOSTILE: tuple[Any, ...] = (
    *(float("nan"), float("inf"), -1, -1e308, 1e308, 1 << 80, 0, True, None, "", " ", "\0", "a" * 5000, "\u202e\x1b["),
    *("../../../etc/passwd", "/etc/passwd", "C:\\x.png", "https://h/x.png", "&lol;", "<!DOCTYPE x>", "nan"),
    *([], {}, [[]], [None] * 3, [1e9] * 20_001, {"counts": "x" * 1000, "size": [1 << 20, 1 << 20]}, {"a": {"b": []}}),
)


def leaves(content: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    entries = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for name, value in entries:
        yield (*path, name)
        yield from leaves(value, (*path, name))


def documents() -> dict[str, Any]:
    """Return JSON of each layout with boxes, outlines of both kinds, masks and choices."""
    rows = PICTURES[0][1]
    outlined = coco([("0.png", SIZE, rows)], {"red": 1, "blue": 2})
    mask = np.zeros(SIZE[::-1], dtype=bool)
    mask[3:20, 4:30] = True
    runs = {"size": list(mask.shape), "counts": [3, 10, int(mask.size) - 13]}
    for one, outline in zip(outlined["annotations"], ([[4, 4, 30, 4, 30, 20]], runs, None), strict=False):
        one |= {"segmentation": outline, "bbox": [0, 0, 40, 40]} if outline else {}
    brush = {"format": "rle", "rle": encode_brush(mask)[:60], "brushlabels": ["red"]}
    results = [region(rows[0], SIZE), region(rows[0], SIZE, "polygon"), {**region(rows[0], SIZE), "value": brush}]
    segments = [{"id": 5, "category_id": 1}, {"id": 300, "category_id": 2}]
    panoptic = {
        "images": [{"id": 1, "file_name": "0.png"}],
        "annotations": [{"image_id": 1, "file_name": "0.png", "segments_info": segments}],
        "categories": [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}],
    }
    choice = {"type": "choices", "value": {"choices": ["a"]}}
    return {
        "instances.json": outlined,
        "project.json": [task("0.png", results)],
        "choices.json": [task("0.png", [choice])],
        "panoptic_train.json": panoptic,
        "0.json": json.loads(labelme([{"label": "x", "points": [[1, 1], [9, 9]], "shape_type": "rectangle"}], "0.png")),
    }


DOCUMENTS = documents()


def write_one(root: Path, name: str, content: Any) -> None:
    save(PICTURES[0][0], root / "0.png")
    if name.startswith("panoptic"):
        ids = np.where(np.arange(SIZE[0]) < 40, 5, 300)[None].repeat(SIZE[1], 0)
        colours = np.stack([ids % 256, ids // 256, ids * 0], -1).astype(np.uint8)
        save(Image.fromarray(colours), root / "panoptic_train/0.png")
    (root / name).write_text(json.dumps(content))


@pytest.mark.parametrize("count", [8, pytest.param(60, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", DOCUMENTS)
def test_hostile_values_in_json__are_read_or_refused_in_a_sentence(name: str, count: int) -> None:
    places = list(leaves(DOCUMENTS[name]))

    @settings(max_examples=count, deadline=None, derandomize=True)
    @given(st.sampled_from(places), st.sampled_from(HOSTILE))
    def check(place: tuple[Any, ...], value: Any) -> None:
        content = copy.deepcopy(DOCUMENTS[name])
        at = content
        for step in place[:-1]:
            at = at[step]
        at[place[-1]] = value
        with tempfile.TemporaryDirectory() as folder:
            write_one(Path(folder), name, content)
            for verb in VERBS:
                outcome(verb, Path(folder))

    check()


CVAT = ("xtl", "ybr", "points", "rle", "left", "width", "name", "label", "subset", "rotation", "cx", "rx")


@settings(max_examples=8, deadline=None, derandomize=True)
@given(st.sampled_from(CVAT), st.sampled_from([value for value in HOSTILE if not isinstance(value, list | dict)]))
def test_hostile_attributes_in_xml__are_read_or_refused_in_a_sentence(attribute: str, value: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = write_cvat(Path(folder) / "set", "mask", extra='<ellipse label="x" cx="9" cy="9" rx="3" ry="4"/>')
        more = '<box label="y" xtl="1" ytl="2" xbr="9" ybr="9"/><polygon label="z" points="1,1;9,1;9,9"/>'
        text = (root / "annotations.xml").read_text().replace("</image>", f"{more}</image>", 1)
        before, mark, rest = text.partition(f' {attribute}="')
        changed = f" {attribute}={quoteattr(str(value))}"
        text = before + changed + rest.partition('"')[2] if mark else text.replace("<image ", f"<image{changed} ", 1)
        (root / "annotations.xml").write_text(text, errors="surrogatepass")
        for verb in VERBS:
            outcome(verb, root)
        shutil.rmtree(root)


@settings(max_examples=8, deadline=None, derandomize=True)
@given(st.integers(0, 7), st.sampled_from([value for value in HOSTILE if not isinstance(value, list | dict)]))
def test_hostile_cells_in_tables__are_read_or_refused_in_a_sentence(column: int, value: Any) -> None:
    cell = json.dumps(str(value)).replace("\\", "") if value is not None else ""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for n in range(2):
            save(PICTURES[n][0], root / f"{n}.png")
        rows = [PIXELS, *rows_of(0, PIXELS), *rows_of(1, PIXELS)]
        rows[1] = [cell if place == column else text for place, text in enumerate(rows[1])]
        (root / "boxes.csv").write_text("\n".join(",".join(row) for row in rows))
        pairs = [["image", "mask", "split"], ["0.png", "1.png", "train"], ["1.png", "0.png", "val"]]
        pairs[1][column % 3] = cell
        (root / "masks.csv").write_text("\n".join(",".join(row) for row in pairs))
        for verb in VERBS:
            for place in (root, root / "boxes.csv", root / "masks.csv"):
                outcome(verb, place)
