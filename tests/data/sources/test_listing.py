import numpy as np
import pytest

from paucal.data.sources import table_reading, tables
from paucal.data.sources.opening import open_images
from paucal.data.splits.split import make_split
from paucal.types import UserError

DOMAIN = ("real/cat/1.png", "real/cat/2.png", "real/dog/3.png", "real/dog/4.png", "real/The owl/5 b.png")


def test_open_listing__train_and_test_lists_share_one_class_index(make_folder):
    # As in DomainNet: a class that the train list lacks must not shift the labels of the test list.
    folder = make_folder(*DOMAIN)
    (folder / "real_train.txt").write_text("real/dog/3.png 7\nreal/cat/1.png 2\n\nreal/dog/4.png 7\n")
    (folder / "real_test.txt").write_text("real/cat/2.png 2\r\nreal/The owl/5 b.png 5\r\n")
    images = open_images(folder / "real_train.txt")
    assert images.keys == [
        *("real/dog/3.png", "real/cat/1.png", "real/dog/4.png"),
        *("real/cat/2.png", "real/The owl/5 b.png"),
    ]
    assert images.classes == ("cat", "The owl", "dog")  # in the order of 2, 5, 7
    assert images.labels.tolist() == [2, 0, 2, 0, 1]
    assert images.declared_splits == ["train", "train", "train", "test", "test"]
    assert images.name == "real"
    assert images.location == str(folder)
    assert images.notes == ("read from real_train.txt and real_test.txt",)
    assert [int(np.asarray(images.store.read(i))[0, 0, 0]) for i in range(5)] == [2, 0, 3, 1, 4]


def test_open_listing__the_test_list_alone_stands_for_itself(make_folder):
    folder = make_folder(*DOMAIN)
    (folder / "real_train.txt").write_text("real/dog/3.png 1\nreal/cat/1.png 0\n")
    (folder / "real_test.txt").write_text("real/cat/2.png 0\nreal/dog/4.png 1\n")
    images = open_images(folder / "real_test.txt")
    assert images.keys == ["real/cat/2.png", "real/dog/4.png"]
    assert images.declared_splits == ["", ""]
    assert images.name == "real_test"


def test_open_listing__of_three_parts_in_a_folder(make_folder):
    folder = make_folder(*DOMAIN)
    (folder / "Train.txt").write_text("real/dog/3.png 1\nreal/cat/1.png 0\n")
    (folder / "valid.txt").write_text("./real/cat/2.png\t0\n")
    (folder / "testing.txt").write_text("real//dog/./4.png   1\n")
    (folder / "notes.txt").write_text("not a list\n")
    images = open_images(folder)
    assert images.keys == ["real/dog/3.png", "real/cat/1.png", "real/cat/2.png", "real/dog/4.png"]
    assert images.declared_splits == ["train", "train", "val", "test"]
    assert images.name == "photos"
    assert make_split(images).counts() == {"train": 2, "val": 1, "test": 1, "unused": 0}


def test_open_listing__finds_the_images_in_the_folder_above(make_folder):
    folder = make_folder(*DOMAIN, "splits/readme.md.png")
    (folder / "splits" / "list.txt").write_text("real/dog/3.png 1\nreal/cat/1.png 0\n")
    assert open_images(folder / "splits" / "list.txt").location == str(folder)


def test_open_listing__takes_the_root_it_is_given(make_folder, tmp_path):
    folder = make_folder(*DOMAIN)
    list_file = tmp_path / "elsewhere.txt"
    list_file.write_text("dog/3.png 1\ncat/1.png 0\n")
    images = open_images(list_file, root=folder / "real")
    assert images.keys == ["dog/3.png", "cat/1.png"]
    assert images.store.size(0) == (8, 12)
    with pytest.raises(
        UserError, match=r"'dog/3.png', the first image of .*elsewhere.txt, is not in .* nor in .*; use --data-root"
    ):
        open_images(list_file)


@pytest.mark.parametrize(
    ("lines", "classes"),
    [
        ("a/x.png 0\nb/y.png 1\n", ("a", "b")),
        ("deep/a/x.png 1\ndeep/b/y.png 0\n", ("b", "a")),
        ("a/x.png 3\nb/y.png 3\na/z.png 11\n", ("3", "11")),  # two folders, one class
        ("a/x.png 3\na/y.png 11\n", ("3", "11")),  # one folder, two classes
        ("x.png 3\na/y.png 11\n", ("3", "11")),  # no folder
        ("one/a/x.png 0\ntwo/a/y.png 1\n", ("0", "1")),  # folders of the same name
    ],
)
def test_open_listing__names_classes_by_folder_or_number(make_folder, lines, classes):
    folder = make_folder(*(line.split()[0] for line in lines.splitlines()))
    (folder / "list.txt").write_text(lines)
    assert open_images(folder / "list.txt").classes == classes


def test_open_listing__unlabelled_takes_paths_with_and_without_numbers(make_folder):
    folder = make_folder(*DOMAIN)
    (folder / "list.txt").write_text("real/dog/3.png 1\nreal/The owl/5 b.png\n")
    images = open_images(folder / "list.txt", labelled=False)
    assert images.keys == ["real/dog/3.png", "real/The owl/5 b.png"]
    assert images.labels.tolist() == [-1, -1]
    assert images.classes == ()


