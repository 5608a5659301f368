"""Layouts of sets with masks, in the spellings that people and programs give them."""

import random
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

Array = np.ndarray
Draw = Callable[[Array], Image.Image]
PARTS = {
    "train": ["train", "Train", "TRAINING", "training"],
    "val": ["val", "valid", "Validation", "dev", "VAL"],
    "test": ["test", "Testing", "TEST"],
}
ENDINGS = [
    "",
    "_mask",
    "-Mask",
    "_MASK",
    "_L",
    "_GT",
    " label",
    "_labels",
    "_Segmentation",
    "_seg",
    ".mask",
    *("_groundtruth", "{suffix}", "{suffix}_mask"),
]
LINES = [
    *("{stem}", "{stem}{end}", "JPEGImages/{stem}{end}", "./{stem}", "\\JPEGImages\\{stem}{end}", "{stem}  1"),
    "/home/me/set/JPEGImages/{stem}{end} SegmentationClass/{stem}.png",
]
SIDES = [
    *(("images", "masks"), ("Image", "Label"), ("imgs", "gt"), ("JPEGImages", "SegmentationClass")),
    *(("photos", "Annotations"), ("input", "ground_truth"), ("images_png", "masks_png"), ("RGB", "Ground Truth")),
    *(("images", "annotations/trimaps"), ("data/images", "data/labels")),
]


@dataclass
class Item:
    """One image, what each pixel shows, and where both lie.

    Attributes:
        image: (H, W, 3) pixels as they are seen.
        classes: (H, W) class numbers, `IGNORED` where nobody has labelled.
        part: Part that the set declares; "" for none.
        stem: Name of the image without suffix.
        below: Folder below the two sides; "" for none.
    """

    image: Array
    classes: Array
    part: str
    stem: str
    below: str = ""


@dataclass
class Case:
    """A set on disk, and how it is opened.

    Attributes:
        items: What was put in.
        settings: Settings of `paucal segment`.
        is_sound: Whether there is no reason to refuse the set.
        is_binary: Whether masks have two classes and no other value, so that several may belong to one image.
    """

    items: list[Item]
    settings: dict[str, Any] = field(default_factory=dict)
    is_sound: bool = True
    is_binary: bool = False


def two_folders(folder: Path, case: Case, chance: random.Random, draw: Draw) -> None:
    """`images/`, `masks/`, with parts above or below."""
    images, masks = chance.choice(SIDES)
    where = chance.choice(["above", "below"])
    named = {part: chance.choice(names) for part, names in PARTS.items()}
    deeper = chance.choice(["", "", "city/"])
    naming = _naming(chance)
    for item in case.items:
        part = f"{named[item.part]}/" if item.part else ""
        places = (
            f"{part}{side}/{deeper}" if where == "above" else f"{side}/{part}{deeper}" for side in (images, masks)
        )
        _write(folder, case, item, chance, draw, *places, naming)


def part_folders(folder: Path, case: Case, chance: random.Random, draw: Draw) -> None:
    """`train/`, `trainannot/`."""
    end = chance.choice(["annot", "_labels", "_masks", "Labels", "-gt"])
    naming = _naming(chance)
    for item in case.items:
        item.part = item.part or "train"
        _write(folder, case, item, chance, draw, f"{item.part}/", f"{item.part}{end}/", naming)


def part_names(folder: Path, case: Case, chance: random.Random, draw: Draw) -> None:
    """`train_images/`, `train_masks/`, or `Training_Images/` and one `Ground_Truth/`."""
    form = chance.choice(["{part}_{side}", "{side}_{part}", "{part}-{side}", "{part}{side}"])
    one = chance.random() < 0.3
    naming = _naming(chance)
    named = {part: chance.choice(names[:2]) for part, names in PARTS.items()}
    for item in case.items:
        item.part = item.part or "train"
        images, masks = (form.format(part=named[item.part], side=side) for side in ("images", "masks"))
        _write(folder, case, item, chance, draw, f"{images}/", "Ground_Truth/" if one else f"{masks}/", naming)


