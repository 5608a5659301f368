"""Random sets of images with boxes, in every layout that is read: what comes out must be what was put in.

`python -m promises.boxes FOLDER FIRST LAST` (with PYTHONPATH=tests) tries the seeds from FIRST to before LAST.
"""

import csv
import io
import json
import random
import shutil
import sys
import unicodedata
import zipfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from xml.sax.saxutils import escape, quoteattr

import numpy as np
import yaml
from PIL import Image

from data.boxes.written import region, short_task, task
from paucal.data.dataset import SampleKey
from paucal.data.splits.split import make_split
from paucal.tasks.detection.batches import BoxedDataset
from paucal.tasks.detection.images import BoxedImages, open_boxed_images
from paucal.types import UserError

FORK = b"\x00\x05\x16\x07\x00\x02\x00\x00Mac OS X        " + bytes(60)
SPELLINGS = {
    "train": ["train", "Train", "TRAIN", "training"],
    "val": ["val", "valid", "validation", "Val", "VALID"],
    "test": ["test", "Test", "testing"],
}
CLASSES = ["cat", "red cell", "Käfer", "細胞", "кошка", "a,b", "R&D <x>", "O'Neil", 'say "hi"', "7", "WBC", "été"]
STEMS = ["img", "slide", "Zelle ä", "写真", "a b c", "x.y", "IMG (1)", "tiles-1_2", "été", "n 1", "trainstation", "p#q"]
COLOUR_STEP = 37


@dataclass
class Item:
    """An image, its objects and the part that it is put in."""

    name: str  # with its ending
    size: tuple[int, int]  # width, height
    colour: tuple[int, int, int]
    boxes: list[tuple[str, float, float, float, float, bool]]
    part: str = ""
    key: str = ""
    polygons: bool = False
    has_twin: bool = False

    @property
    def stem(self) -> str:
        return self.name.rpartition(".")[0]

    def save(self, root: Path, key: str) -> None:
        self.key = key
        (root / key).parent.mkdir(parents=True, exist_ok=True)
        image = Image.new("RGB", self.size, self.colour)
        image.save(root / key, "JPEG" if key.lower().endswith((".jpg", ".jpeg")) else None, quality=95)


@dataclass
class Made:
    """A set that was written: what to open, and what must come out."""

    place: Path
    items: list[Item]
    has_parts: bool = True
    rounding: float = 1e-3
    extra: list[str] = field(default_factory=list)


