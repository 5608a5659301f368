import json
import pickle
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from paucal.data.decode import UnreadableImage
from paucal.data.sources import parquet_store
from paucal.data.sources.opening import open_images
from paucal.data.sources.parquet_columns import csv_cells
from paucal.data.splits.split import held_out_part, make_split
from paucal.types import UserError

SHARED = Path(__file__).parents[3] / "../shared/data"


def _metadata(features: dict) -> dict[bytes, bytes]:
    return {b"huggingface": json.dumps({"info": {"features": features}}).encode()}


NAMES = _metadata({"image": {"_type": "Image"}, "label": {"_type": "ClassLabel", "names": ["no", "yes"]}})


def _value(images, index: int) -> int:
    return int(np.asarray(images.store.read(index))[0, 0, 0])


def test_open_parquet__one_file_with_class_names(make_parquet):
    path = make_parquet("set.parquet", 5, {"label": [0, 1, 0, 1, 1]}, NAMES)
    images = open_images(path)
    assert images.classes == ("no", "yes")
    assert images.labels.tolist() == [0, 1, 0, 1, 1]
    assert images.keys == [f"set.parquet#{row}" for row in range(5)]
    assert images.declared_splits == [""] * 5
    assert [_value(images, i) for i in (4, 0, 3, 1, 2)] == [
        4,
        0,
        3,
        1,
        2,
    ]  # over row groups of 2, in any order


def test_open_parquet__parts_from_shard_names(make_parquet):
    for number in range(2):
        make_parquet(f"hub/data/train-0000{number}-of-00002-ab12.parquet", 3, {"label": [0, 1, 1]}, NAMES)
    make_parquet("hub/data/validation-00000-of-00001.parquet", 2, {"label": [1, 0]}, NAMES)
    path = make_parquet("hub/data/test.parquet", 2, {"label": [0, 1]}, NAMES).parents[1]
    make_parquet("hub/data/unsupervised-00000-of-00001.parquet", 2, {"label": [0, 0]}, NAMES)
    images = open_images(path)
    assert sorted(images.declared_splits) == ["test"] * 2 + ["train"] * 6 + ["val"] * 2
    assert "data/train-00001-of-00002-ab12.parquet#2" in images.keys
    assert "unsupervised-00000" in images.notes[0]


def test_open_parquet__in_the_only_subfolder(make_parquet):
    make_parquet("hub/plain_text/train.parquet", 2, {"label": [0, 1]})
    path = make_parquet("hub/plain_text/test.parquet", 2, {"label": [0, 1]}).parents[1]
    assert sorted(open_images(path).declared_splits) == ["test", "test", "train", "train"]


def test_open_parquet__plain_bytes_and_labels_without_names(make_parquet):
    images = open_images(make_parquet("set.parquet", 4, {"labels": [7, 3, 7, 10]}, plain=True))
    assert images.classes == ("3", "7", "10")  # in the order of the numbers, not of the text
    assert images.labels.tolist() == [1, 0, 1, 2]
    assert _value(images, 3) == 3


def test_open_parquet__the_only_class_column(make_parquet):
    features = {"kind": {"_type": "ClassLabel", "names": ["x", "y"]}, "weight": {"_type": "Value"}}
    images = open_images(make_parquet("s.parquet", 2, {"weight": [5, 6], "kind": [1, 0]}, _metadata(features)))
    assert images.classes == ("x", "y")
    assert images.labels.tolist() == [1, 0]


def test_open_parquet__a_named_label_column(make_parquet):
    path = make_parquet("s.parquet", 2, {"fine": [1, 0], "coarse": ["b", "a"]})
    assert open_images(path, label_column="coarse").classes == ("a", "b")
    assert open_images(path, label_column="coarse").labels.tolist() == [1, 0]
    assert open_images(path, label_column="fine").labels.tolist() == [1, 0]


def test_open_parquet__leaves_out_rows_without_a_label(make_parquet):
    images = open_images(make_parquet("s.parquet", 4, {"label": [0, -1, None, 1]}, NAMES))
    assert images.keys == ["s.parquet#0", "s.parquet#3"]
    assert _value(images, 1) == 3
    assert "2 rows without a label" in images.notes[0]


def test_open_parquet__unlabelled_needs_no_label_column(make_parquet):
    images = open_images(make_parquet("s.parquet", 3, {}), labelled=False)
    assert len(images) == 3
    assert images.labels.tolist() == [-1, -1, -1]
    assert _value(images, 2) == 2


def test_further_columns__are_those_of_a_table(make_parquet):
    columns = {"label": [0, None, 1], "age": [3.0, 4.5, None], "who": ["x", "y", "z"], "more": [[1], [2], [3]]}
    path = make_parquet("set.parquet", 3, columns, NAMES)
    unlabelled = open_images(path, labelled=False)
    assert unlabelled.columns == {"label": ["0", "", "1"], "age": ["3", "4.5", ""], "who": ["x", "y", "z"]}
    assert open_images(path).columns == {"age": ["3", ""], "who": ["x", "z"]}


