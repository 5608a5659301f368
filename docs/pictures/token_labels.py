"""Draw the page's picture of token labels over photographs, from two that scikit-learn brings along.

A small teacher learns six kinds of things from pieces that were cut out by hand, then says what it sees in every cell
of the whole photographs. The same for photographs of your own, with any teacher:

    paucal label photos/ --teacher RUN --output labels/ --picture labels.png

Photographs: china.jpg and flower.jpg, both CC BY 2.0 (https://creativecommons.org/licenses/by/2.0/), by danielbuechele
and vultilion on Flickr.

    python docs/pictures/token_labels.py
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
import sklearn.datasets
from PIL import Image

import paucal
from paucal.cli.main import main as command

SIDE, PIECES = 48, 120  # pixels of a piece, and pieces of each kind
SIZE = (432, 640)  # pixels that the teacher looks at whole photographs with, about their own
# (photograph, left, top, right, bottom) of areas that show one thing.
AREAS: dict[str, list[tuple[str, int, int, int, int]]] = {
    "sky": [("china", 335, 5, 635, 190), ("china", 0, 0, 95, 135)],
    "water": [("china", 350, 242, 550, 310)],
    "tower": [("china", 115, 80, 300, 200), ("china", 90, 190, 330, 345)],
    "trees": [("china", 0, 370, 260, 427), ("china", 345, 315, 560, 425), ("china", 575, 170, 640, 400)],
    "flower": [("flower", 200, 115, 420, 335)],
    "shade": [("flower", 0, 0, 160, 427), ("flower", 455, 0, 640, 380), ("flower", 160, 0, 455, 85)],
}
TEACHER = {
    "model": "resnet10t",
    "model_args": ["channels=[24,48,96,192]", "stem_width=16", "output_stride=16"],
    "method": "supervised",
    "img_size": [SIDE],
    "epochs": 12,
    "batch_size": 64,
    "lr": 2e-3,
    "crop_scale": 0.5,
    "rand_augment": "none",
    "mixup": 0.0,
    "cutmix": 0.0,
    "erase": 0.0,
    "device": "cpu",
    "workers": 0,
    "seed": 0,
}


def cut(folder: Path) -> tuple[Path, Path]:
    """Write the photographs and the pieces of them; return the folders of both."""
    whole, pieces = folder / "photographs", folder / "pieces"
    sample = sklearn.datasets.load_sample_images()
    photographs = {Path(name).stem: pixels for name, pixels in zip(sample.filenames, sample.images, strict=True)}
    for name, kind in (("china", "tower"), ("flower", "flower")):
        (whole / kind).mkdir(parents=True)
        Image.fromarray(photographs[name]).save(whole / kind / f"{name}.png")
    generator = np.random.default_rng(0)
    for kind, areas in AREAS.items():
        (pieces / kind).mkdir(parents=True)
        for number in range(PIECES):
            name, left, top, right, bottom = areas[number % len(areas)]
            x, y = generator.integers(left, right - SIDE + 1), generator.integers(top, bottom - SIDE + 1)
            Image.fromarray(photographs[name][y : y + SIDE, x : x + SIDE]).save(pieces / kind / f"{number}.png")
    return whole, pieces


def main() -> None:
    """Train the teacher, ask it, and write the picture beside this file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path(__file__).with_name("token_labels_photographs.jpg"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        whole, pieces = cut(folder)
        paucal.train(pieces, output=str(folder / "teacher"), **TEACHER)
        words = ["label", str(whole), "--teacher", str(folder / "teacher"), "--output", str(folder / "maps")]
        words += ["--img-size", *map(str, SIZE), "--picture", str(folder / "picture.png")]
        if command([*words, "--min-accuracy", "0"]):  # most of the first photograph is no tower
            raise SystemExit("the teacher gave no maps")
        Image.open(folder / "picture.png").convert("RGB").save(options.output, quality=85, optimize=True)


if __name__ == "__main__":
    main()