class Maker:
    """Draws a set from a seed and writes it below a folder."""

    def __init__(self, root: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.root = root
        self.classes = self.random.sample(CLASSES, self.random.randint(1, 4))
        self.parts = self.random.choice([["train"], ["train", "val"], ["train", "test"], ["train", "val", "test"]])
        self.spelling = {part: self.random.choice(SPELLINGS[part]) for part in SPELLINGS}
        self.encoding = self.random.choice(["utf-8", "utf-8", "utf-8-sig", "utf-16"])
        self.items = self._items()

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def _items(self) -> list[Item]:
        endings = self.random.choice([[".png"], [".jpg"], [".JPG"], [".png", ".jpg"], [".bmp"], [".jpeg"]])
        stem, made = self.random.choice(STEMS), []
        if self.chance(0.2):
            stem = unicodedata.normalize(self.random.choice(["NFC", "NFD"]), stem)
        for number in range(self.random.randint(4, 9)):
            size = (self.random.randint(20, 60), self.random.randint(20, 60))
            colour = tuple((number * COLOUR_STEP + 53 * place) % 256 for place in range(3))
            boxes = [self._box(size) for _ in range(self.random.choice([0, 1, 1, 2, 3]))]
            name = f"{stem} {number}" if self.chance(0.5) else f"{stem}{number:03d}"
            part = self.parts[number % len(self.parts)]
            made.append(Item(name + self.random.choice(endings), size, colour, boxes, part))  # type: ignore[arg-type]
        for item in made[: len(self.parts)]:
            item.boxes.append((self.classes[0], 2.0, 3.0, 12.0, 15.0, False))  # some object to learn in each part
        return made

    def _box(self, size: tuple[int, int]) -> tuple[str, float, float, float, float, bool]:
        width, height = size
        left, top = self.random.uniform(0, width - 8), self.random.uniform(0, height - 8)
        right, bottom = self.random.uniform(left + 3, width), self.random.uniform(top + 3, height)
        if self.chance(0.1):  # over an edge
            right, bottom = width + self.random.uniform(0, 9), height + self.random.uniform(0, 3)
        if self.chance(0.05):  # without an area
            right = left
        corners = [round(value, 1) for value in (left, top, right, bottom)]
        return (self.random.choice(self.classes), *corners, self.chance(0.1))  # type: ignore[return-value]

    def write(self, path: Path, text: str, encoding: str | None = None) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode(encoding or self.encoding))

    def nest(self) -> str:
        """Return a folder below the images, or none."""
        return self.random.choice(["", "", "cam 1/", "東/b/"])

    def decoys(self, folders: Sequence[Path]) -> None:
        """Leave what systems and programs leave beside the files of a set."""
        for folder in folders:
            if self.chance(0.3):
                for name in (f"._{self.items[0].name}", "._a.xml", "._b.json", "._c.txt", ".DS_Store"):
                    (folder / name).write_bytes(FORK)
        if self.chance(0.3):
            (self.root / "README.dataset.txt").write_text("Provided by somebody\nLicense: CC BY 4.0\n")
        if self.chance(0.2):
            (self.root / "__MACOSX").mkdir(exist_ok=True)
            (self.root / "__MACOSX" / "a.xml").write_bytes(FORK)

    def strays(self, folder: Path) -> None:
        """Put images beside the others that nothing describes."""
        if self.chance(0.25):
            Image.new("RGB", (30, 30)).save(folder / "left over.png")

    def twin(self, item: Item) -> None:
        """Put an image of another ending beside one that its annotation names."""
        path = self.root / item.key
        other = path.with_suffix(".bmp" if path.suffix.lower() != ".bmp" else ".png")
        if not other.exists():
            Image.new("RGB", item.size).save(other)
            item.has_twin = True

    # Lists of parts

    def lists(self, names: Callable[[Item], str], folder: str) -> None:
        """Write a list for each part; "trainval" in the place of train where there is no list of val."""
        for part in self.parts:
            word = self.spelling[part]
            if part == "train" and "val" not in self.parts and self.chance(0.5):
                word = "trainval"
            lines = [names(item) for item in self.items if item.part == part]
            end = self.random.choice(["\n", "\r\n"])
            self.write(self.root / folder / f"{word}.txt", end.join(lines) + end * self.random.randint(0, 2))

    def list_names(self, images: str) -> Callable[[Item], str]:
        return self.random.choice(
            [
                lambda item: item.stem,
                lambda item: item.name,
                lambda item: f"{images}/{item.name}" if images else item.name,
                lambda item: f"./{item.key}",
                lambda item: f"/home/somebody/sets/{item.key}",
                lambda item: f"{item.key} Annotations/{item.stem}.xml",
            ]
        )


def visible(item: Item) -> list[tuple[str, tuple[float, float, float, float], bool]]:
    """Return the objects of an image as they must come out: cut at its edges."""
    width, height = item.size
    return [
        (name, (max(left, 0.0), max(top, 0.0), min(right, width), min(bottom, height)), crowd)
        for name, left, top, right, bottom, crowd in item.boxes
        if right > left and bottom > top
    ]


# COCO


