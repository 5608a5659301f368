"""Tiny copies of published data sets, in the layout their official archives unpack to.

Every image has one grey level, `level(part, i)`, so that a test can tell which one it got.
"""

import json
import pickle
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import scipy.io
from PIL import Image

from paucal.data.images import ImageSet

PARTS = ("train", "val", "test")


def level(part: str, row: int) -> int:
    return 40 * PARTS.index(part) + 10 * row


def picture(path: Path, grey: int) -> None:
    """A PNG by content, whatever its name: lossless."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (10, 8), (grey, grey, grey)).save(path, "PPM" if path.suffix == ".ppm" else "PNG")


def pixels(part: str, count: int, side: int) -> np.ndarray:
    """(N, side, side, 3), with a mark at the top left to tell axes apart: red at (row 0, column 1)."""
    levels = np.asarray([level(part, row) for row in range(count)], dtype=np.uint8)
    images = np.broadcast_to(levels[:, None, None, None], (count, side, side, 3)).copy()
    images[:, 0, 1] = (255, 0, 0)
    return images


def cifar10(root: Path) -> None:
    folder = root / "cifar-10-batches-py"
    folder.mkdir()
    train = pixels("train", 5, 32).transpose(0, 3, 1, 2).reshape(5, -1)
    for number in range(5):
        entry = {"data": train[number : number + 1], "labels": [number % 3]}
        (folder / f"data_batch_{number + 1}").write_bytes(pickle.dumps(entry))
    entry = {"data": pixels("test", 2, 32).transpose(0, 3, 1, 2).reshape(2, -1), "labels": [1, 2]}
    (folder / "test_batch").write_bytes(pickle.dumps(entry))
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": ["airplane", "bird", "cat"]}))


def cifar100(root: Path) -> None:
    folder = root / "cifar-100-python"
    folder.mkdir()
    for part, count in (("train", 3), ("test", 2)):
        data = pixels(part, count, 32).transpose(0, 3, 1, 2).reshape(count, -1)
        entry = {"data": data, "fine_labels": list(range(count)), "coarse_labels": [0] * count}
        (folder / part).write_bytes(pickle.dumps(entry))
    (folder / "meta").write_bytes(pickle.dumps({"fine_label_names": ["apple", "bear", "can"]}))


def mnist(root: Path) -> None:
    folder = root / "MNIST" / "raw"
    folder.mkdir(parents=True)
    for part, name, labels in (("train", "train", [5, 0, 9]), ("test", "t10k", [7, 0])):
        count = len(labels)
        sizes = b"".join(number.to_bytes(4, "big") for number in (count, 28, 28))
        grey = b"".join(bytes([level(part, row)]) * 784 for row in range(count))
        (folder / f"{name}-images-idx3-ubyte").write_bytes(bytes([0, 0, 8, 3]) + sizes + grey)
        (folder / f"{name}-labels-idx1-ubyte").write_bytes(
            bytes([0, 0, 8, 1]) + count.to_bytes(4, "big") + bytes(labels)
        )


def svhn(root: Path) -> None:
    for part, labels in (("train", [1, 10, 9]), ("test", [2, 10])):  # the files call the digit 0 "10"
        data = pixels(part, len(labels), 32).transpose(1, 2, 3, 0)
        scipy.io.savemat(root / f"{part}_32x32.mat", {"X": data, "y": np.asarray(labels, dtype=np.uint8)[:, None]})


def stl10(root: Path) -> None:
    folder = root / "stl10_binary"
    folder.mkdir()
    for part, labels in (("train", [1, 2, 2]), ("test", [2, 1])):
        columns_first = pixels(part, len(labels), 96).transpose(0, 3, 2, 1)
        columns_first.tofile(folder / f"{part}_X.bin")
        np.asarray(labels, dtype=np.uint8).tofile(folder / f"{part}_y.bin")
    (folder / "unlabeled_X.bin").write_bytes(b"")
    (folder / "class_names.txt").write_text("airplane\nbird\n")


def food101(root: Path) -> None:
    folder = root / "food-101"
    for part in ("train", "test"):
        names = {"waffles": [f"waffles/{part}0"], "apple_pie": [f"apple_pie/{part}1"]}
        (folder / "meta").mkdir(parents=True, exist_ok=True)
        (folder / "meta" / f"{part}.json").write_text(json.dumps(names))
        for row, name in enumerate(("waffles", "apple_pie")):
            picture(folder / "images" / name / f"{part}{row}.jpg", level(part, row))


def dtd(root: Path) -> None:
    folder = root / "dtd" / "dtd"
    (folder / "labels").mkdir(parents=True)
    for part in PARTS:
        lines = [f"{name}/{name}_{part}.jpg" for name in ("banded", "woven")]
        (folder / "labels" / f"{part}1.txt").write_text("\n".join(lines) + "\n")
        for row, line in enumerate(lines):
            picture(folder / "images" / line, level(part, row))


def pets(root: Path) -> None:
    folder = root / "oxford-iiit-pet"
    (folder / "annotations").mkdir(parents=True)
    for part, file in (("train", "trainval"), ("test", "test")):
        rows = [("Abyssinian", 1), ("great_pyrenees", 2)]
        lines = [f"{name}_{part} {label} 1 1" for name, label in rows]
        (folder / "annotations" / f"{file}.txt").write_text("\n".join(lines) + "\n")
        for row, (name, _) in enumerate(rows):
            picture(folder / "images" / f"{name}_{part}.jpg", level(part, row))


def flowers102(root: Path) -> None:
    folder = root / "flowers-102"
    folder.mkdir()
    parts = {"trnid": ("train", [3, 1]), "valid": ("val", [2, 6]), "tstid": ("test", [5, 4])}
    for part, ids in parts.values():
        for row, number in enumerate(ids):
            picture(folder / "jpg" / f"image_{number:05d}.jpg", level(part, row))
    scipy.io.savemat(folder / "setid.mat", {name: np.asarray([ids]) for name, (_, ids) in parts.items()})
    scipy.io.savemat(folder / "imagelabels.mat", {"labels": np.asarray([[1, 2, 102, 1, 2, 102]])})


def gtsrb(root: Path) -> None:
    folder = root / "gtsrb"
    for row, name in enumerate(("00002", "00041")):  # folder numbers are the classes, also where some are missing
        picture(folder / "GTSRB" / "Training" / name / "00000.ppm", level("train", row))
        picture(folder / "GTSRB" / "Final_Test" / "Images" / f"{row:05d}.ppm", level("test", row))
    (folder / "GT-final_test.csv").write_text("Filename;Width;ClassId\n00000.ppm;10;41\n00001.ppm;10;2\n")


def pcam(root: Path) -> None:
    folder = root / "pcam"
    folder.mkdir()
    for part, name, labels in (("train", "train", [0, 1, 1]), ("val", "valid", [1]), ("test", "test", [1, 0])):
        stem = folder / f"camelyonpatch_level_2_split_{name}"
        with h5py.File(f"{stem}_x.h5", "w") as file:
            file["x"] = pixels(part, len(labels), 96)
        with h5py.File(f"{stem}_y.h5", "w") as file:
            file["y"] = np.asarray(labels, dtype=np.uint8).reshape(-1, 1, 1, 1)


def caltech101(root: Path) -> None:
    folder = root / "caltech101" / "101_ObjectCategories"
    for row, name in enumerate(("BACKGROUND_Google", "Faces", "accordion")):
        picture(folder / name / "image_0001.jpg", level("train", row))
    (folder / "BACKGROUND_Google" / "tmp").write_bytes(b"as the official archive has it")


def sun397(root: Path) -> None:
    folder = root / "SUN397"
    names = ("abbey", "apartment_building/outdoor")
    for row, name in enumerate(names):
        picture(folder / name[0] / name / f"sun_{row}.jpg", level("train", row))
    (folder / "ClassName.txt").write_text("".join(f"/{name[0]}/{name}\n" for name in names))


def aircraft(root: Path) -> None:
    folder = root / "fgvc-aircraft-2013b" / "data"
    (folder / "images").mkdir(parents=True)
    names = ("707-320", "F-16A/B")
    (folder / "variants.txt").write_text("\n".join(names) + "\n")
    for part in PARTS:
        lines = [f"{part}{row} {name}" for row, name in enumerate(names)]
        (folder / f"images_variant_{part}.txt").write_text("\n".join(lines) + "\n")
        for row in range(2):
            picture(folder / "images" / f"{part}{row}.jpg", level(part, row))


def cars(root: Path) -> None:
    folder = root / "stanford_cars"
    (folder / "devkit").mkdir(parents=True)
    names = np.asarray(["AM General Hummer SUV 2000", "Acura RL Sedan 2012"], dtype=object)
    scipy.io.savemat(folder / "devkit" / "cars_meta.mat", {"class_names": names})
    files = {"train": folder / "devkit" / "cars_train_annos.mat", "test": folder / "cars_test_annos_withlabels.mat"}
    for part, file in files.items():
        rows = np.zeros(2, dtype=[("fname", object), ("class", np.uint8)])
        for row in range(2):
            rows[row] = (f"{row:05d}.jpg", 2 - row)
            picture(folder / f"cars_{part}" / f"{row:05d}.jpg", level(part, row))
        scipy.io.savemat(file, {"annotations": rows})


def fer2013(root: Path) -> None:
    (root / "fer2013").mkdir()
    rows = [("Training", "train", 0, 3), ("PrivateTest", "test", 0, 6), ("PublicTest", "val", 0, 0)]
    rows += [("Training", "train", 1, 1), ("PrivateTest", "test", 1, 2)]
    lines = [f"{label},{' '.join([str(level(part, row))] * 48 * 48)},{usage}" for usage, part, row, label in rows]
    (root / "fer2013" / "fer2013.csv").write_text("\n".join(["emotion,pixels,Usage", *lines]) + "\n")


def ucf101(root: Path) -> None:
    lists = root / "ucf101" / "ucfTrainTestlist"
    lists.mkdir(parents=True)
    (lists / "classInd.txt").write_text("1 Archery\n2 BabyCrawling\n")
    for part in ("train", "test"):
        videos = [f"{name}/v_{name}_{part}.avi" for name in ("Archery", "BabyCrawling")]
        numbers = [" 1", " 2"] if part == "train" else ["", ""]
        lines = [video + number for video, number in zip(videos, numbers, strict=True)]
        (lists / f"{part}list01.txt").write_text("\n".join(lines) + "\n")
        for row, video in enumerate(videos):
            picture(root / "ucf101" / "UCF-101" / video.replace(".avi", ".jpg"), level(part, row))


def hateful_memes(root: Path) -> None:
    folder = root / "hateful_memes"
    for part, file in (("train", "train"), ("test", "dev_seen")):
        rows = [{"id": row, "img": f"img/{part}{row}.png", "label": row, "text": "words"} for row in (0, 1)]
        for row in (0, 1):
            picture(folder / "img" / f"{part}{row}.png", level(part, row))
        (folder / f"{file}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def webvision(root: Path) -> None:
    info = root / "info"
    info.mkdir(parents=True)
    (info / "synsets.txt").write_text("n01440764 tench, Tinca tinca\nn01443537 goldfish\nn01484850 white shark\n")
    lists = {
        "train_filelist_google.txt": ("", ["google/q0001/1a.jpg 0", "google/q0003/2b.jpg 2"]),
        "train_filelist_flickr.txt": ("", ["flickr/q0002/277.jpg 1"]),
        "val_filelist.txt": ("val_images_256/", ["val000001.jpg 2", "val000002.jpg 0"]),
    }
    for file, (below, lines) in lists.items():
        (info / file).write_text("".join(f"{line}\n" for line in lines))
        for row, line in enumerate(lines):
            first = row + (2 if "flickr" in file else 0)
            picture(root / below / line.split()[0], level("val" if below else "train", first))


def openimages(root: Path) -> None:
    for row, folder in enumerate(("train_0", "train_b", "train_f")):
        picture(root / folder / f"{folder[-1]}00026e7ee790996.jpg", level("train", row))
    picture(root / "validation" / "0001eeaf4aed83f9.jpg", level("val", 0))


MAKE: dict[str, Callable[[Path], None]] = {
    make.__name__: make
    for make in (
        *(cifar10, cifar100, mnist, svhn, stl10, food101, dtd, pets),
        *(flowers102, gtsrb, pcam, caltech101, sun397, aircraft, cars),
        *(fer2013, ucf101, hateful_memes, webvision, openimages),
    )
}

# (part, number of the image in that part, class); what each fake set must come out as, in order.
EXPECTED: dict[str, list[tuple[str, int, str]]] = {
    "cifar10": [
        *(("train", row, name) for row, name in enumerate(["airplane", "bird", "cat", "airplane", "bird"])),
        *(("test", 0, "bird"), ("test", 1, "cat")),
    ],
    "cifar100": [
        *(("train", 0, "apple"), ("train", 1, "bear"), ("train", 2, "can")),
        *(("test", 0, "apple"), ("test", 1, "bear")),
    ],
    "mnist": [
        *(("train", 0, "5"), ("train", 1, "0"), ("train", 2, "9")),
        *(("test", 0, "7"), ("test", 1, "0")),
    ],
    "svhn": [
        *(("train", 0, "1"), ("train", 1, "0"), ("train", 2, "9")),
        *(("test", 0, "2"), ("test", 1, "0")),
    ],
    "stl10": [
        *(("train", 0, "airplane"), ("train", 1, "bird"), ("train", 2, "bird")),
        *(("test", 0, "bird"), ("test", 1, "airplane")),
    ],
    "food101": [
        *(("train", 1, "apple_pie"), ("train", 0, "waffles")),
        *(("test", 1, "apple_pie"), ("test", 0, "waffles")),
    ],
    "dtd": [(part, row, ("banded", "woven")[row]) for part in ("train", "val", "test") for row in (0, 1)],
    "pets": [(part, row, ("Abyssinian", "Great Pyrenees")[row]) for part in ("train", "test") for row in (0, 1)],
    # The official validation images are training images in the paper.
    "flowers102": [
        *(("train", 1, "pink primrose"), ("train", 0, "blackberry lily")),
        *(("train as val", 0, "hard-leaved pocket orchid"), ("train as val", 1, "blackberry lily")),
        *(("test", 1, "pink primrose"), ("test", 0, "hard-leaved pocket orchid")),
    ],
    "gtsrb": [("train", 0, "00002"), ("train", 1, "00041"), ("test", 0, "00041"), ("test", 1, "00002")],
    "pcam": [
        *(("train", 0, "normal"), ("train", 1, "tumor"), ("train", 2, "tumor")),
        *(("val", 0, "tumor"), ("test", 0, "tumor"), ("test", 1, "normal")),
    ],
    "caltech101": [
        *((" as train", 0, "BACKGROUND_Google"), (" as train", 1, "Faces"), (" as train", 2, "accordion")),
    ],
    "sun397": [(" as train", 0, "abbey"), (" as train", 1, "apartment_building/outdoor")],
    "aircraft": [(part, row, ("707-320", "F-16A/B")[row]) for part in ("train", "val", "test") for row in (0, 1)],
    "cars": [
        *(("train", 0, "Acura RL Sedan 2012"), ("train", 1, "AM General Hummer SUV 2000")),
        *(("test", 0, "Acura RL Sedan 2012"), ("test", 1, "AM General Hummer SUV 2000")),
    ],
    "fer2013": [
        *(("train", 0, "happy"), ("train", 1, "disgust"), ("val", 0, "angry")),
        *(("test", 0, "neutral"), ("test", 1, "fear")),
    ],
    "ucf101": [(part, row, ("Archery", "BabyCrawling")[row]) for part in ("train", "test") for row in (0, 1)],
    "hateful_memes": [(part, row, ("not hateful", "hateful")[row]) for part in ("train", "test") for row in (0, 1)],
    "webvision": [
        *(("train", 0, "n01440764"), ("train", 1, "n01484850"), ("train", 2, "n01443537")),
        *(("val", 0, "n01484850"), ("val", 1, "n01440764")),
    ],
    "openimages": [("train", row, "") for row in range(3)],
}


def rows(images: ImageSet) -> list[tuple[str, int, str]]:
    """(declared part, grey level, class, "" for none) of each image."""
    greys = [int(np.asarray(images.store.read(row))[-1, -1, 1]) for row in range(len(images))]
    names = [images.classes[label] if label >= 0 else "" for label in images.labels]
    return list(zip(images.declared_splits, greys, names, strict=True))


def expected_rows(name: str) -> list[tuple[str, int, str]]:
    found = []
    for part, row, label in EXPECTED[name]:
        declared, _, drawn = part.partition(" as ")
        found.append((declared, level(drawn or declared, row), label))
    return found
