"""Columns of tables as other programs write them, and labels that are no names."""

import json

import pytest

from data.conftest import encode
from paucal.data.sources.labels import find_separator, labels_in_lists
from paucal.data.sources.opening import open_images
from paucal.data.splits.groups import group_numbers
from paucal.tasks.regression.images import read_targets
from paucal.types import UserError


@pytest.fixture
def opened(tmp_path):
    """Write images 0.png to 7.png and a table of the given columns beside them, and open it."""

    def make(columns: dict[str, list], name: str = "labels.csv", **options):
        for number in range(8):
            (tmp_path / f"{number}.png").write_bytes(encode(number))
        rows = [",".join(columns), *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True))]
        (tmp_path / name).write_text("\n".join(rows) + "\n")
        return open_images(tmp_path / name, **options)

    return make


FILES = [f"{number}.png" for number in range(8)]
AB = ["a", "b"] * 4


def labels_of(images) -> list[list[str]]:
    return [images.classes_of(index) for index in range(len(images))]


def told(images, words: str) -> bool:
    return any(words in note for note in images.notes)


def test_labels__that_programs_write_for_none_are_none(opened):
    words = ["nan", "NaN", "", "<NA>", "#N/A", "NaT", "1.0", "0.0"]
    images = opened({"image": FILES, "label": words})
    assert labels_of(images) == [["1"], ["0"]]
    assert images.keys == ["6.png", "7.png"]
    assert told(images, "6 rows without a label were left out (#N/A, <NA>, NaN, NaT, nan)")
    assert opened({"image": FILES, "label": ["None", "NA", "none", "a", *["None", "NA", "none", "a"]]}).classes == (
        *("NA", "None", "a", "none"),
    )


def test_labels__in_lists_are_several(opened):
    cells = ["\"['red', 'blue']\"", '"[""green""]"', "[]", "['red' 'blue']", "\"('red',)\"", "", "nan", "[None]"]
    images = opened({"image": FILES, "label": cells})
    assert labels_of(images) == [["blue", "red"], ["green"], [], ["blue", "red"], ["red"], []]
    assert told(images, "2 rows without a label were left out (nan)")
    single = opened({"image": FILES, "label": ['"[""a""]"', "[b]"] * 4})
    assert (single.multi_hot, single.classes) == (None, ("a", "b"))
    assert opened({"image": FILES, "label": ["[a]", "b"] * 4}).classes == ("[a]", "b")
    assert opened({"image": FILES, "label": ["[a]", "[b]"] * 4}, label_separator="none").classes == ("[a]", "[b]")


@pytest.mark.parametrize(
    ("cells", "names"),
    [
        (["[0, 3]", "[1]"], [["0", "3"], ["1"]]),
        (["['a b' 'c']", "[]"], [["a b", "c"], []]),
        (["{'a'}", "[a, b]"], [["a"], ["a", "b"]]),
        (["('a', 'b')", "()"], [["a", "b"], []]),
        (["(other)", "(1)"], None),
        (["a", "[b]"], None),
        (["", ""], None),
    ],
)
def test_cells__that_are_lists(cells, names):
    assert labels_in_lists(cells) == names


@pytest.mark.parametrize(
    ("cells", "separator"),
    [
        (["red; blue", "red ;green", ""], ";"),
        (["red; blue", "red ;green", "nan"], ";"),
        (["red;blue", "blue;green"], ";"),
        (["cat; tabby", "cat; persian", "dog; pug"], ""),
    ],
)
def test_separator__is_found_beside_empty_cells_and_at_other_places(cells, separator):
    assert find_separator(cells) == separator


def test_columns__of_fastai_are_the_parts(opened):
    images = opened({"name": FILES, "label": AB, "is_valid": ["True"] * 2 + ["False"] * 6}, image_column="name")
    assert images.declared_splits == ["val"] * 2 + ["train"] * 6
    assert told(images, "the split is in the column 'is_valid'")
    marks = opened({"image": FILES, "a": [1, 0] * 4, "b": [0, 1] * 4, "is_valid": [0, 1] * 4})
    assert (marks.classes, marks.declared_splits[:2]) == (("a", "b"), ["train", "val"])
    assert told(opened({"image": FILES, "label": AB, "fold": [1, 2] * 4}), "the column 'fold' is not read")
    odd = opened({"image": FILES, "label": AB, "is_valid": ["?"] * 8})
    assert set(odd.declared_splits) == {""}
    assert told(odd, "the column 'is_valid' is not read")