def coco_document(maker: Maker, items: Sequence[Item], name: Callable[[Item], str], numbers: dict[str, int]) -> str:
    as_text = maker.chance(0.2)

    def number(value: int) -> object:
        return str(value) if as_text else float(value) if maker.chance(0.05) else value

    images = [
        {"id": number(place + 5), "file_name": name(item), "width": item.size[0], "height": item.size[1]}
        for place, item in enumerate(items)
    ]
    annotations = []
    for place, item in enumerate(items):
        for label, left, top, right, bottom, crowd in item.boxes:
            row = {"id": len(annotations), "image_id": number(place + 5), "category_id": number(numbers[label])}
            row |= {"iscrowd": int(crowd), "area": 1.0}
            polygon = [[left, top, right, top, right, bottom, left, bottom]]
            if item.polygons:
                row["segmentation"] = polygon
            if not item.polygons or maker.chance(0.7):
                row["bbox"] = [left, top, round(right - left, 3), round(bottom - top, 3)]
            annotations.append(row)
    categories = [{"id": number(n), "name": label} for label, n in numbers.items()]
    content = {"info": {}, "images": images, "annotations": annotations, "categories": categories}
    return json.dumps(content, ensure_ascii=maker.chance(0.5))


def coco_numbers(maker: Maker) -> dict[str, int]:
    return dict(zip(maker.classes, maker.random.sample(range(1, 91), len(maker.classes)), strict=True))


def with_polygons(maker: Maker) -> None:
    if maker.chance(0.3):
        for item in maker.items:
            item.polygons = True


def coco_single(maker: Maker) -> Made:
    """One JSON beside the images, in images/ or in annotations/."""
    images = maker.random.choice(["", "images/", "img/", "data/"])
    where = maker.random.choice(["", "annotations/", "labels/"])
    for item in maker.items:
        item.save(maker.root, f"{images}{maker.nest()}{item.name}" if maker.chance(0.3) else f"{images}{item.name}")
    spell = maker.random.choice(
        [
            lambda item: item.key.removeprefix(images),
            lambda item: item.name,
            lambda item: item.key,
            lambda item: "C:\\Users\\me\\" + item.key.replace("/", "\\"),
            lambda item: f"https://host.example/{item.key}".replace(" ", "%20").replace("#", "%23"),
            lambda item: f"/home/me/{item.key}",
        ]
    )
    with_polygons(maker)
    name = maker.random.choice(["_annotations.coco.json", "instances_default.json", "labels.json", "result.json"])
    file = maker.root / where / name
    maker.write(file, coco_document(maker, maker.items, spell, coco_numbers(maker)))
    maker.decoys([maker.root, file.parent])
    return Made(file if maker.chance(0.4) else maker.root, maker.items, has_parts=False)


def coco_parts(maker: Maker) -> Made:
    """A JSON in each part's folder, beside the images."""
    numbers = coco_numbers(maker)
    for part in maker.parts:
        items, word = [item for item in maker.items if item.part == part], maker.spelling[part]
        for item in items:
            item.save(maker.root, f"{word}/{item.name}")
        text = coco_document(maker, items, lambda item: item.name, numbers)
        maker.write(maker.root / word / "_annotations.coco.json", text)
        maker.decoys([maker.root / word])
        maker.strays(maker.root / word)
    return Made(maker.root, maker.items)


def coco_annotations(maker: Maker) -> Made:
    """COCO's own folders, with and without images/ above the parts, or with all images in one folder."""
    numbers, year = coco_numbers(maker), maker.random.choice(["2017", "2014", ""])
    images = maker.random.choice(["{}", "images/{}", "images"])
    top = maker.random.choice(["annotations/instances_{}.json", "{}.json", "annotations/{}.json", "COCO/{}.json"])
    if top == "{}.json" and maker.chance(0.5):
        top = "cells_{}_v2.json"
    with_polygons(maker)
    alone = maker.random.choice([None, None, *maker.parts])
    place = maker.root
    for part in maker.parts:
        items, word = [item for item in maker.items if item.part == part], maker.spelling[part] + year
        for item in items:
            item.save(maker.root, f"{images.format(word)}/{item.name}")
        spell = maker.random.choice(
            [lambda item: item.name, lambda item: item.key, lambda item: f"../{item.key}"]
            if images != "images"
            else [lambda item: item.name]
        )
        file = maker.root / top.format(word)
        maker.write(file, coco_document(maker, items, spell, numbers))
        place = file if part == alone else place
        if "instances" in top and maker.chance(0.4):
            rows = [{"id": n, "file_name": item.name} for n, item in enumerate(items)]
            captions = {"images": rows, "annotations": [{"id": 1, "image_id": 0, "caption": "a cell"}]}
            maker.write(file.with_name(f"captions_{word}.json"), json.dumps(captions))
            points = json.loads(coco_document(maker, items, lambda item: item.name, numbers))
            maker.write(file.with_name(f"person_keypoints_{word}.json"), json.dumps(points))
    if maker.chance(0.3) and top == "annotations/instances_{}.json" and images != "images":
        text = coco_document(maker, maker.items, lambda item: item.key, numbers)
        maker.write(maker.root / "annotations" / "instances_all.json", text)
    maker.decoys([maker.root])
    items = maker.items if alone is None else [item for item in maker.items if item.part == alone]
    return Made(place, items, has_parts=alone is None)


