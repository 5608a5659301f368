"""One small set in each layout that the pages name, as its program or its publisher lays it out."""

import json
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from cli.calls import make_photos, make_scenes
from data.boxes.written import (
    PIXELS,
    SHARES,
    task,
    write_cvat,
    write_label_studio,
    write_labelme,
    write_tables,
    write_yolo,
)
from tasks.detection.made import coco, pictures, write_coco, write_voc

NUMBERS = {"red": 1, "blue": 2}
Make = Callable[[Path], Path]  # writes a set into a new folder, and returns what is given as DATA


def yolo_yaml(root: Path, layout: str, **parts: str) -> Path:
    """YOLO with data.yaml."""
    write_yolo(
        root,
        f"{layout}/images" if layout == "{}" else "images/{}",
        f"{layout}/labels" if layout == "{}" else "labels/{}",
    )
    lines = ["names: {0: red, 1: blue}", *(f"{part}: {place}" for part, place in parts.items())]
    (root / "data.yaml").write_text("\n".join(lines))
    return root


def yolo_lists(root: Path) -> Path:
    write_yolo(root)
    for part in ("train", "val", "test"):
        found = sorted((root / "images" / part).iterdir())
        (root / f"{part}.txt").write_text("".join(f"./images/{part}/{file.name}\n" for file in found))
    (root / "data.yaml").write_text("path: .\ntrain: train.txt\nval: val.txt\ntest: test.txt\nnames: [red, blue]\n")
    return root


def yolo_beside(root: Path) -> Path:
    write_yolo(root, "{}", "{}")
    (root / "classes.txt").write_text("red\nblue\n")
    return root


def yolo_empty(root: Path) -> Path:
    """An empty label file: an image without objects."""
    write_yolo(root, "images", "labels")
    (root / "labels/5.txt").write_text("")
    (root / "classes.txt").write_text("red\nblue\n")
    return root


def yolo_polygons(root: Path) -> Path:
    write_yolo(root, outline=True)
    (root / "classes.txt").write_text("red\nblue\n")
    return root


def coco_files(root: Path, files: dict[str, tuple[str, range]], prefix: str = "") -> Path:
    """COCO JSON files by path, each with the folder of its images and their numbers."""
    made = pictures(6)
    for file, (folder, numbers) in files.items():
        (root / folder).mkdir(parents=True, exist_ok=True)
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        for n in numbers:
            made[n][0].save(root / folder / f"{n}.png")
        listed = [(f"{prefix}{n}.png", made[n][0].size, made[n][1]) for n in numbers]
        (root / file).write_text(json.dumps(coco(listed, NUMBERS)))
    return root


def coco_rle(root: Path) -> Path:
    """Outlines as runs, ids as text, no areas, one crowd."""
    coco_files(root, {"annotations/instances_default.json": ("images/default", range(6))})
    file = root / "annotations/instances_default.json"
    content = json.loads(file.read_text())
    for image in content["images"]:
        image["id"] = f"x{image['id']}"
    for number, one in enumerate(content["annotations"]):
        left, top, width, height = map(int, one["bbox"])
        mask = np.zeros((64, 96), dtype=int)
        mask[top : top + height, left : left + width] = 1
        flat = mask.T.ravel()
        edges = np.flatnonzero(np.diff(flat)) + 1
        counts = np.diff([0, *edges, flat.size]).tolist()
        one |= {"image_id": f"x{one['image_id']}", "iscrowd": int(number == 3)}
        one["segmentation"] = {"size": [64, 96], "counts": counts if flat[0] == 0 else [0, *counts]}
    file.write_text(json.dumps(content))
    return root


def voc_named(images: str, annotations: str) -> Make:
    def make(root: Path) -> Path:
        write_voc(root)
        (root / "JPEGImages").rename(root / "pictures")
        (root / "Annotations").rename(root / "xml")
        (root / "pictures").rename(root / images)
        (root / "xml").rename(root / annotations)
        return root

    return make


def voc_floats(root: Path) -> Path:
    """Boxes with fractions, and no size of the image."""
    write_voc(root)
    for file in (root / "Annotations").iterdir():
        text = file.read_text().replace("</xmax>", ".25</xmax>")
        file.write_text(text[: text.index("<size>")] + text[text.index("</size>") + 7 :])
    return root