def test_columns__of_names_win_over_those_of_their_numbers(opened):
    images = opened({"image": FILES, "label": [0, 1] * 4, "class_name": ["cat", "dog"] * 4})
    assert images.classes == ("cat", "dog")
    assert told(images, "the class names are in the column 'class_name'; the column 'label' has the class numbers")
    other = opened({"image": FILES, "label": [0, 1] * 4, "breed": [f"b{n}" for n in range(8)]})
    assert other.classes == ("0", "1")
    assert opened({"image": FILES, "label": AB, "class_name": ["cat", "dog"] * 4}).classes == ("a", "b")


def test_columns__of_marks_are_named(opened):
    images = opened({"image": FILES, "has_flash": [1, 0] * 4, "is_night": [1, 1] * 4})
    assert told(images, "in 2 columns of 1 and 0 (has_flash, is_night)")


def test_boxes__in_a_table_are_named(opened):
    box = {"xmin": [0] * 8, "ymin": [0] * 8, "xmax": [5] * 8, "ymax": [5] * 8}
    twice = [f"{number // 2}.png" for number in range(8)]
    with pytest.raises(UserError, match="has boxes as a CSV of boxes, and no classes of images"):
        opened({"filename": twice, "width": [12] * 8, "height": [8] * 8, "class": AB, **box})
    spans = {"x": [0] * 8, "y": [0] * 8, "w": [5] * 8, "h": [5] * 8}
    with pytest.raises(UserError, match="has boxes as a CSV of boxes, and no classes of images"):
        opened({"filename": twice, "class": AB, **spans})
    others = {"bbox_x": [0] * 8, "bbox_y": [0] * 8, "bbox_width": [5] * 8, "bbox_height": [5] * 8}
    assert told(opened({"filename": FILES, "class": AB, **others}), "the boxes (bbox_x, bbox_y, bbox_width")
    images = opened({"filename": FILES, "class": AB, **box})
    assert labels_of(images)[:2] == [["a"], ["b"]]
    assert told(images, "the boxes (xmin, ymin, xmax, ymax) are not read")
    unnamed = {"0.png": twice[1:], **{str(n): [5] * 7 for n in range(4)}, "a": AB[1:]}
    with pytest.raises(UserError, match="has boxes as a CSV of boxes, and no classes of images"):
        opened(unnamed)
    with pytest.raises(UserError, match=r"its rows look like boxes \(0\.png, 0, 1, 2, 3, 4, a\): use paucal detect"):
        opened({**{name: unnamed[name] for name in ("0.png", "0", "1", "2", "3")}, "4": [5] * 7, "a": AB[1:]})


def test_rows__with_more_cells_than_names_are_refused(opened):
    with pytest.raises(UserError, match=r"line 2 of .* has 3 cells, but the first line has 2: .* quotes around names"):
        opened({"image": FILES, "label": ["polar bear, white", "dog"] * 4})
    assert opened({"image": FILES, "label": ["cat,", "dog,"] * 4}).classes == ("cat", "dog")


@pytest.mark.parametrize("name", ["metadata.csv", "metadata.jsonl", "_classes.csv"])
def test_tables__in_the_folders_of_the_parts(tmp_path, name):
    for part in ("train", "valid", "test"):
        (tmp_path / part).mkdir()
        for number in range(4):
            (tmp_path / part / f"{number}.png").write_bytes(encode(number))
        names = ["cat", "dog"] * 2
        lines = {
            "metadata.csv": ["file_name,label", *(f"{n}.png,{label}" for n, label in enumerate(names))],
            "metadata.jsonl": [json.dumps({"file_name": f"{n}.png", "label": one}) for n, one in enumerate(names)],
            "_classes.csv": ["filename, cat, dog", *(f"{n}.png, {1 - n % 2}, {n % 2}" for n in range(4))],
        }[name]
        (tmp_path / part / name).write_text("\n".join(lines) + "\n")
    images = open_images(tmp_path)
    assert images.declared_splits == ["train"] * 4 + ["val"] * 4 + ["test"] * 4
    assert images.keys[::4] == ["train/0.png", "valid/0.png", "test/0.png"]
    assert labels_of(images) == [["cat"], ["dog"]] * 6
    (tmp_path / "train" / name).unlink()
    with pytest.raises(UserError, match="has no class folders inside"):
        open_images(tmp_path)


