"""Tables of images: columns by their names, parts, refusals, and any table that a person may write."""

import csv
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data.conftest import encode
from paucal.data.sources.labels import is_missing
from paucal.data.sources.opening import open_images
from paucal.data.sources.source import SourceOptions
from paucal.data.sources.tables import open_tables
from paucal.data.splits.split import make_split
from paucal.data.splits.split_csv import write_split
from paucal.types import UserError


def write(folder: Path, rows: list[list[str]], name: str = "labels.csv", delimiter: str = ",") -> Path:
    """Write a table, and an image for each of its first cells that ends like one."""
    folder.mkdir(exist_ok=True, parents=True)
    file = folder / name
    with file.open("w", newline="", encoding="utf-8", errors="surrogateescape") as stream:
        csv.writer(stream, delimiter=delimiter).writerows(rows)
    for number, row in enumerate(rows):
        if row[0].endswith(".png") and not row[0].startswith(("/", "..")):
            image = folder / row[0]
            image.parent.mkdir(parents=True, exist_ok=True)
            image.write_bytes(encode(number % 256))
    return file


ROWS = [["image_path", "label"], ["a/1.png", "cat"], ["a/2.png", "dog"], ["b/3.png", "cat"]]


def test_table__gives_paths_and_classes(tmp_path):
    images = open_images(write(tmp_path, ROWS))
    assert images.classes == ("cat", "dog")
    assert images.keys == ["a/1.png", "a/2.png", "b/3.png"]
    assert images.labels.tolist() == [0, 1, 0]
    assert images.store.read(2).size == (12, 8)
    assert set(images.declared_splits) == {""}


@pytest.mark.parametrize(
    ("name", "delimiter", "header"),
    [
        ("x.tsv", "\t", ["file_name", "class"]),
        ("x.csv", ";", ["Filename", "Species"]),
        ("x.csv", "\t", ["path", "target"]),
    ],
)
def test_table__knows_usual_names_and_delimiters(tmp_path, name, delimiter, header):
    images = open_images(write(tmp_path, [header, *ROWS[1:]], name, delimiter))
    assert images.labels.tolist() == [0, 1, 0]


def test_table__without_names_of_columns(tmp_path):
    assert open_images(write(tmp_path, ROWS[1:])).labels.tolist() == [0, 1, 0]


def test_table__with_columns_that_are_named(tmp_path):
    rows = [
        ["where", "fine", "coarse"],
        ["1.png", "tabby", "cat"],
        ["2.png", "pug", "dog"],
        ["3.png", "siamese", "cat"],
    ]
    file = write(tmp_path, rows)
    with pytest.raises(UserError, match="--image-column"):
        open_images(file)
    with pytest.raises(UserError, match="--label-column"):
        open_images(file, image_column="where")
    with pytest.raises(UserError, match=r"--label-column: .* no column 'rough'; its columns are 'where', 'fine'"):
        open_images(file, image_column="where", label_column="rough")
    assert open_images(file, image_column="where", label_column="coarse").classes == ("cat", "dog")
    assert open_images(tmp_path, image_column="where", label_column="fine").classes == ("pug", "siamese", "tabby")


def test_table__with_a_column_of_parts(tmp_path):
    rows = [["image", "label", "split"], ["1.png", "a", "train"], ["2.png", "b", "Validation"], ["3.png", "b", "test"]]
    assert open_images(write(tmp_path, rows)).declared_splits == ["train", "val", "test"]
    rows[1][2] = "holdout"
    with pytest.raises(UserError, match=r"line 2 of .* has the split 'holdout'; expected train, val or test"):
        open_images(write(tmp_path, rows))


def test_tables__of_the_parts_beside_it_belong_together(tmp_path):
    write(tmp_path, [["image", "label"], ["1.png", "a"], ["2.png", "b"]], "train.csv")
    write(tmp_path, [["image", "label"], ["3.png", "b"], ["4.png", "c"]], "valid.csv")
    for place in (tmp_path, tmp_path / "train.csv"):
        images = open_images(place)
        assert images.declared_splits == ["train", "train", "val", "val"]
        assert images.classes == ("a", "b", "c")
        assert images.labels.tolist() == [0, 1, 1, 2]


def test_table__finds_images_beside_it_below_it_and_without_their_ending(tmp_path):
    write(tmp_path / "images", [["1.png"], ["2.png"]], "none.txt")
    for ending in (".png", ""):
        file = tmp_path / "labels.csv"
        file.write_text(f"id,breed\n1{ending},a\n2{ending},b\n")
        images = open_images(tmp_path if ending else file)
        assert images.keys == ["1.png", "2.png"]
        assert images.store.read(1).size == (12, 8)
    moved = tmp_path / "elsewhere" / "labels.csv"
    moved.parent.mkdir()
    moved.write_text("id,breed\n1.png,a\n2.png,b\n")
    with pytest.raises(UserError, match="--data-root"):
        open_images(moved)
    assert len(open_images(moved, root=tmp_path / "images")) == 2


