"""Lists of labels in Parquet: several labels for an image, as Hugging Face's sets have them."""

import json

import pyarrow as pa
import pytest

from paucal.data.sources.opening import open_images
from paucal.types import UserError

NAMES = ["cat", "dog", "tree"]


def metadata(feature) -> dict[bytes, bytes]:
    features = {"image": {"_type": "Image"}, "labels": feature}
    return {b"huggingface": json.dumps({"info": {"features": features}}).encode()}


CLASSES = {"_type": "ClassLabel", "names": NAMES}
SEQUENCE = metadata({"_type": "Sequence", "feature": CLASSES})


@pytest.mark.parametrize(
    "feature", [{"_type": "Sequence", "feature": CLASSES}, {"_type": "List", "feature": CLASSES}, [CLASSES]]
)
@pytest.mark.parametrize("kind", [pa.list_(pa.int64()), pa.large_list(pa.uint8())])
def test_lists__of_class_numbers_are_several_labels(make_parquet, feature, kind):
    column = pa.array([[0, 2], [], [1], None, [2, 2]], kind)
    images = open_images(make_parquet("s.parquet", 5, {"labels": column}, metadata(feature)))
    assert images.classes == tuple(NAMES)
    assert images.multi_hot is not None
    assert images.multi_hot.tolist() == [[1, 0, 1], [0, 0, 0], [0, 1, 0], [0, 0, 1]]
    assert images.labels.tolist() == [-1] * 4
    assert images.keys == [f"s.parquet#{row}" for row in (0, 1, 2, 4)]
    assert images.notes[0] == "1 row without a label was left out"
    assert "images have several labels (lists in the column 'labels'): 1 on average, up to 2" in images.notes
    assert images.store.read(3).getpixel((0, 0)) == (4, 251, 7)


def test_lists__of_names_over_several_files(make_parquet):
    make_parquet("h/train.parquet", 2, {"labels": [["dog", "cat"], ["cat"]]})
    folder = make_parquet("h/test.parquet", 2, {"labels": [["tree"], []]}).parent
    images = open_images(folder)
    assert images.classes == ("cat", "dog", "tree")
    assert images.declared_splits == ["test", "test", "train", "train"]
    assert images.multi_hot is not None
    assert images.multi_hot.tolist() == [[0, 0, 1], [0, 0, 0], [1, 1, 0], [1, 0, 0]]


def test_lists__of_one_label_each_are_one_label(make_parquet):
    images = open_images(make_parquet("s.parquet", 3, {"labels": [[2], [0], [2]]}, SEQUENCE))
    assert images.multi_hot is None
    assert images.labels.tolist() == [2, 0, 2]
    assert images.classes == tuple(NAMES)


@pytest.mark.parametrize(
    "column",
    [
        [[0, 1, 1], [1, 0, 0], [0, 0, 0]],
        [[0.0, 1.0, 1.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0]],
        [[False, True, True], [True, False, False], [False, False, False]],
        pa.array([[0, 1, 1], [1, 0, 0], [0, 0, 0]], pa.list_(pa.int8(), 3)),
    ],
)
@pytest.mark.parametrize("named", [True, False])
def test_lists__of_a_mark_for_every_class(make_parquet, column, named):
    images = open_images(make_parquet("s.parquet", 3, {"labels": column}, SEQUENCE if named else None))
    assert images.classes == (tuple(NAMES) if named else ("0", "1", "2"))
    assert images.multi_hot is not None
    assert images.multi_hot.tolist() == [[0, 1, 1], [1, 0, 0], [0, 0, 0]]


def test_lists__that_could_be_marks_are_classes_where_none_is_repeated(make_parquet):
    images = open_images(make_parquet("s.parquet", 3, {"labels": [[0, 1], [1, 0], [0, 1]]}))
    assert images.classes == ("0", "1")
    assert images.multi_hot is not None
    assert images.multi_hot.tolist() == [[1, 1]] * 3


@pytest.mark.parametrize(
    ("column", "named", "message"),
    [
        ([[0, 3], [1]], True, r"has the label 3, but the metadata has only 3 class names"),
        ([[0, -1], [1]], True, r"has the label -1 in a list; expected 0 or more"),
        ([[0, None], [1]], True, r"has a list with a null item; replace this item by a label"),
        ([[0.5, 1.0], [1.0, 0.0]], False, r"the type list<.*double>; expected lists of integers or names"),
        ([[0.0, 1.0], [1.0]], False, r"expected lists of integers or names, or lists with a 1 or 0 for every class"),
        (
            [[1, 1, 0, 0], [0, 1, 0, 0]],
            True,
            r"4 values of 1 or 0, but the metadata has 3 class names; correct",
        ),
        (
            [[{"id": 1}], []],
            False,
            r"has the type list<.*struct.*expected one integer or name per row, or a list of integers",
        ),
        (pa.array([None, None], pa.list_(pa.int64())), True, r"no rows with an image and a label"),
    ],
)
def test_lists__say_what_is_wrong(make_parquet, column, named, message):
    with pytest.raises(UserError, match=message):
        open_images(make_parquet("s.parquet", 2, {"labels": column}, SEQUENCE if named else None))


def test_lists__in_some_files_and_single_labels_in_others_are_refused(make_parquet):
    make_parquet("h/test.parquet", 2, {"labels": [[0], [1]]}, SEQUENCE)
    folder = make_parquet("h/train.parquet", 2, {"labels": [0, 1]}).parent
    with pytest.raises(
        UserError, match=r"'labels' has lists of numbers in some files of .* and numbers in other files; use one type"
    ):
        open_images(folder)
    make_parquet("h/train.parquet", 2, {"labels": [["cat"], ["dog"]]})
    with pytest.raises(UserError, match=r"has lists of numbers in some files .* lists of text in other files; use"):
        open_images(folder)


def test_text__is_divided_at_a_separator_that_is_named(make_parquet):
    path = make_parquet("s.parquet", 3, {"labels": ["cat;dog", "dog", ""]})
    assert open_images(path).classes == ("cat;dog", "dog")
    images = open_images(path, label_separator=";")
    assert images.classes == ("cat", "dog")
    assert images.multi_hot is not None
    assert images.multi_hot.tolist() == [[1, 1], [0, 1], [0, 0]]
    numbers = make_parquet("n.parquet", 2, {"labels": [0, 1]})
    with pytest.raises(UserError, match=r"--label-separator is for text, but column 'labels' of .* has numbers"):
        open_images(numbers, label_separator=";")
    assert open_images(numbers, label_separator="none").labels.tolist() == [0, 1]