# Pascal VOC


def voc_xml(maker: Maker, item: Item, named: str) -> str:
    rows = "".join(
        f"<object><name>{escape(label)}</name><pose>Unspecified</pose><difficult>{int(crowd)}</difficult>"
        f"<bndbox><xmin>{left}</xmin><ymin>{top}</ymin><xmax>{right}</xmax><ymax>{bottom}</ymax></bndbox></object>"
        for label, left, top, right, bottom, crowd in item.boxes
    )
    size = f"<size><width>{item.size[0]}</width><height>{item.size[1]}</height><depth>3</depth></size>"
    name = f"<filename>{escape(named)}</filename>" if named else ""
    return f"<annotation><folder>x</folder>{name}{'' if maker.chance(0.2) else size}{rows}</annotation>"


def write_voc(maker: Maker, path: Path, item: Item, named: str) -> None:
    encoding = maker.random.choice(["utf-8", "utf-8", "utf-16", "gb18030", "utf-8-sig"])
    head = f'<?xml version="1.0" encoding="{encoding.removesuffix("-sig")}"?>\n' if encoding != "utf-8-sig" else ""
    maker.write(path, head + voc_xml(maker, item, named), encoding)


def voc_folders(maker: Maker) -> Made:
    """Annotations/ and JPEGImages/ in many spellings, with lists of parts or without."""
    images = maker.random.choice(["JPEGImages", "images", "Images", "jpegimages"])
    xmls = maker.random.choice(["Annotations", "annotations", "xmls", "labels"])
    nested, ending = maker.chance(0.3), maker.random.choice([".xml", ".xml", ".XML"])
    says_name = maker.random.choice(["name", "name", "stem", "nothing", "path"])
    renamed = maker.chance(0.2) and says_name == "name"
    for number, item in enumerate(maker.items):
        below = f"cam{number % 2}/" if nested else ""
        item.save(maker.root, f"{images}/{below}{item.name}")
        named = {"name": item.name, "stem": item.stem, "nothing": "", "path": f"x\\y\\{item.name}"}[says_name]
        stem = f"box {number}" if renamed else item.stem
        write_voc(maker, maker.root / xmls / f"{below}{stem}{ending}", item, named)
        if says_name == "name" and maker.chance(0.2):
            maker.twin(item)
    has_lists = not renamed and maker.chance(0.6)
    if has_lists:
        maker.lists(maker.list_names(""), maker.random.choice(["ImageSets/Main", "ImageSets/Main", "ImageSets", "."]))
        if maker.chance(0.3):
            (maker.root / "ImageSets/Main").mkdir(parents=True, exist_ok=True)
            lines = [f"{item.stem} {maker.random.choice(['1', '-1', ' 0'])}" for item in maker.items]
            (maker.root / "ImageSets/Main" / "cat_train.txt").write_text("\n".join(lines))
    maker.decoys([maker.root / images, maker.root / xmls])
    maker.strays(maker.root / images)
    return Made(maker.root, maker.items, has_parts=has_lists)


def voc_parts(maker: Maker) -> Made:
    """XML files beside the images, or beside a folder of images, within each part."""
    images, xmls = maker.random.choice([("", ""), ("JPEGImages/", "Annotations/"), ("images/", "annotations/")])
    for item in maker.items:
        word = maker.spelling[item.part]
        item.save(maker.root, f"{word}/{images}{item.name}")
        write_voc(maker, maker.root / word / f"{xmls}{item.stem}.xml", item, maker.random.choice([item.name, ""]))
    return Made(maker.root, maker.items)


