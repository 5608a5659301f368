"""Tables of images with several labels: in a cell, or with a column for each class."""

import csv
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.conftest import encode
from paucal.data.classes import choose_classes
from paucal.data.sources.labels import find_separator, labels_from_cells, labels_in_lists
from paucal.data.sources.opening import open_images
from paucal.data.splits.split import make_split
from paucal.data.splits.split_csv import read_split, write_split
from paucal.types import UserError


def write(folder: Path, rows: list[list[str]]) -> Path:
    folder.mkdir(exist_ok=True, parents=True)
    for number, row in enumerate(rows[1:]):
        (folder / row[0]).write_bytes(encode(number % 256))
    with (folder / "labels.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    return folder / "labels.csv"


def cells(folder: Path, labels: list[str]) -> Path:
    return write(folder, [["image", "label"], *([f"{n}.png", label] for n, label in enumerate(labels))])


@pytest.mark.parametrize("separator", [";", "|", ","])
def test_cells__with_several_labels_are_found(tmp_path, separator):
    images = open_images(cells(tmp_path, ["b;a".replace(";", separator), "a", "", "b", "a"]))
    assert images.classes == ("a", "b")
    assert images.multi_hot is not None
    assert images.multi_hot.tolist() == [[1, 1], [1, 0], [0, 0], [0, 1], [1, 0]]
    assert images.labels.tolist() == [-1] * 5
    assert images.class_counts().tolist() == [3, 2]
    assert [images.classes_of(index) for index in (0, 2)] == [["a", "b"], []]
    assert any("several labels" in note and "1 on average, up to 2" in note for note in images.notes)
    assert any("1 image without a label" in note for note in images.notes)


@pytest.mark.parametrize(
    ("labels", "separator"),
    [
        (["cat;dog", "cat", "bird"], ";"),  # three names in three cells, but one of them twice
        (["cat; tabby", "cat; persian", "dog; pug"], ""),  # a path through a tree of names, for every image
        (["tench, Tinca tinca", "cock", "hen, biddy"], ""),
        (["polar bear", "brown bear", "bear"], ""),
        ([",", "0"], ""),  # a sign alone is a name
        (["a,", "a"], ""),  # nothing that it stands between
        (["a,b", ",a", "b,a"], ","),
    ],
)
def test_separator__is_found_where_names_come_again(labels, separator):
    assert find_separator(labels) == separator


def test_separator__as_given(tmp_path):
    table = cells(tmp_path, ["red car", "blue", "red", "car"])
    assert open_images(table).classes == ("blue", "car", "red", "red car")
    found = open_images(tmp_path, label_separator=" ")
    assert found.classes == ("blue", "car", "red")
    assert found.multi_hot is not None
    assert found.multi_hot[0].tolist() == [0, 1, 1]
    one = open_images(cells(tmp_path / "b", ["a;b", "a", "b"]), label_separator="none")
    assert (one.classes, one.labels.tolist()) == (("a", "a;b", "b"), [1, 0, 2])


@given(st.lists(st.sets(st.sampled_from("abcde")), min_size=1, max_size=20))
def test_cells__give_back_the_names_they_hold(sets):
    labels = labels_from_cells([" ; ".join(sorted(names)) for names in sets], ";")
    assert labels.multi_hot is not None
    found = [{labels.classes[place] for place in row.nonzero()[0]} for row in labels.multi_hot]
    assert found == sets


def test_columns__one_for_each_class(tmp_path):
    rows = [
        ["id", "fold", "cat", "dog", "split"],
        ["1.png", "x", "1", "0", "train"],
        ["2.png", "y", "1.0", "1", "test"],
    ]
    images = open_images(write(tmp_path, [*rows, ["3.png", "z", "0", "", "train"], ["4.png", "z", "0", "-1", ""]]))
    assert images.classes == ("cat", "dog")
    assert images.multi_hot is not None
    assert images.multi_hot.tolist() == [[1, 0], [1, 1], [0, -1], [0, -1]]
    assert list(images.columns) == ["fold"]
    assert any("2 unknown labels" in note for note in images.notes)


def test_columns__of_one_class_each_give_one_label(tmp_path):
    rows = [["image", "MEL", "NV"], ["1.png", "1.0", "0.0"], ["2.png", "0.0", "1.0"], ["3.png", "0.0", "1.0"]]
    images = open_images(write(tmp_path, rows))
    assert (images.multi_hot, images.labels.tolist()) == (None, [0, 1, 1])


def test_columns__without_a_zero_leave_it_out(tmp_path):
    rows = [["image", "cat", "dog"], ["1.png", "1", ""], ["2.png", "1", "1"], ["3.png", "", ""]]
    images = open_images(write(tmp_path, rows))
    assert images.multi_hot is not None
    assert images.multi_hot.tolist() == [[1, 0], [1, 1], [0, 0]]


def test_columns__of_one_name_are_refused(tmp_path):
    rows = [["image", "cat", "cat"], ["1.png", "1", "0"], ["2.png", "1", "1"]]
    with pytest.raises(UserError, match="two columns of classes are called 'cat'"):
        open_images(write(tmp_path, rows))


def test_columns__that_say_something_else_are_no_classes(tmp_path):
    rows = [["image", "age", "sex"], ["1.png", "41", "1"], ["2.png", "7", "0"]]
    with pytest.raises(UserError, match="no known column of classes"):
        open_images(write(tmp_path, rows))


def test_split__goes_through_its_file(tmp_path):
    images = open_images(cells(tmp_path, ["a;b", "a", "", "b", "b;c", "c"] * 10))
    split = make_split(images, seed=1)
    assert "iterative stratification" in split.description
    write_split(tmp_path / "split.csv", images, split)
    assert (read_split(tmp_path / "split.csv", images).parts == split.parts).all()
    (tmp_path / "labels.csv").unlink()
    again = open_images(tmp_path / "split.csv")
    assert again.multi_hot is not None
    assert (again.multi_hot == images.multi_hot).all()
    other = open_images(cells(tmp_path, ["a;c", "a", "", "b", "b;c", "c"] * 10))
    with pytest.raises(UserError, match=r"is in class 'a;b' in .*, but in class 'a;c' in"):
        read_split(tmp_path / "split.csv", other)


def test_split__without_val_keeps_the_test_images(tmp_path):
    images = open_images(cells(tmp_path, ["a;b", "a", "", "b", "b;c", "c"] * 10))
    with_val, without = make_split(images, seed=1), make_split(images, seed=1, val_fraction=0)
    assert (with_val.indices("test") == without.indices("test")).all()
    assert not len(without.indices("val"))


@pytest.mark.parametrize("fold", [1, 2, 3])
def test_split__into_folds(tmp_path, fold):
    images = open_images(cells(tmp_path, ["a;b", "a", "", "b", "b;c", "c"] * 5))
    tested = [make_split(images, fold=f"{number}/3").indices("test") for number in (1, 2, 3)]
    assert sorted(position for part in tested for position in part) == list(range(30))
    assert images.class_counts(tested[fold - 1]).tolist() == pytest.approx(images.class_counts() / 3, abs=1)


def test_split__in_groups(tmp_path):
    names = [f"{patient}_{n}.png" for patient in range(12) for n in range(3)]
    labels = ["a;b", "b", "", "a;c"] * 9
    rows = [["image", "label"], *([name, label] for name, label in zip(names, labels, strict=True))]
    images = open_images(write(tmp_path, rows))
    split = make_split(images, group_by="^[0-9]+")
    of_patient = [{split.parts[i] for i, name in enumerate(names) if name.startswith(f"{p}_")} for p in range(12)]
    assert all(len(parts) == 1 for parts in of_patient)
    assert images.class_counts(split.indices("train")).min() > 0


def test_classes__are_chosen_and_images_stay(tmp_path):
    images = open_images(cells(tmp_path, ["a;b", "a", "", "b", "b;c", "c"]))
    (tmp_path / "some.txt").write_text("c\nb\n")
    chosen = choose_classes(images, tmp_path / "some.txt")
    assert chosen.classes == ("b", "c")
    assert chosen.multi_hot is not None
    assert chosen.multi_hot.tolist() == [[1, 0], [0, 0], [0, 0], [1, 0], [1, 1], [0, 1]]


def test_several_places__of_one_label_and_of_several(tmp_path):
    cells(tmp_path / "many", ["a;b", "a", "b"])
    for name in ("a", "z"):
        (tmp_path / "one" / name).mkdir(parents=True)
        (tmp_path / "one" / name / "1.png").write_bytes(encode(1))
    images = open_images(f"{tmp_path / 'many'}:{tmp_path / 'one'}")
    assert images.classes == ("a", "b", "z")
    assert images.multi_hot is not None
    assert images.multi_hot.tolist() == [[1, 1, 0], [1, 0, 0], [0, 1, 0], [1, 0, 0], [0, 0, 1]]


def test_lists__leave_out_markers_of_missing_values():
    assert labels_in_lists(["['a', nan]", "[nan]", "['a', None]", "['nan']"]) == [["a"], [], ["a"], ["nan"]]