def side_by_side(folder: Path, case: Case, chance: random.Random, draw: Draw) -> None:
    """`x.jpg` and `x_mask.png`, perhaps in folders of classes or of parts."""
    ending = chance.choice([ending for ending in ENDINGS if ending not in ("", "_L", "{suffix}")])
    for item in case.items:
        place = f"{item.part}/" if item.part else chance.choice(["", "", "", "", "benign/", "malignant/"])
        _write(folder, case, item, chance, draw, place, place, Naming(ending))


def voc(folder: Path, case: Case, chance: random.Random, draw: Draw) -> None:
    """VOC's folders, with lists of parts in one of their spellings."""
    base = chance.choice(["", "VOC2012/"])
    for item in case.items:
        _write(folder, case, item, chance, draw, f"{base}JPEGImages/", f"{base}SegmentationClass/", Naming(""))
    if not all(item.part for item in case.items):
        return
    lists = folder / base / chance.choice(["ImageSets/Segmentation", "ImageSets/segmentation", "imagesets/Main", "."])
    lists.mkdir(parents=True, exist_ok=True)
    form = chance.choice(LINES)
    for part, names in PARTS.items():
        chosen = [item for item in case.items if item.part == part]
        lines = [form.format(stem=item.stem, end=_suffix(folder, item.stem)) for item in chosen]
        text = chance.choice(["\n", "\r\n"]).join([*lines, ""])
        name = chance.choice(names) + chance.choice([".txt", ".TXT"])
        (lists / name).write_bytes(text.encode(chance.choice(["utf-8", "utf-8-sig", "utf-16"])))
    if chance.random() < 0.5:
        both = [item.stem for item in case.items if item.part != "test"]
        (lists / chance.choice(["trainval.txt", "Trainval.txt", "train_val.txt"])).write_text("\n".join(both))


def _suffix(folder: Path, stem: str) -> str:
    return next(path.suffix for path in folder.rglob("JPEGImages/*") if path.stem == stem)


def flags(folder: Path, case: Case, chance: random.Random, draw: Draw) -> None:
    """Two folders with names of their own, named by flags; one may lie in the other."""
    images, masks = chance.choice(
        [("a/", "b/"), ("set/", "set/drawn/"), ("x/y/", "z/"), ("photos/images/", "photos/masks/")]
    )
    naming = _naming(chance)
    named = {part: chance.choice(names) for part, names in PARTS.items()}
    for item in case.items:
        part = f"{named[item.part]}/" if item.part else ""
        _write(folder, case, item, chance, draw, images + part, masks + part, naming)
    case.settings |= {"data": None, "images": str(folder / images), "masks": str(folder / masks)}


def cityscapes(folder: Path, case: Case, chance: random.Random, draw: Draw) -> None:
    """Cityscapes' folders and names, with the pictures and instances beside the masks."""
    for item in case.items:
        item.part, city = item.part or "train", chance.choice(["aachen", "bonn"])
        _write(
            *(folder, case, item, chance, draw, f"leftImg8bit/{item.part}/{city}/", f"gtFine/{item.part}/{city}/"),
            Naming("_gtFine_labelIds", image="_leftImg8bit"),
        )
        if chance.random() < 0.5:
            for end in ("color", "instanceIds"):
                grey_image(np.ones((3, 3))).save(folder / f"gtFine/{item.part}/{city}/{item.stem}_gtFine_{end}.png")


@dataclass
class Naming:
    """How masks are named by their images.

    Attributes:
        ending: What follows the name of the image.
        image: What follows it in the name of the image file.
        number: How the masks of an image are counted; "" for one mask of each image.
        other_form: Whether the names of masks are of Unicode's other form.
        is_folder: Whether the masks of an image lie in a folder called as the image.
    """

    ending: str
    image: str = ""
    number: str = ""
    other_form: bool = False
    is_folder: bool = False


def _naming(chance: random.Random) -> Naming:
    if chance.random() < 0.1:
        return Naming("_mask", image=chance.choice(["_sat", "_image", "_RGB"]))
    naming = Naming(chance.choice(ENDINGS), other_form=chance.random() < 0.2)
    if chance.random() < 0.25:
        naming.number = chance.choice(["_{}", "-{}", " ({})", "{}"])
        naming.is_folder = chance.random() < 0.3
    return naming