def voc_beside(maker: Maker) -> Made:
    for item in maker.items:
        item.save(maker.root, f"{maker.random.choice(['', 'day 1/', 'day 2/'])}{item.name}")
        write_voc(maker, (maker.root / item.key).with_suffix(".xml"), item, item.name)
    maker.decoys([maker.root])
    return Made(maker.root, maker.items, has_parts=False)


# YOLO


def yolo_text(maker: Maker, item: Item) -> str:
    lines = []
    width, height = item.size
    for label, left, top, right, bottom, _ in item.boxes:
        number = maker.classes.index(label)
        if item.polygons:
            corners = ((left, top), (right, top), (right, bottom), (left, bottom))
            values = [value for x, y in corners for value in (x / width, y / height)]
        else:
            values = [(left + right) / 2 / width, (top + bottom) / 2 / height]
            values += [(right - left) / width, (bottom - top) / height]
        lines.append(" ".join([str(number), *(f"{value:.7f}" for value in values)]))
    return "\n".join(lines) + "\n" * bool(lines)


def no_crowds(maker: Maker, inside: bool = False) -> None:
    """Take away what a layout cannot say: crowds, and boxes over an edge where numbers are shares."""
    for item in maker.items:
        width, height = item.size
        item.boxes = [(n, a, b, min(c, width), min(d, height), False) if inside else (n, a, b, c, d, False)
                      for n, a, b, c, d, _ in item.boxes]  # fmt: skip


def yolo(maker: Maker) -> Made:
    """images/ and labels/ in parallel or within parts, with data.yaml in several forms, or with lists."""
    no_crowds(maker, inside=True)
    with_polygons(maker)
    form = maker.random.choice(["images/{}", "{}/images", "{}", "images"])
    told = "lists" if form == "images" else maker.random.choice(["folders", "lists", "nothing"])
    label_encoding = maker.random.choice(["utf-8", "utf-8-sig"])
    for item in maker.items:
        folder = form.format(maker.spelling[item.part])
        item.save(maker.root, f"{folder}/{item.name}")
        labels = folder if form == "{}" else folder.replace("images", maker.random.choice(["labels"]))
        maker.write(maker.root / labels / f"{item.stem}.txt", yolo_text(maker, item), label_encoding)
    if told == "nothing":
        names = maker.random.choice(["classes.txt", f"{maker.spelling['train']}/classes.txt", "obj.names"])
        maker.write(maker.root / names, "\n".join(maker.classes) + "\n")
    else:
        _write_yaml(maker, form, told)
    maker.decoys([maker.root])
    file = next(iter(maker.root.glob("*.yaml")), None)
    return Made(file if file is not None and maker.chance(0.4) else maker.root, maker.items, rounding=2e-2)


def _write_yaml(maker: Maker, form: str, told: str) -> None:
    content: dict[str, object] = {}
    for part in maker.parts:
        folder = form.format(maker.spelling[part])
        if told == "lists":
            name = f"{maker.random.choice(['', 'lists/'])}{part}_list.txt"
            lines = [maker.random.choice([item.key, f"./{item.key}"]) for item in maker.items if item.part == part]
            maker.write(maker.root / name, "\n".join(lines))
            content[part] = name
        elif form == "{}/images" and maker.chance(0.4):
            content[part] = f"../{folder}"
        else:
            content[part] = maker.random.choice([folder, [folder], f"{folder}/", f"./{folder}"])
    if maker.chance(0.5):
        content["path"] = maker.random.choice([".", "/content/datasets/cells", "../datasets/cells"])
    as_list = maker.chance(0.5)
    content["names"] = list(maker.classes) if as_list else dict(enumerate(maker.classes))
    content["nc"] = len(maker.classes)
    text = yaml.safe_dump(content, allow_unicode=True)
    maker.write(maker.root / maker.random.choice(["data.yaml", "cells.yaml"]), text, "utf-8")


# Others


