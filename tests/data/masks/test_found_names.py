"""Tables of classes that sets of masks bring themselves, and masks that are drawn by transparency."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from data.masks.saving import save
from paucal.data.masks.coding import read_class_names
from paucal.data.masks.masked_images import MaskedImages, images_of_pairs, read_masks
from paucal.data.masks.pairs import find_pairs

COLOURS = np.asarray([(0, 0, 0), (128, 0, 0), (0, 128, 0)], dtype=np.uint8)
NUMBERS = np.zeros((6, 8), dtype=np.uint8)
NUMBERS[:3, :4], NUMBERS[3:, 5:] = 1, 2
# Tables of colours as SegNet's, CVAT's and CamVid's sets have them, and one of values as Roboflow's.
TABLES = {
    "class_dict.csv": "name,r,g,b\nsky,0,0,0\nroad,128,0,0\ncar,0,128,0\n",
    "labelmap.txt": "# label:color_rgb:parts:actions\nsky:0,0,0::\nroad:128,0,0::\ncar:0,128,0::\n",
    "label_colors.txt": "0 0 0\t\tsky\n128 0 0\troad\n0 128 0 car\n",
    "_classes.csv": "Pixel Value, Class\n0, sky\n1, road\n2, car\n",
    "classes.txt": "sky\nroad\ncar\n",
}


def make(root: Path, colour: bool, images: str = "images/{}.png", masks: str = "masks/{}.png") -> Path:
    for n in range(3):
        save(root / images.format(n), np.full((6, 8, 3), 40 * n, dtype=np.uint8))
        save(root / masks.format(n), COLOURS[NUMBERS] if colour else NUMBERS)
    return root


def opened(root: Path, *places: Path, **more) -> MaskedImages:
    pairs = find_pairs(root, *places)
    return read_masks(images_of_pairs(pairs, str(root)), pairs, **more)


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("where", [".", "masks"])
def test_tables__give_the_classes_their_names_and_order(tmp_path: Path, name: str, where: str):
    root = make(tmp_path / "set", colour=name not in ("_classes.csv", "classes.txt"))
    (root / where / name).write_text(TABLES[name])
    masked = opened(root)
    assert masked.images.classes == ("sky", "road", "car")
    assert masked.masks.read(0).tolist() == NUMBERS.tolist()
    assert f"class names are from {name}" in masked.images.notes
    assert read_class_names(root / where / name).names == masked.images.classes


def test_tables__are_found_beside_named_folders_and_within_parts(tmp_path: Path):
    root = make(tmp_path / "a", False, "train/{}.png", "train/{}_mask.png")
    (root / "train/_classes.csv").write_text(TABLES["_classes.csv"])
    assert opened(root).images.classes == ("sky", "road", "car")
    root = make(tmp_path / "b", True)
    (root / "class_dict.csv").write_text(TABLES["class_dict.csv"])
    assert opened(root, root / "images", root / "masks").images.classes == ("sky", "road", "car")
    root = make(tmp_path / "c", True)
    (tmp_path / "class_dict.csv").write_text(TABLES["class_dict.csv"])  # above the set: it may be of another one
    assert opened(root).images.classes == ("#000000", "#008000", "#800000")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("class_dict.csv", "name,r,g,b\nsky,0,0,0\nroad,128,0,0\n"),  # a colour of the masks is lacking
        ("class_dict.csv", "anything at all"),
        ("classes.txt", "one\n"),
        ("labels.txt", "\x00\x01\xfe"),
    ],
)
def test_tables__that_do_not_fit_are_named_and_not_used(tmp_path: Path, name: str, text: str):
    root = make(tmp_path / "set", True)
    (root / name).write_text(text)
    masked = opened(root)
    assert masked.images.classes == ("#000000", "#008000", "#800000")
    assert f"{name} is not used, since its classes do not match these masks" in masked.images.notes


def test_tables__count_less_than_what_is_given(tmp_path: Path):
    root = make(tmp_path / "set", True)
    (root / "class_dict.csv").write_text(TABLES["class_dict.csv"])
    (tmp_path / "mine.csv").write_text("a,0,0,0\nb,128,0,0\nc,0,128,0\n")
    assert opened(root, named_classes=read_class_names(tmp_path / "mine.csv")).images.classes == ("a", "b", "c")
    assert opened(root, requested_kind="colour").images.classes == ("#000000", "#008000", "#800000")


def test_masks_by_transparency__are_read_by_it(tmp_path: Path):
    for n in range(3):
        save(tmp_path / f"images/{n}.png", np.full((6, 8, 3), 40 * n, dtype=np.uint8))
        marked = (n == NUMBERS).astype(np.uint8) * 255 if n else np.zeros_like(NUMBERS)
        pixels = np.dstack([np.full_like(marked, 255), np.zeros_like(marked), np.zeros_like(marked), marked])
        (tmp_path / "masks").mkdir(exist_ok=True)
        Image.fromarray(pixels, "RGBA").save(tmp_path / f"masks/{n}.png")
    masked = opened(tmp_path)
    assert masked.images.classes == ("background", "foreground")
    assert masked.masks.read(1).tolist() == (NUMBERS == 1).astype(int).tolist()
    assert masked.class_pixel_counts[0].tolist() == [48, 0]


def test_transparency_beside_colours__is_dropped(tmp_path: Path):
    root = make(tmp_path, True)
    for n in range(3):
        opacity = np.where(NUMBERS > 0, 255, 0).astype(np.uint8)[..., None]
        pixels = np.concatenate([COLOURS[NUMBERS], opacity], axis=2)
        Image.fromarray(pixels, "RGBA").save(root / f"masks/{n}.png")
    assert opened(root).class_pixel_counts[0].tolist() == [np.sum(n == NUMBERS) for n in (0, 2, 1)]