def test_parquet_store__keeps_a_bounded_number_of_groups(make_parquet, monkeypatch):
    images = open_images(make_parquet("s.parquet", 8, {"label": [0, 1] * 4}))
    monkeypatch.setattr(parquet_store, "_MAX_CACHED_BYTES", 1)
    assert [_value(images, i) for i in (7, 0, 6, 1)] == [7, 0, 6, 1]
    assert list(images.store._groups) == [(0, 0)]


def test_parquet_store__is_pickled_without_what_it_has_read(make_parquet):
    images = open_images(make_parquet("s.parquet", 4, {"label": [0, 1] * 2}))
    size = len(pickle.dumps(images.store))
    assert _value(images, 2) == 2
    assert len(pickle.dumps(images.store)) == size
    assert _value(pickle.loads(pickle.dumps(images)), 3) == 3


def test_parquet_store__names_a_row_without_bytes(tmp_path):
    kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    rows = pa.array([{"bytes": None, "path": "x.png"}, None], kind)
    pq.write_table(pa.table({"image": rows, "label": [0, 1]}), tmp_path / "s.parquet")
    images = open_images(tmp_path / "s.parquet")
    for row in range(2):
        with pytest.raises(UnreadableImage, match=rf"image s\.parquet#{row} has no bytes in the column 'image'"):
            images.store.read(row)


@pytest.mark.parametrize(
    ("columns", "metadata", "message"),
    [
        (
            {"text": ["a", "b"]},
            None,
            r"no label column; expected 'label' or 'labels', but found 'image' .*'text' \(string\)",
        ),
        (
            {"label": [0.5, 1.0]},
            None,
            "column 'label' of .* has the type double; expected one integer or name per row",
        ),
        ({"label": [0, 5]}, NAMES, "has the label 5, but the metadata has only 2 class names"),
        ({"label": [-1, -1]}, NAMES, "no rows with an image and a label"),
        ({"label": [3, 3]}, None, r"only one class \('3'\)"),
    ],
)
def test_open_parquet__says_what_is_wrong(make_parquet, columns, metadata, message):
    with pytest.raises(UserError, match=message):
        open_images(make_parquet("s.parquet", 2, columns, metadata))


def test_open_parquet__names_the_columns_without_an_image(tmp_path):
    pq.write_table(pa.table({"picture": [b"x"], "label": [1]}), tmp_path / "s.parquet")
    with pytest.raises(UserError, match=r"expected a column 'image' .* found 'picture' \(binary\), 'label'"):
        open_images(tmp_path / "s.parquet")


def test_open_parquet__refuses_a_damaged_file(tmp_path):
    (tmp_path / "train.parquet").write_bytes(b"PAR1 and nothing else")
    with pytest.raises(UserError, match=r"train\.parquet cannot be read as a Parquet file"):
        open_images(tmp_path)


def test_open_parquet__refuses_shards_that_differ(make_parquet):
    make_parquet("h/test.parquet", 2, {"label": [0, 1]})
    path = make_parquet("h/train.parquet", 2, {"class": [0, 1]}).parent
    with pytest.raises(UserError, match=r"train\.parquet has no column 'label', unlike the other files"):
        open_images(path)


def test_open_parquet__takes_unsigned_and_categorical_labels(make_parquet):
    images = open_images(make_parquet("u.parquet", 4, {"label": pa.array([0, 1, None, 1], pa.uint8())}, NAMES))
    assert images.labels.tolist() == [0, 1, 1]
    named = make_parquet("c.parquet", 3, {"label": pa.array(["dog", "cat", "dog"]).dictionary_encode()})
    assert open_images(named).classes == ("cat", "dog")
    assert open_images(named).labels.tolist() == [1, 0, 1]
    huge = make_parquet("h.parquet", 2, {"label": pa.array([0, 2**63], pa.uint64())})
    with pytest.raises(UserError, match=r"column 'label' of .* cannot be read"):
        open_images(huge)


def test_open_parquet__refuses_parts_that_number_their_classes_differently(make_parquet):
    turned = _metadata({"label": {"_type": "ClassLabel", "names": ["yes", "no"]}})
    make_parquet("h/test.parquet", 2, {"label": [0, 1]}, NAMES)
    path = make_parquet("h/train.parquet", 2, {"label": [0, 1]}, turned).parent
    with pytest.raises(UserError, match=r"train\.parquet numbers its classes differently from the other files"):
        open_images(path)
    make_parquet("h/train.parquet", 2, {"label": ["no", "yes"]})
    with pytest.raises(UserError, match=r"has numbers in some files of .* and text in other files; use one type"):
        open_images(path)


def test_open_parquet__names_a_file_with_damaged_labels(make_parquet):
    path = make_parquet("s.parquet", 4, {"label": [0, 1, 0, 1]}, rows=4)
    group = pq.read_metadata(path).row_group(0)
    label = next(c for c in map(group.column, range(group.num_columns)) if c.path_in_schema == "label")
    content = bytearray(path.read_bytes())
    start = label.dictionary_page_offset or label.data_page_offset
    content[start : start + 20] = b"\xff" * 20
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"column 'label' of .*s\.parquet cannot be read"):
        open_images(path)