def test_tables__of_submissions_are_none(tmp_path):
    for number in range(4):
        (tmp_path / f"{number}.png").write_bytes(encode(number))
    (tmp_path / "sample_submission.csv").write_text("id,label\n2,a\n3,a\n")
    (tmp_path / "train.csv").write_text("id,label\n0,a\n1,b\n")
    assert open_images(tmp_path).keys == ["0.png", "1.png"]


def test_tables__that_only_seem_to_be_of_a_part(tmp_path):
    for number in range(4):
        (tmp_path / f"{number}.png").write_bytes(encode(number))
    (tmp_path / "road_test.csv").write_text("id,label\n0,a\n1,b\n")
    assert open_images(tmp_path).declared_splits == ["", ""]
    (tmp_path / "latest.csv").write_text("id,label\n2,a\n3,b\n")
    assert open_images(tmp_path).keys == ["2.png", "3.png"]


def test_tables__of_parts_whose_columns_are_named(tmp_path):
    for part in ("train", "test"):
        (tmp_path / "a" / part).mkdir(parents=True)
        (tmp_path / "b" / part).mkdir(parents=True)
        for number in range(2):
            (tmp_path / "a" / part / f"{number}.png").write_bytes(encode(number))
            (tmp_path / "b" / part / f"{number}.png").write_bytes(encode(number))
        rows = "where,finding\n0.png,x\n1.png,y\n"
        (tmp_path / "a" / part / "metadata.csv").write_text(rows)
        (tmp_path / "b" / f"{part}.csv").write_text(rows)
    for place in ("a", "b", "b/train.csv"):
        images = open_images(tmp_path / place, image_column="where", label_column="finding")
        assert images.declared_splits == ["train", "train", "test", "test"]
        assert images.keys[::2] == ["train/0.png", "test/0.png"]


@pytest.mark.parametrize("header", ["path,label,label", "path,path,label"])
def test_columns__that_are_read_have_one_name_each(tmp_path, header):
    (tmp_path / "labels.csv").write_text(f"{header}\na,a,b\n")
    with pytest.raises(UserError, match=r"several columns called '(label|path)'; rename or remove all but one\."):
        open_images(tmp_path / "labels.csv")


def test_columns__of_one_name_that_are_not_read_do_no_harm(tmp_path):
    for number in range(8):
        (tmp_path / f"{number}.png").write_bytes(encode(number))
    rows = "".join(f"{number}.png,{AB[number]},{number},1\n" for number in range(8))
    (tmp_path / "labels.csv").write_text(f"path,label,age,age\n{rows}")
    images = open_images(tmp_path / "labels.csv")
    assert len(images) == 8
    with pytest.raises(UserError, match="several columns called 'age'"):
        group_numbers(images, "age")
    with pytest.raises(UserError, match="several columns called 'age'"):
        read_targets(images, "age", min_targets=1)


def test_columns__with_two_numbers_for_an_image_are_refused_as_targets(opened):
    images = opened({"path": [*FILES, "0.png"], "age": [*range(8), 9], "sex": ["f"] * 9}, labelled=False)
    assert images.column_values("sex") == ["f"] * 8
    with pytest.raises(UserError, match=r"'0\.png' is in lines 2 and 10 of .* different cells in the column 'age'"):
        read_targets(images, "age", min_targets=1)


def test_columns__that_one_table_of_a_set_lacks_are_empty_there(tmp_path):
    for name in ("train", "test"):
        (tmp_path / f"{name}.png").write_bytes(encode(name == "test"))
    (tmp_path / "train.csv").write_text("path,age,label\ntrain.png,7,a\n")
    (tmp_path / "test.csv").write_text("label,path\nb,test.png\n")
    images = open_images(tmp_path / "train.csv")
    assert images.columns == {"age": ["7", ""], "label": ["a", "b"]}