def packed(make: Make, ending: str) -> Make:
    def pack(root: Path) -> Path:
        folder, file = make(root / "inside"), root / f"set{ending}"
        if ending == ".tar":
            with tarfile.open(file, "w") as archive:
                archive.add(folder, ".")
            return file
        with zipfile.ZipFile(file, "w") as archive:
            for path in sorted(folder.rglob("*")):
                archive.write(path, path.relative_to(folder))
        return file

    return pack


BOXES: dict[str, Make] = {
    "yolo": lambda root: yolo_yaml(
        root, "images", path=".", train="images/train", val="images/val", test="images/test"
    ),
    "yolo roboflow": lambda root: yolo_yaml(
        root, "{}", train="../train/images", val="../val/images", test="../test/images"
    ),
    "yolo lists": yolo_lists,
    "yolo beside": yolo_beside,
    "yolo empty": yolo_empty,
    "yolo polygons": yolo_polygons,
    "coco roboflow": lambda root: write_coco(root).parent,
    "coco cvat": lambda root: coco_files(root, {"annotations/instances_default.json": ("images/default", range(6))}),
    "coco label studio": lambda root: coco_files(root, {"result.json": ("images", range(6))}, "images/"),
    "coco published": lambda root: coco_files(
        root,
        {
            "annotations/instances_train2017.json": ("train2017", range(4)),
            "annotations/instances_val2017.json": ("val2017", range(4, 6)),
        },
    ),
    "coco custom_train": lambda root: coco_files(
        root,
        {
            "annotations/custom_train.json": ("train2017", range(4)),
            "annotations/custom_val.json": ("val2017", range(4, 6)),
        },
    ),
    "coco runs": coco_rle,
    "voc": write_voc,
    "voc in lower case": voc_named("images", "annotations"),
    "voc annots": voc_named("images", "annots"),
    "voc floats": voc_floats,
    "csv of tensorflow": lambda root: write_tables(root, PIXELS, {"labels.csv": range(6)}),
    "csv of open images": lambda root: write_tables(root, SHARES, {"boxes.csv": range(6)}),
    "labelme": write_labelme,
    "cvat": write_cvat,
    "cvat masks": lambda root: write_cvat(root, "mask"),
    "label studio": write_label_studio,
    "label studio polygons": lambda root: write_label_studio(root, "polygon"),
    "tar of voc": packed(write_voc, ".tar"),
    "zip of yolo": packed(yolo_lists, ".zip"),
}

COLOURS = np.array([[0, 0, 0], [200, 30, 30], [30, 200, 30]], dtype=np.uint8)


def scenes(change: Callable[[np.ndarray], Image.Image], **options: tuple[str, str]) -> Make:
    """Images with masks of three classes, drawn by a function of the class numbers."""

    def make(root: Path) -> Path:
        make_scenes(root, 8, **options)
        masks = root / options.get("parts", ("images", "masks"))[1]
        for file in masks.iterdir():
            change(np.asarray(Image.open(file))).save(file)
        return root

    return make


def palette(numbers: np.ndarray) -> Image.Image:
    image = Image.fromarray(numbers, "P")
    image.putpalette(COLOURS.ravel().tolist())
    return image


def void(numbers: np.ndarray) -> Image.Image:
    return Image.fromarray(np.where(np.arange(numbers.shape[1]) < 2, 255, numbers).astype(np.uint8))


def rgba(numbers: np.ndarray) -> Image.Image:
    return Image.fromarray(np.dstack([COLOURS[numbers], np.full(numbers.shape, 255, np.uint8)]))


def coloured_with_table(root: Path) -> Path:
    scenes(lambda numbers: Image.fromarray(COLOURS[numbers]))(root)
    rows = [f"{name},{r},{g},{b}" for name, (r, g, b) in zip(("ground", "disc", "bar"), COLOURS.tolist(), strict=True)]
    (root / "class_dict.csv").write_text("name,r,g,b\n" + "\n".join(rows))
    return root


def file_of_each_class(root: Path) -> Path:
    make_scenes(root, 8)
    for file in list((root / "masks").iterdir()):
        numbers = np.asarray(Image.open(file))
        file.unlink()
        for number, name in ((1, "disc"), (2, "bar")):
            (root / "masks" / name).mkdir(exist_ok=True)
            Image.fromarray((numbers == number).astype(np.uint8) * 255).save(root / "masks" / name / file.name)
    return root


