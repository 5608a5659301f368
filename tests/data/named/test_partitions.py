"""SUN397's first official partition, told by lists beside the images."""

import os
from pathlib import Path

import pytest

from data.fake_sets import picture
from paucal.data.named import store as named_store
from paucal.data.named.table import NAMED
from paucal.data.sources.opening import open_images
from paucal.data.splits.split import make_split
from paucal.types import UserError

CLASSES = ("abbey", "apartment_building/outdoor")


def line_of(label: int, number: int) -> str:
    return f"/{CLASSES[label][0]}/{CLASSES[label]}/sun_{number}.jpg"


@pytest.fixture
def scenes(root) -> Path:
    """Four images of each of two classes, whose grey level says which: of the class and its number."""
    folder = root / "SUN397"
    for label in range(2):
        for number in range(4):
            picture(folder / line_of(label, number)[1:], 100 * label + 10 * number)
    (folder / "ClassName.txt").write_text("".join(f"/{name[0]}/{name}\n" for name in CLASSES))
    return root


def write_lists(folder: Path, train=((0, 3), (1, 0)), test=((1, 2), (0, 1), (0, 0))) -> None:
    folder.mkdir(exist_ok=True)
    for name, rows in (("Training_01.txt", train), ("Testing_01.txt", test)):
        (folder / name).write_text("".join(f"{line_of(*row)}\r\n" for row in rows))


@pytest.mark.parametrize("place", ["SUN397", "SUN397/Partitions", "Partitions"])
def test_lists__make_the_parts_and_leave_the_other_images_out(scenes, place):
    write_lists(scenes / place)
    images = open_images("sun397", root=scenes)
    greys = [images.store.read(row).getpixel((0, 0))[0] for row in range(len(images))]
    named = zip(images.declared_splits, greys, (images.classes[label] for label in images.labels), strict=True)
    assert sorted(named) == [
        ("test", 0, "abbey"),
        ("test", 10, "abbey"),
        ("test", 120, "apartment_building/outdoor"),
        ("train", 30, "abbey"),
        ("train", 100, "apartment_building/outdoor"),
    ]
    assert images.keys == sorted(images.keys)
    assert images.classes == CLASSES
    told = "the first of the ten official partitions was published with 19,850 + 19,850 images, but 2 + 3 exist here"
    assert told in images.notes
    assert make_split(images, val_fraction=0.0).counts() == {"train": 2, "val": 0, "test": 3, "unused": 0}


def test_lists__that_are_complete_are_no_note(scenes, monkeypatch):
    write_lists(scenes / "SUN397")
    counts = NAMED["sun397"].lists.counts
    for part, count in (("train", 2), ("test", 3)):
        monkeypatch.setitem(counts, part, count)
    assert not [note for note in open_images("sun397", root=scenes).notes if "partitions was published" in note]


def test_lists__are_asked_for_where_they_are_not_there(scenes):
    images = open_images("sun397", root=scenes)
    assert len(images) == 8
    assert set(images.declared_splits) == {""}
    put = (
        "put Training_01.txt and Testing_01.txt from Partitions.zip "
        f"(https://vision.princeton.edu/projects/2010/SUN/download/Partitions.zip) into {scenes / 'SUN397'}"
    )
    assert images.hints.official_split_advice == put
    note = f"SUN397: paucal splits the images; to use the first of the ten official partitions, {put}"
    assert note in images.notes


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("/a/abbey/sun_9.jpg", "line 2 of {} is '/a/abbey/sun_9.jpg', but no such image of SUN397 is in"),
        ("/../secret.jpg", "line 2 of {} is '/../secret.jpg', but no such image"),
        ("../../secret.jpg", "line 2 of {} is '../../secret.jpg', but no such image"),
        ("/etc/passwd", "line 2 of {} is '/etc/passwd', but no such image"),
        ("a" * 5000, "line 2 of {} is 'aaaaaaaaaa"),
        (line_of(0, 3), "line 2 of {} repeats the image '/a/abbey/sun_3.jpg': unpack Partitions.zip"),
    ],
)
def test_lines__that_will_not_do_are_named(scenes, line, expected):
    (scenes.parent / "secret.jpg").write_bytes(b"secret")
    write_lists(scenes / "SUN397")
    file = scenes / "SUN397" / "Testing_01.txt"
    file.write_text(f"{line_of(0, 0)}\n{line}\n")
    with pytest.raises(UserError) as error:
        open_images("sun397", root=scenes)
    assert str(error.value).startswith(expected.format(file))
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 600
    assert "remove SUN397" not in str(error.value)  # for the sake of a list


def test_lists__are_both_there_and_are_bounded_text(scenes, monkeypatch):
    write_lists(scenes / "SUN397")
    file = scenes / "SUN397" / "Testing_01.txt"
    file.write_text("\n")
    with pytest.raises(UserError, match=r"Testing_01\.txt names no images"):
        open_images("sun397", root=scenes)
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match=r"Testing_01\.txt' cannot be read as a list of images"):
        open_images("sun397", root=scenes)
    monkeypatch.setattr(named_store, "MAX_LIST_BYTES", 8)
    with pytest.raises(UserError, match=r"Training_01\.txt' is larger than 8 bytes"):
        open_images("sun397", root=scenes)
    file.unlink()
    with pytest.raises(UserError, match=r"the lists of SUN397 lack Testing_01\.txt: put Training_01\.txt and Testing"):
        open_images("sun397", root=scenes)
    monkeypatch.undo()
    os.mkfifo(file)
    with pytest.raises(UserError, match="is not a regular file"):
        open_images("sun397", root=scenes)