def labelme(maker: Maker) -> Made:
    no_crowds(maker)
    has_parts = maker.chance(0.4)
    with_polygons(maker)
    apart = maker.chance(0.3)
    for item in maker.items:
        folder = f"{maker.spelling[item.part]}/" if has_parts else ""
        item.save(maker.root, f"{folder}{'images/' if apart else ''}{item.name}")
        shapes = []
        for label, left, top, right, bottom, _ in item.boxes:
            points, kind = [[left, top], [right, bottom]], "rectangle"
            if item.polygons:
                points, kind = [[left, top], [right, top], [right, bottom], [left, bottom]], "polygon"
            shapes.append({"label": label, "points": points, "shape_type": kind, "group_id": None, "flags": {}})
        path = maker.random.choice([item.name, f"..\\images\\{item.name}"]) if apart else item.name
        content = {"version": "5.0", "flags": {}, "shapes": shapes, "imagePath": path, "imageData": None}
        content |= {"imageHeight": item.size[1], "imageWidth": item.size[0]}
        file = maker.root / folder / ("labels" if apart else "") / f"{item.stem}.json"
        maker.write(file, json.dumps(content, ensure_ascii=False))
    maker.decoys([maker.root])
    return Made(maker.root, maker.items, has_parts=has_parts)


def cvat(maker: Maker) -> Made:
    no_crowds(maker)
    with_polygons(maker)
    how = maker.random.choice(["subset", "folder", "none"])
    rows = []
    for number, item in enumerate(maker.items):
        name = f"{maker.spelling[item.part]}/{item.name}" if how == "folder" else item.name
        item.save(maker.root, f"images/{name}")
        shapes = ""
        for label, left, top, right, bottom, _ in item.boxes:
            if item.polygons:
                points = f"{left},{top};{right},{top};{right},{bottom};{left},{bottom}"
                shapes += f'<polygon label={quoteattr(label)} points="{points}" z_order="0"/>'
            else:
                edges = f'xtl="{left}" ytl="{top}" xbr="{right}" ybr="{bottom}"'
                shapes += f'<box label={quoteattr(label)} occluded="0" {edges} z_order="0"></box>'
        subset = f' subset="{maker.spelling[item.part]}"' if how == "subset" else ""
        size = f'width="{item.size[0]}" height="{item.size[1]}"'
        rows.append(f'<image id="{number}" name={quoteattr(name)}{subset} {size}>{shapes}</image>')
    text = f'<?xml version="1.0" encoding="utf-8"?><annotations><version>1.1</version>{"".join(rows)}</annotations>'
    file = maker.root / "annotations.xml"
    maker.write(file, text, "utf-8")
    return Made(file if maker.chance(0.3) else maker.root, maker.items, has_parts=how != "none")


def label_studio(maker: Maker) -> Made:
    """One JSON, in the long or the short form, whose images may have been uploaded or lie in a storage."""
    no_crowds(maker)
    with_polygons(maker)
    short, by_part = maker.chance(0.3), maker.chance(0.3)
    start = maker.random.choice(
        ["/data/upload/7/", "upload/7/1234abcd-", "/data/local-files/?d=", "s3://bucket/a/", ""]
    )
    groups: dict[str, list[dict]] = {}
    for item in maker.items:
        item.save(maker.root, f"images/{item.name}")
        results = []
        for label, left, top, right, bottom, _ in item.boxes:
            kind = "polygon" if item.polygons else "rectangle"
            results.append(region((label, left, top, right, bottom), item.size, kind))
        path = start + (item.name.replace("%", "%25").replace("#", "%23") if "://" in start else item.name)
        made = (short_task if short else task)(path, results)
        groups.setdefault(maker.spelling[item.part] if by_part else "export", []).append(made)
    for name, tasks in groups.items():
        maker.write(maker.root / f"{name}.json", json.dumps(tasks, ensure_ascii=maker.chance(0.5)))
    maker.decoys([maker.root])
    alone = len(groups) == 1 and not by_part and maker.chance(0.3)
    return Made(maker.root / "export.json" if alone else maker.root, maker.items, has_parts=by_part, rounding=2e-2)