def test_table__with_absolute_paths_below_its_root(tmp_path):
    write(tmp_path, ROWS)
    file = tmp_path / "labels.csv"
    file.write_text("image,label\n" + "".join(f"{tmp_path}/{path},{name}\n" for path, name in ROWS[1:]))
    assert open_images(file).keys == ["a/1.png", "a/2.png", "b/3.png"]


@pytest.mark.parametrize("path", ["/etc/passwd", "../secret.png", "a/../../x.png", "C:\\x.png", "..\\x.png"])
def test_table__leads_out_of_nowhere(tmp_path, path):
    with pytest.raises(UserError, match="has a path outside of the folder"):
        open_images(write(tmp_path, [*ROWS, [path, "cat"]]))


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([], "is empty"),
        ([["image", "label"]], "has no row"),
        ([["image", "label"], ["1.png"]], "line 2 of .* has 1 cell, but the first line has 2"),
        ([["image", "label"], ["", "a"]], "line 2 of .* has no path"),
        ([*ROWS, ["a/1.png", "dog"]], "in lines 2 and 5 of .* with different labels"),
    ],
)
def test_table__refuses_what_it_cannot_mean(tmp_path, rows, words):
    with pytest.raises(UserError, match=words):
        open_images(write(tmp_path, rows))


def test_table__keeps_names_with_separators_that_separate_nothing(tmp_path):
    rows = [["image", "label"], ["1.png", "cat; tabby"], ["2.png", "dog | pug"]]
    assert open_images(write(tmp_path, rows)).classes == ("cat; tabby", "dog | pug")


def test_table__leaves_out_rows_without_a_label_and_repetitions(tmp_path):
    images = open_images(write(tmp_path, [*ROWS, ["c.png", ""], ROWS[1]]))
    assert len(images) == 3
    assert any("without a label" in note for note in images.notes)
    assert any("repeat" in note for note in images.notes)


def test_split_csv__of_a_run_is_a_table(tmp_path):
    images = open_images(write(tmp_path, [["image", "label"], *([f"{n}.png", "ab"[n % 2]] for n in range(20))]))
    split = make_split(images, seed=3)
    write_split(tmp_path / "split.csv", images, split)
    (tmp_path / "labels.csv").unlink()
    again = open_images(tmp_path / "split.csv")
    assert again.classes == images.classes
    assert dict(zip(again.keys, again.labels.tolist(), strict=True)) == dict(
        zip(images.keys, images.labels.tolist(), strict=True)
    )
    assert again.declared_splits == split.parts.tolist()


def test_folder__with_class_folders_wins_over_a_table(tmp_path):
    write(tmp_path, [["image", "label"], ["x/1.png", "a"], ["y/2.png", "b"]])
    assert open_images(tmp_path).classes == ("x", "y")
    assert open_images(tmp_path, label_column="label").classes == ("a", "b")


NAMES = st.text(st.characters(blacklist_categories=["Cs", "Cc"], blacklist_characters="/\\;|"), min_size=1, max_size=12)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    labels=st.lists(NAMES.map(str.strip).filter(lambda name: not is_missing(name)), min_size=2, max_size=12),
    parts=st.lists(st.sampled_from(["train", "val", "test", ""]), min_size=12, max_size=12),
    delimiter=st.sampled_from([",", "\t"]),
)
def test_table__says_what_was_written(tmp_path_factory, labels, parts, delimiter):
    folder = tmp_path_factory.mktemp("table")
    body = [[f"{number}.png", label, parts[number]] for number, label in enumerate(labels)]
    file = write(folder, [["image", "label", "split"], *body], "t.tsv" if delimiter == "\t" else "t.csv", delimiter)
    images = open_tables({"": file}, SourceOptions())
    assert images.classes == tuple(sorted(set(labels)))
    assert [images.classes[label] for label in images.labels] == labels
    assert images.declared_splits == parts[: len(labels)]
    assert images.labels.dtype == np.int64


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=200))
def test_table__of_any_bytes_ends_in_a_sentence(tmp_path_factory, content):
    file = tmp_path_factory.mktemp("bytes") / "labels.csv"
    file.write_bytes(content)
    with pytest.raises(UserError):
        open_tables({"": file}, SourceOptions())