def test_open_images__without_labels_a_folder_is_more_than_its_lists(make_folder):
    folder = make_folder(*DOMAIN)
    (folder / "train.txt").write_text("real/dog/3.png 1\nreal/cat/1.png 0\n")
    assert len(open_images(folder)) == 2
    assert len(open_images(folder, labelled=False)) == len(DOMAIN)


@pytest.mark.parametrize(
    "text", ["some notes on training\n", "gone/1.png 0\n", "cat/1.png\n", "", "/etc/passwd.png 0\n", "../x.png 0\n"]
)
def test_open_images__a_stray_text_file_leaves_a_folder_of_classes_alone(make_folder, text):
    folder = make_folder("cat/1.png", "dog/2.png")
    (folder / "train.txt").write_text(text)
    assert open_images(folder).keys == ["cat/1.png", "dog/2.png"]


def test_open_images__several_lists_have_to_be_told_apart(make_folder):
    folder = make_folder(*DOMAIN)
    for name in ("real_train.txt", "sketch-train.txt"):
        (folder / name).write_text("real/dog/3.png 1\nreal/cat/1.png 0\n")
    with pytest.raises(UserError, match=r"several data sets \(real_train.txt, sketch-train.txt\): give one"):
        open_images(folder)
    assert open_images(folder / "sketch-train.txt").name == "sketch"


def test_open_listing__repeated_lines_are_left_out_with_a_note(make_folder):
    folder = make_folder(*DOMAIN)
    (folder / "list.txt").write_text("real/dog/3.png 1\nreal/cat/1.png 0\n./real/dog/3.png 1\n")
    images = open_images(folder / "list.txt")
    assert images.keys == ["real/dog/3.png", "real/cat/1.png"]
    assert images.notes[1] == "1 repeated row of list.txt was left out"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"list.txt contains no images"),
        ("real/dog/3.png\n", r"line 1 of .*list.txt is 'real/dog/3.png'; expected a path and a class number, such as"),
        ("real/dog/3.png 1\nreal/cat/1.png zero\n", r"line 2 of .* is 'real/cat/1.png zero'; expected"),
        ("real/dog/3.png -1\n", "line 1 of .*; expected"),
        ("real/dog/3.png 1.5\n", "line 1 of .*; expected"),
        ("real/dog/3.png 99999999999\n", "line 1 of .*; expected"),
        ("real/dog 1\n", "line 1 of .*; expected"),
        ("/real/dog/3.png 1\n", r"line 1 of .* has a path outside of the folder of the images \('/real/dog/3.png'\)"),
        ("real/../../x.png 1\n", "has a path outside of the folder"),
        ("real\\..\\x.png 1\n", "has a path outside of the folder"),
        ("C:\\x.png 1\n", "has a path outside of the folder"),
        (
            "real/dog/3.png 1\nreal/dog/3.png 0\n",
            "'real/dog/3.png' is in lines 1 and 2 of .*list.txt with different labels",
        ),
        ("gone.png 1\n", r"'gone.png', the first image of .*, is not in .* nor in .*; use --data-root"),
        ("real/dog/3.png 1\nreal/dog/4.png 1\n", r"list.txt has only one class \('dog'\)"),
    ],
)
def test_open_listing__says_what_is_wrong(make_folder, text, message):
    folder = make_folder(*DOMAIN)
    (folder / "list.txt").write_text(text)
    with pytest.raises(UserError, match=message.replace(".txt", r"\.txt")) as error:
        open_images(folder / "list.txt")
    assert "\n" not in str(error.value)


def test_open_listing__an_image_is_in_one_part_only(make_folder):
    folder = make_folder(*DOMAIN)
    (folder / "train.txt").write_text("real/dog/3.png 1\nreal/cat/1.png 0\n")
    (folder / "test.txt").write_text("real/dog/3.png 1\n")
    with pytest.raises(
        UserError, match=r"line 1 of .*train\.txt and line 1 of .*test\.txt with different labels or splits"
    ):
        open_images(folder)
    (folder / "test.txt").write_text("real/dog/4.png 1\n")
    (folder / "testing.txt").write_text("real/dog/4.png 1\n")
    with pytest.raises(UserError, match=r"testing\.txt and test\.txt are both lists for test; keep one"):
        open_images(folder)


def test_open_listing__has_a_limit(make_folder, monkeypatch):
    folder = make_folder(*DOMAIN)
    (folder / "train.txt").write_text("real/dog/3.png 1\nreal/cat/1.png 0\n")
    for module in (table_reading, tables):
        monkeypatch.setattr(module, "MAX_LIST_BYTES", 20)
    with pytest.raises(UserError, match=r"train\.txt' is larger than 20 bytes"):
        open_images(folder / "train.txt")
    with pytest.raises(UserError, match="only one class"):
        open_images(folder)  # its class folders are not deep enough to be classes


def test_open_listing__keeps_names_of_any_bytes(make_folder):
    folder = make_folder("a/1.png", "b/2.png")
    strange = (b"a/\xff.png").decode("utf-8", "surrogateescape")
    try:
        (folder / "a/1.png").rename(folder / strange)
    except OSError:
        pytest.skip("this file system wants names in UTF-8")
    (folder / "list.txt").write_bytes(b"\xef\xbb\xbfb/2.png 1\na/\xff.png 0\n")
    images = open_images(folder / "list.txt")
    assert images.store.size(1) == (8, 12)
    assert images.classes == ("a", "b")