def table(maker: Maker) -> Made:
    """A CSV with a row for each box: in pixels, or in shares as Open Images writes it; of all or of each part."""
    shares, by_part = maker.chance(0.4), maker.chance(0.5)
    no_crowds(maker, inside=shares)
    delimiter = maker.random.choice([",", ",", ";"])
    with_empty = maker.chance(0.7)
    for item in maker.items:
        item.save(maker.root, f"images/{item.name}")
    items = [item for item in maker.items if with_empty or item.boxes]
    groups = {part: [item for item in items if item.part == part] for part in maker.parts} if by_part else {"": items}
    has_column = not by_part and maker.chance(0.3)
    for part, group in groups.items():
        text = io.StringIO()
        writer = csv.writer(text, delimiter=delimiter)
        if shares:
            names = ["ImageID", "LabelName", "XMin", "XMax", "YMin", "YMax"]
        else:
            names = ["filename", "width", "height", "class", "xmin", "ymin", "xmax", "ymax"]
        writer.writerow([*names, *(["split"] if has_column else [])])
        for item in group:
            width, height = item.size
            for label, left, top, right, bottom, _ in item.boxes or [("", "", "", "", "", False)]:
                if label and shares:
                    cells = [f"{v:.7f}" for v in (left / width, right / width, top / height, bottom / height)]
                else:
                    cells = [left, right, top, bottom] if shares else [left, top, right, bottom]
                start = [item.stem, label] if shares else [item.name, width, height, label]
                writer.writerow([*start, *cells, *([maker.spelling[item.part]] if has_column else [])])
        name = f"{maker.spelling[part]}_labels.csv" if by_part else "boxes.csv"
        maker.write(maker.root / name, text.getvalue())
    maker.decoys([maker.root])
    place = maker.root / "boxes.csv" if not by_part and maker.chance(0.4) else maker.root
    return Made(place, items, has_parts=by_part or has_column, rounding=2e-2)


LAYOUTS = (
    *(coco_single, coco_parts, coco_annotations, voc_folders, voc_parts, voc_beside),
    *(yolo, labelme, cvat, table, label_studio),
)


def zipped(made: Made, root: Path, choose: random.Random) -> Made:
    """Put a set into a zip, at its top or in a folder."""
    file = root.with_name("set.zip")
    prefix = choose.choice(["", "cells/"])
    with zipfile.ZipFile(file, "w") as archive:
        for path in sorted(root.rglob("*")):
            if path.is_file():
                archive.write(path, prefix + path.relative_to(root).as_posix())
    made.place = file
    return made


def trial(folder: Path, seed: int) -> str:
    """Make a random set of images with boxes, open it as `paucal detect` does, and compare.

    Args:
        folder: Empty folder to write into.
        seed: Seed of the set.

    Returns:
        "read", or "refused: " and the sentence.

    Raises:
        AssertionError: The images, boxes, classes or parts are not those that were put in.
    """
    root = folder / "set"
    root.mkdir()
    maker = Maker(root, seed)
    made = LAYOUTS[seed % len(LAYOUTS)](maker)
    if made.place == root and maker.chance(0.15):
        made = zipped(made, root, maker.random)
    try:
        boxed = open_boxed_images(made.place)
    except UserError as problem:
        return f"refused: {problem}"
    compare(boxed, made, maker)
    return "read"


def spoilt_trial(folder: Path, seed: int) -> str:
    """Make a random set, take an image away that its annotations describe, and open it.

    Returns:
        "refused: " and the sentence; "left out: " and the note where a layout says nothing of images without a file.

    Raises:
        AssertionError: The set was read in silence, with another image in the place of the missing one or without it.
    """
    root = folder / "set"
    root.mkdir()
    maker = Maker(root, seed)
    layout = LAYOUTS[seed % len(LAYOUTS)]
    made = layout(maker)
    missing = maker.random.choice(made.items)
    (root / missing.key).unlink()
    try:
        boxed = open_boxed_images(made.place)
    except UserError as problem:
        return f"refused: {problem}"
    words = "with another suffix" if missing.has_twin else "without an image"
    notes = [note for note in boxed.images.notes if words in note]
    assert notes, (layout.__name__, missing.key, boxed.images.keys)
    assert missing.key not in boxed.images.keys
    if not missing.has_twin:
        made.items.remove(missing)
        compare(boxed, made, maker)
    return f"left out: {notes[0]}"


