"""What callers of Python give as images and as paths."""

from collections import UserString
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from paucal.data.arguments import list_images, list_sources, path_text
from paucal.types import UserError

PICTURE = Image.new("RGB", (4, 3))
ARRAY = np.zeros((3, 4, 3), np.uint8)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("a.jpg", ["a.jpg"]),
        (Path("photos") / "a.jpg", [str(Path("photos/a.jpg"))]),
        (["a.jpg", Path("b.jpg"), np.str_("c.jpg")], ["a.jpg", "b.jpg", "c.jpg"]),
        (("photos/*.jpg",), ["photos/*.jpg"]),
        (np.array(["a.jpg", "b.jpg"]), ["a.jpg", "b.jpg"]),
        ((name for name in ["a.jpg"]), ["a.jpg"]),
        ([], []),
    ],
)
def test_paths__are_taken_one_by_one(given, expected):
    assert list_sources(given) == expected


@pytest.mark.parametrize("read", [list_images, list_sources])
def test_images__in_memory_are_taken_as_they_are(read):
    grey, batch = np.zeros((3, 4), np.float32), np.arange(2 * 3 * 4 * 3, dtype=np.uint8).reshape(2, 3, 4, 3)
    for one in (PICTURE, ARRAY, grey):
        assert read(one)[0] is one
        assert read([one, PICTURE])[1] is PICTURE
    assert [found.tolist() for found in read(batch)] == batch.tolist()
    assert list_sources(["a.jpg", ARRAY, PICTURE]) == ["a.jpg", ARRAY, PICTURE]


class Table:
    """A table of a library, which gives the names of its columns one by one."""

    columns = ("path", "label")

    def __iter__(self):
        return iter(self.columns)


STRANGE = [
    (None, "the images are of the type NoneType, "),
    (b"\xff\xd8", "the images are of the type bytes, "),
    (5, "the images are of the type int, "),
    ({"a.jpg": PICTURE}, "the images are of the type dict, "),
    (Table(), "the images are of the type Table, "),
    (np.float64(3), "the images are of the type float64, "),
    (np.array(3), "the images are of the type array with 0 axes, "),
    ([None], "image 1 is of the type NoneType, "),
    ([PICTURE, b"\xff\xd8"], "image 2 is of the type bytes, "),
    ([ARRAY, [1, 2]], "image 2 is of the type list, "),
    (torch.zeros(3, 4, 4), "image 1 is of the type Tensor, "),
    (np.zeros(4), "image 1 is of the type float64, "),
    (np.zeros((2, 2, 2, 2, 2)), "image 1 is of the type array with 4 axes, "),
    (np.zeros((2, 2), complex), "image 1 is of the type array with 1 axes, "),
    ([UserString("a.jpg")], "image 1 is of the type UserString, "),
]


@pytest.mark.parametrize("read", [list_images, list_sources])
@pytest.mark.parametrize(("given", "message"), STRANGE)
def test_others__are_refused_in_a_sentence(given, message, read):
    with pytest.raises(UserError) as problem:
        read(given)
    assert str(problem.value).startswith(message + "expected ")
    assert str(problem.value).endswith("PIL images or arrays of (height, width) or (height, width, channels).")


@pytest.mark.parametrize("given", ["a.jpg", Path("a.jpg"), [PICTURE, "a.jpg"]])
def test_paths__are_refused_where_images_are_expected(given):
    number = 2 if isinstance(given, list) else 1
    with pytest.raises(
        UserError, match=rf"^image {number} is a path \('a.jpg'\), expected PIL images .*: open the image first.$"
    ):
        list_images(given)


def test_path__is_text_or_has_one():
    assert path_text("runs/1", "the run") == "runs/1"
    assert path_text(Path("runs") / "1", "the run") == str(Path("runs/1"))
    assert path_text(b"runs/1", "the run") == "runs/1"
    for value, kind in ((None, "NoneType"), (["runs/1"], "list"), (3, "int"), (ARRAY, "array with 3 axes")):
        with pytest.raises(UserError, match=f"^the run is of the type {kind}, expected a path, such as 'runs/1'.$"):
            path_text(value, "the run")
