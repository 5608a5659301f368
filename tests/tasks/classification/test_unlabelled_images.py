"""Which images without labels a run reads: rows of a table, the rest of its own set, and never a test image."""

import numpy as np
import pytest
from PIL import Image

from paucal.data.decode import DecodeOptions
from paucal.data.sources.opening import open_images
from paucal.data.splits.groups import find_copies
from paucal.data.splits.split import Split
from paucal.methods.training_settings import TrainSettings
from paucal.runner.console import RecordingConsole
from paucal.runner.images import SplitImages, decode_images
from paucal.tasks.classification.images import open_unlabelled, read_unlabelled
from paucal.types import UserError


@pytest.fixture
def folder(tmp_path):
    draw = np.random.default_rng(0)
    for number in range(20):
        pixels = draw.integers(0, 256, (5, 6, 3), dtype=np.uint8)
        place = tmp_path / "images" / ("test" if number >= 17 else "train")
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).resize((60, 50), Image.Resampling.NEAREST).save(place / f"{number:02d}.png")
    return tmp_path / "images"


def split_of(location, parts):
    images = open_images(location)
    settings = TrainSettings(data=str(location))
    images = decode_images(images, settings, DecodeOptions(side=64))
    return SplitImages(images, Split(np.asarray(parts, dtype="<U6"), ""))


def test_rows_of_a_table_without_a_label__are_read(folder, tmp_path):
    table = tmp_path / "labels.csv"
    cells = ["a", "b"] * 4 + [""] * 9
    rows = [f"images/train/{number:02d}.png,{cell}" for number, cell in enumerate(cells)]
    table.write_text("\n".join(["image_path,label", *rows]))
    data = split_of(table, ["train"] * 6 + ["val", "test"])
    console = RecordingConsole()
    found = read_unlabelled(TrainSettings(unlabelled=str(table)), data, 1000, console)
    assert [key.rpartition("/")[2] for key in found.keys] == [f"{number:02d}.png" for number in range(8, 17)]
    assert console.said[-2:] == [
        "left out: 2 images without labels that look like a validation or test image",
        "left out: 6 images without labels that look like a training image",
    ]


def test_unused_images_of_the_run__are_read_and_held_out_ones_are_not(folder):
    places = [folder / "train" / f"{number:02d}.png" for number in range(17)]
    for number, place in enumerate(places):
        (folder / "train" / "ab"[number % 2]).mkdir(exist_ok=True)
        place.rename(folder / "train" / "ab"[number % 2] / place.name)
    (folder / "test" / "a").mkdir()
    for place in list((folder / "test").glob("*.png")):
        place.rename(folder / "test" / "a" / place.name)
    images = open_images(folder)
    parts = ["unused" if part == "train" else part for part in images.declared_splits]
    parts[:4] = ["train", "train", "val", "val"]
    data = split_of(folder, parts)
    assert len(open_unlabelled(TrainSettings(unlabelled=str(folder / "train")))) == 17
    found = read_unlabelled(TrainSettings(unlabelled=str(folder / "train")), data, 1000, RecordingConsole())
    assert len(found) == parts.count("unused")
    console = RecordingConsole()
    few = read_unlabelled(TrainSettings(unlabelled=str(folder / "train")), data, 5, console)
    assert len(few) <= 5
    assert console.said[0] == "note: 5 of the 17 images without labels are used"


def test_nothing_there__is_refused(tmp_path):
    with pytest.raises(UserError, match="does not exist"):
        open_unlabelled(TrainSettings(unlabelled=str(tmp_path / "nowhere")))


def test_folder_of_test_images_alone__is_refused(folder):
    for place in (folder / "train").iterdir():
        place.unlink()
    with pytest.raises(UserError, match=r"--unlabelled: all images of .*images are test images: give other images"):
        open_unlabelled(TrainSettings(unlabelled=str(folder)))


def test_copies__of_no_images_are_none(folder):
    images = open_images(folder, labelled=False)
    of_known, of_own = find_copies(images.select(np.empty(0, dtype=np.int64)), images)
    assert (of_known.tolist(), of_own.tolist()) == ([], [])


def test_image_column__of_the_labelled_table_is_not_looked_for_in_a_plain_folder(folder, tmp_path):
    table = tmp_path / "more.csv"
    table.write_text("other,photo\nx,images/train/03.png\ny,images/train/05.png\n")
    listed = open_unlabelled(TrainSettings(unlabelled=str(table), image_column="photo"))
    assert [key.rpartition("/")[2] for key in listed.keys] == ["03.png", "05.png"]
    assert len(open_unlabelled(TrainSettings(unlabelled=str(folder), image_column="photo"))) == 17