def file_of_each_object(root: Path) -> Path:
    make_scenes(root, 8)
    for file in list((root / "masks").iterdir()):
        numbers = np.asarray(Image.open(file))
        file.unlink()
        for number in (1, 2):
            picture = Image.fromarray((numbers == number).astype(np.uint8) * 255)
            picture.save(file.with_name(f"{file.stem}_mask{'' if number == 1 else '_1'}.png"))
    return root


def parts_of_masks(images: str, masks: str) -> Make:
    """Folders of parts whose names have the word for images or masks, such as `train/` and `trainannot/`."""

    def make(root: Path) -> Path:
        for part, seed in (("train", 0), ("val", 1), ("test", 2)):
            names = images.format(part), masks.format(part)
            make_scenes(root, 4, parts=names, seed=seed)
            for name in names:
                for file in (root / name).iterdir():
                    if not file.stem.startswith("scene"):
                        file.rename(file.with_name(f"scene_{part}_{file.name}"))
        return root

    return make


def truth(root: Path) -> Path:
    return make_scenes(root, 8, parts=("Training_Images", "Ground_Truth"))


def table_of_masks(root: Path) -> Path:
    make_scenes(root, 8)
    rows = [
        f"images/{n:02d}.png,masks/{n:02d}.png,{'train' if n < 5 else 'val' if n < 6 else 'test'}" for n in range(8)
    ]
    (root / "pairs.csv").write_text("image,mask,split\n" + "\n".join(rows))
    return root / "pairs.csv"


MASKS: dict[str, Make] = {
    "index": lambda root: make_scenes(root, 8),
    "palette": scenes(palette),
    "colour": scenes(lambda numbers: Image.fromarray(COLOURS[numbers])),
    "colour table": coloured_with_table,
    "rgba": scenes(rgba),
    "void": scenes(void),
    "a file of each class": file_of_each_class,
    "a file of each object": file_of_each_object,
    "camvid": parts_of_masks("{}", "{}annot"),
    "train_images": parts_of_masks("{}_images", "{}_masks"),
    "ground truth": truth,
    "voc": scenes(palette, parts=("JPEGImages", "SegmentationClass")),
    "table": table_of_masks,
    "zip": packed(lambda root: make_scenes(root, 8), ".zip"),
    "tar": packed(lambda root: make_scenes(root, 8), ".tar"),
}


def class_folders_of_parts(root: Path) -> Path:
    """As YOLO has sets to classify."""
    for part, seed in (("train", 0), ("val", 1), ("test", 2)):
        make_photos(root / part, 2, 6, seed=seed)
    return root


def class_table(root: Path) -> Path:
    make_photos(root / "photos", 2, 8)
    rows = [f"photos/class{n % 2}/{n // 2}.png,{'ab'[n % 2]}" for n in range(16)]
    (root / "labels.csv").write_text("image,label\n" + "\n".join(rows))
    return root


def choices(root: Path) -> Path:
    make_photos(root / "images", 2, 8)
    tasks = []
    for n in range(16):
        choice = {"type": "choices", "value": {"choices": ["ab"[n % 2]]}, "from_name": "c", "to_name": "image"}
        tasks.append(task(f"/data/local-files/?d=images/class{n % 2}/{n // 2}.png", [choice]))
    (root / "project-1.json").write_text(json.dumps(tasks))
    return root


def tags(root: Path) -> Path:
    make_photos(root / "images", 2, 8)
    rows = "".join(
        f'<image id="{n}" name="class{n % 2}/{n // 2}.png" width="24" height="20"><tag label="{"ab"[n % 2]}"/></image>'
        for n in range(16)
    )
    (root / "annotations.xml").write_text(f"<annotations><version>1.1</version>{rows}</annotations>")
    return root


CLASSES: dict[str, Make] = {
    "folders": lambda root: make_photos(root, 2, 8),
    "folders of parts": class_folders_of_parts,
    "table": class_table,
    "choices of label studio": choices,
    "tags of cvat": tags,
    "zip": packed(lambda root: make_photos(root, 2, 8), ".zip"),
    "tar": packed(class_folders_of_parts, ".tar"),
}