def _write(
    folder: Path,
    case: Case,
    item: Item,
    chance: random.Random,
    draw: Draw,
    images: str,
    masks: str,
    naming: Naming,
) -> None:
    """Write an image and its mask, or masks of its objects where there are two classes."""
    suffix = chance.choice([".png", ".png", ".bmp", ".jpg", ".tif", ".PNG"])
    image = folder / images / f"{item.stem}{naming.image}{suffix}"
    image.parent.mkdir(parents=True, exist_ok=True)
    options: dict[str, Any] = {"quality": 100, "subsampling": 0} if suffix == ".jpg" else {}
    stored = Image.fromarray(item.image)
    if suffix in (".jpg", ".png") and chance.random() < 0.3:
        value = chance.choice([65537, 0, 9, 3, 6])
        stored = stored.transpose(BEFORE[value]) if value in BEFORE else stored
        options["exif"] = _exif(value)
    stored.save(image, **options)
    stem = unicodedata.normalize("NFD", item.stem) if naming.other_form else item.stem
    pieces = [item.classes]
    if naming.number and case.is_binary:
        half = item.classes.shape[1] // 2
        left = np.arange(item.classes.shape[1]) < half
        pieces = [np.where(left, item.classes, 0).astype(np.uint8), np.where(left, 0, item.classes).astype(np.uint8)]
        if naming == Naming("", number="{}", other_form=naming.other_form):
            case.is_sound = False  # whether a072 is one more mask of a07, nobody can tell
    (folder / masks).mkdir(parents=True, exist_ok=True)
    for number, piece in enumerate(pieces):
        name = f"{stem}{naming.ending.format(suffix=suffix)}"
        name += naming.number.format(number + 1) if len(pieces) > 1 and number else ""
        if len(pieces) > 1 and naming.is_folder:
            (folder / masks / stem).mkdir(exist_ok=True)
            name = f"{stem}/{number}"
        picture = draw(piece)
        lossy = picture.info.pop("lossy", False)
        path = folder / masks / f"{name}{'.jpg' if lossy else chance.choice(['.png', '.png', '.PNG'])}"
        if chance.random() < 0.05 and piece.shape[0] % 2 == 0 and not lossy and picture.size == piece.shape[::-1]:
            halved = piece[::2, ::2]
            if (np.kron(halved, np.ones((2, 2))) == piece).all():
                picture = picture.resize((halved.shape[1], halved.shape[0]), Image.Resampling.NEAREST)
        if lossy and picture.mode != "RGB":
            picture = picture.convert("RGB" if picture.mode == "P" else "L")
        picture.save(path)


# What stores an upright image so that its EXIF orientation turns it back.
BEFORE = {3: Image.Transpose.ROTATE_180, 6: Image.Transpose.ROTATE_90}


def _exif(value: int) -> bytes:
    entry = b"\x12\x01\x04\x00\x01\x00\x00\x00" + value.to_bytes(4, "little")
    return b"Exif\0\0II*\0\x08\0\0\0\x01\0" + entry + b"\0\0\0\0"


def litter(folder: Path, chance: random.Random) -> None:
    """Add files that are no masks, as systems and labelling programs leave them."""
    folders = sorted({path.parent for path in folder.rglob("*.png")})
    place = chance.choice(folders or [folder])
    (place / "._hidden.png").write_bytes(b"\x00\x05\x16\x07")
    (place / "Thumbs.db").write_bytes(b"db")
    (folder / "README.txt").write_text("images and masks\n")
    (folder / "labels.json").write_text("{}")
    (folder / ".ipynb_checkpoints").mkdir(exist_ok=True)
    grey_image(np.zeros((4, 4))).save(folder / ".ipynb_checkpoints/a_mask.png")


def grey_image(values: Array, deep: bool = False) -> Image.Image:
    return Image.fromarray(values.astype(np.uint16 if deep else np.uint8))
