"""Real images for the stories of docs/stories/, laid out as the stories say."""

import io
import random
import shutil
from pathlib import Path
from xml.etree import ElementTree

import pyarrow.parquet as pq
from PIL import Image

SHARED = Path(__file__).parents[2] / "shared" / "data"
CLOTHES = ("dress", "hat", "longsleeve", "outwear", "pants", "shirt", "shoes", "shorts", "skirt", "t-shirt")
THINGS = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
CELL_SIDE = 96


def write_clothes(root: Path, images: int = 800, new_images: int = 20) -> None:
    """Write `photos/` with a folder for each class, and `new_photos/` without labels."""
    for part, folder, count in (("train", "photos", images), ("test", "new_photos", new_images)):
        rows = pq.read_table(SHARED / f"clothing/{part}.parquet").to_pylist()
        random.Random(0).shuffle(rows)
        for i, row in enumerate(rows[:count]):
            place = root / folder / CLOTHES[row["label"]] if part == "train" else root / folder
            place.mkdir(parents=True, exist_ok=True)
            (place / f"{i:04d}.jpg").write_bytes(row["image"]["bytes"])


def write_few_labels(root: Path, each: int = 10, more: int = 1500) -> None:
    """Write `shop/train` with a few photographs in a folder for each class, `shop/test` with many, and `more/`."""
    rows = {part: pq.read_table(SHARED / f"clothing/{part}.parquet").to_pylist() for part in ("train", "test")}
    random.Random(0).shuffle(rows["train"])
    counts, others = dict.fromkeys(CLOTHES, 0), 0
    for i, row in enumerate(rows["train"]):
        name = CLOTHES[row["label"]]
        place = root / "shop/train" / name if counts[name] < each else root / "more"
        counts[name] += 1
        others += place.name == "more"
        if place.name != "more" or others <= more:
            place.mkdir(parents=True, exist_ok=True)
            (place / f"{i:04d}.jpg").write_bytes(row["image"]["bytes"])
    for i, row in enumerate(rows["test"]):
        place = root / "shop/test" / CLOTHES[row["label"]]
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{i:04d}.jpg").write_bytes(row["image"]["bytes"])


def write_boards(root: Path) -> None:
    """Write `board/`, photographs of chess boards with boxes in COCO's layout, and `new_boards/` without boxes."""
    for part in ("train", "valid", "test"):
        shutil.copytree(SHARED / "chess" / part, root / "board" / part)
    (root / "new_boards").mkdir()
    for number, photograph in enumerate(sorted((root / "board/test").glob("*.jpg"))[:3]):
        shutil.copy(photograph, root / f"new_boards/{number}.jpg")


def write_things(root: Path) -> None:
    """Write `things/` with a folder for each class of CIFAR-10 in `train` and `test`, and `unlabelled/`."""
    _write_cifar("train", root / "things/train", range(1000))
    _write_cifar("test", root / "things/test", range(2000))
    _write_cifar("train", root / "unlabelled", range(5000, 10000), labelled=False)


def _write_cifar(part: str, folder: Path, places: range, labelled: bool = True) -> None:
    table = pq.read_table(SHARED / f"cifar10/{part}.parquet")
    order = list(range(table.num_rows))
    random.Random(0).shuffle(order)
    for i, row in enumerate(table.take(order[places.start : places.stop]).to_pylist()):
        place = folder / THINGS[row["label"]] if labelled else folder
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{i:05d}.jpg").write_bytes(row["image"]["bytes"])


def write_cells(root: Path, each: int = 20) -> None:
    """Write `cells/`: from each of 60 smears one window of the same size around one cell of the wanted kind."""
    smears = sorted((SHARED / "bccd/Annotations").glob("*.xml"))
    random.Random(0).shuffle(smears)
    counts = {"WBC": 0, "Platelets": 0, "RBC": 0}
    for smear in smears:
        kind = next((kind for kind in counts if counts[kind] < each), None)
        if kind is None:
            return
        window = _window_around(smear, kind)
        if window is not None:
            place = root / "cells" / kind
            place.mkdir(parents=True, exist_ok=True)
            window.save(place / f"{smear.stem}.png")
            counts[kind] += 1


def _window_around(smear: Path, kind: str) -> Image.Image | None:
    """Return the square around the first cell of `kind` that lies far enough from the edge of its smear."""
    found = ElementTree.parse(smear).getroot()
    image = Image.open(io.BytesIO((SHARED / f"bccd/JPEGImages/{smear.stem}.jpg").read_bytes()))
    for cell in found.iter("object"):
        if cell.findtext("name") != kind:
            continue
        left, top, right, bottom = (
            int(cell.findtext(f"bndbox/{side}", "0")) for side in ("xmin", "ymin", "xmax", "ymax")
        )
        x, y = (left + right - CELL_SIDE) // 2, (top + bottom - CELL_SIDE) // 2
        if 0 <= x <= image.width - CELL_SIDE and 0 <= y <= image.height - CELL_SIDE:
            return image.crop((x, y, x + CELL_SIDE, y + CELL_SIDE))
    return None