@pytest.mark.parametrize(("label", "hidden"), [(-1, True), (None, True), (1, False)])
def test_open_parquet__tests_with_validation_files_where_the_labels_of_the_test_are_hidden(make_parquet, label, hidden):
    """As ImageNet-1k has it: with labels its test rows are left out, and the validation rows are tested with."""
    for part, labels in (("train", [0, 1, 0, 1]), ("validation", [0, 1]), ("test", [label, label])):
        column = {"label": pa.array(labels, pa.int64())}
        file = make_parquet(f"set/{part}-00000-of-00001.parquet", len(labels), column, NAMES)
    with_labels, alone = (open_images(file.parent, labelled=labelled) for labelled in (True, False))
    tested = {key for key, part in zip(with_labels.keys, make_split(with_labels).parts, strict=True) if part == "test"}
    held = {
        key
        for key, part in zip(alone.keys, alone.declared_splits, strict=True)
        if part == held_out_part(alone.declared_splits)
    }
    assert tested <= held
    assert len(held) == (4 if hidden else 2)
    assert any("images of the validation files are also test images" in note for note in alone.notes) == hidden


def test_open_parquet__names_can_be_written(make_parquet):
    odd = _metadata({"label": {"_type": "ClassLabel", "names": ["\ud800", "b"]}})
    assert open_images(make_parquet("s.parquet", 2, {"label": [0, 1]}, odd)).classes == ("?", "b")


@pytest.mark.parametrize("text", [b"{", b"[]", b'{"info": null}', b'{"info": {"features": 3}}'])
def test_open_parquet__survives_odd_metadata(make_parquet, text):
    assert open_images(make_parquet("s.parquet", 2, {"label": [0, 1]}, {b"huggingface": text})).classes == (
        "0",
        "1",
    )


@pytest.mark.skipif(not (SHARED / "cifar10").is_dir(), reason="the shared CIFAR-10 copy is not there")
def test_open_parquet__cifar10():
    images = open_images(SHARED / "cifar10")
    assert images.classes[:3] == ("airplane", "automobile", "bird")
    assert (images.declared_splits.count("train"), images.declared_splits.count("test")) == (50_000, 10_000)
    assert images.class_counts().tolist() == [6000] * 10
    assert images.store.read(59_999).size == (32, 32)


@pytest.mark.skipif(not (SHARED / "clothing").is_dir(), reason="the shared clothing set is not there")
def test_open_parquet__clothing():
    images = open_images(SHARED / "clothing")
    assert len(images.classes) == 10
    assert images.classes[-1] == "t-shirt"
    assert [images.declared_splits.count(part) for part in ("train", "val", "test")] == [3068, 341, 372]
    assert set(images.sample_sizes(20).min(axis=1)) == {160}


def test_open_parquet__of_whole_floats_and_missing_names(make_parquet):
    floats = open_images(make_parquet("floats.parquet", 4, {"label": [0.0, 1.0, None, float("nan")]}))
    assert (floats.classes, len(floats)) == (("0", "1"), 2)
    texts = open_images(make_parquet("texts.parquet", 4, {"label": ["cat ", "dog", "nan", "cat"]}))
    assert (texts.classes, texts.labels.tolist()) == (("cat", "dog"), [0, 1, 0])


def test_open_parquet__leaves_out_further_columns_of_one_name(make_parquet, tmp_path):
    table = pq.read_table(make_parquet("plain.parquet", 4, {"label": ["a", "b", "a", "b"]}))
    numbers = pa.array([1, 2, 3, 4])
    for name in ("x", "x", "y"):
        table = table.append_column(name, numbers)
    pq.write_table(table, tmp_path / "twice.parquet")
    assert set(open_images(tmp_path / "twice.parquet").columns) == {"y"}


def test_open_parquet__has_decimals_and_words_of_a_dictionary_as_columns(make_parquet, tmp_path):
    table = pq.read_table(make_parquet("plain.parquet", 2, {"label": ["a", "b"]}))
    table = table.append_column("price", pa.array([Decimal("1.50"), None]))
    table = table.append_column("colour", pa.array(["red", "blue"]).dictionary_encode())
    pq.write_table(table, tmp_path / "more.parquet")
    columns = open_images(tmp_path / "more.parquet").columns
    assert columns == {"price": ["1.50", ""], "colour": ["red", "blue"]}


def test_open_parquet__keeps_sixteen_further_columns(make_parquet, tmp_path):
    table = pq.read_table(make_parquet("plain.parquet", 2, {"label": ["a", "b"]}))
    for number in range(20):
        table = table.append_column(f"x{number}", pa.array([number, 0]))
    pq.write_table(table, tmp_path / "wide.parquet")
    assert list(open_images(tmp_path / "wide.parquet").columns) == [f"x{number}" for number in range(16)]


def test_csv_cells__are_integers_where_they_can_be():
    assert csv_cells(pa.array([1.5, None, 3.0])) == ["1.5", "", "3"]