def compare(boxed: BoxedImages, made: Made, maker: Maker) -> None:
    """Compare what was read with what was put in."""
    by_key = {_key(key): index for index, key in enumerate(boxed.images.keys)}
    expected = {_key(item.key): item for item in made.items}
    prefix = _common(by_key, expected)
    assert {prefix + key for key in by_key} == set(expected), (sorted(by_key), sorted(expected))
    learnt = {name for item in made.items for name, _, crowd in visible(item) if not crowd}
    assert set(boxed.classes) == learnt, (boxed.classes, learnt)
    has_parts = made.has_parts and len({item.part for item in made.items}) > 1
    dataset = BoxedDataset(boxed, lambda image, target: (image, target), seed=0)  # type: ignore[arg-type, return-value]
    for key, index in by_key.items():
        item = expected[prefix + key]
        part = item.part if has_parts else ""
        assert boxed.images.declared_splits[index] in ((part,) if has_parts else ("", "train")), (key, part)
        known, objects = boxed.boxes_of(index), [one for one in visible(item) if one[0] in learnt]
        assert known.size == (item.size[1], item.size[0])
        pixel = np.asarray(boxed.images.store.read(index))[0, 0].astype(int)
        assert np.abs(pixel - np.asarray(item.colour)).max() <= 6, (key, pixel, item.colour)
        corners = np.asarray([box for _, box, _ in objects]).reshape(-1, 4)
        assert known.corners.shape == corners.shape, (key, known.corners, corners)
        assert np.abs(known.corners - corners).max(initial=0) <= made.rounding, (key, known.corners, corners)
        assert [boxed.classes[label] for label in known.labels] == [name for name, _, _ in objects]
        assert known.crowd.tolist() == [crowd for _, _, crowd in objects], key
        sample = dataset[SampleKey(0, index)]
        whole = [boxed.classes[label] for label in sample.labels]
        assert whole == [name for name, _, crowd in objects if not crowd]
    _compare_split(boxed, expected, prefix, has_parts)


def _compare_split(boxed: BoxedImages, expected: dict[str, Item], prefix: str, has_parts: bool) -> None:
    """Compare the parts as training divides the images: the data's own where it has some."""
    if not has_parts:
        return
    try:
        split = make_split(boxed.images)
    except UserError:  # too few images, or a class that none is trained on
        return
    parts = {item.part for item in expected.values()}
    tested = "test" if "test" in parts else "val"
    for index, key in enumerate(boxed.images.keys):
        part = expected[prefix + _key(key)].part
        if part == tested:
            assert split.parts[index] == "test"
        elif len(parts) == 3:
            assert split.parts[index] == part
        else:
            assert split.parts[index] in ("train", "val")


def _key(key: str) -> str:
    return unicodedata.normalize("NFC", key)


def _common(found: dict[str, int], expected: dict[str, Item]) -> str:
    """Return the folder that the keys of an archive or of a file alone lack."""
    first = next(iter(found), "")
    return next((key.removesuffix(first) for key in expected if key.endswith(first)), "")


def main() -> None:
    """Try many seeds, and count what came out."""
    base, first, last = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    counts: Counter[str] = Counter()
    for seed in range(first, last):
        folder = base / str(seed)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        name = LAYOUTS[seed % len(LAYOUTS)].__name__
        try:
            result = trial(folder, seed)
            counts[f"{name} {result.split(':')[0]}"] += 1
            if result != "read":
                print(seed, name, result, flush=True)
            else:
                shutil.rmtree(folder)
        except AssertionError as problem:
            counts[f"{name} WRONG"] += 1
            print(seed, name, "WRONG", str(problem)[:400], flush=True)
    for name, count in sorted(counts.items()):
        print(f"{count:6d} {name}")


if __name__ == "__main__":
    main()
