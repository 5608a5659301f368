"""WebVision and Open Images: the layouts that are read, what is missing of them, and lists that are no good."""

import shutil

import pytest

from data.fake_sets import MAKE, expected_rows, level, picture, rows
from paucal.data.images import ImageSet
from paucal.data.named import readers
from paucal.data.sources.opening import open_images
from paucal.types import UserError


def greys(images: ImageSet) -> list[int]:
    return [grey for _, grey, _ in rows(images)]


@pytest.mark.parametrize("name", ["webvision", "openimages"])
def test_set__lies_in_a_folder_of_its_name_or_is_the_root(name, root):
    MAKE[name](root / name)
    below = open_images(name, root=root, labelled=False)
    inside = open_images(name, root=root / name, labelled=False)
    assert greys(below) == greys(inside) == [grey for _, grey, _ in expected_rows(name)]
    assert below.keys == inside.keys  # an image is the same wherever the set lies
    assert below.location == inside.location == str(root / name)
    assert all((root / name / key).is_file() for key in below.keys)


def test_webvision__is_read_without_what_is_not_there(root):
    MAKE["webvision"](root)
    shutil.rmtree(root / "val_images_256")
    shutil.rmtree(root / "flickr")
    images = open_images("webvision", root=root)
    assert images.keys == ["google/q0001/1a.jpg", "google/q0003/2b.jpg"]
    assert set(images.declared_splits) == {"train"}
    assert "published with 980,449 + 1,459,125 + 50,000 images, but 2 + 0 + 0 exist here" in images.notes[-1]
    shutil.rmtree(root / "google")
    with pytest.raises(UserError, match=r"the data set 'webvision' is not in .*--data-root"):
        open_images("webvision", root=root)


def test_webvision__has_a_thousand_classes_where_their_names_are_not_there(root):
    MAKE["webvision"](root)
    (root / "info" / "synsets.txt").unlink()
    images = open_images("webvision", root=root)
    assert images.classes == tuple(map(str, range(1000)))
    assert images.labels.tolist() == [0, 2, 1, 2, 0]


def test_webvision__needs_no_labels_to_pretrain_with(root):
    MAKE["webvision"](root)
    (root / "info" / "train_filelist_google.txt").write_text("google/q0001/1a.jpg\ngoogle/q0003/2b.jpg 2\n")
    images = open_images("webvision", root=root, labelled=False)
    assert (images.classes, set(images.labels.tolist())) == ((), {-1})
    assert images.declared_splits.count("train") == 3
    with pytest.raises(UserError, match=r"line 1 of \S+train_filelist_google.txt is 'google/q0001/1a.jpg'; expected"):
        open_images("webvision", root=root)


def test_webvision__takes_an_image_that_is_listed_twice_once(root):
    MAKE["webvision"](root)
    list_of_google = root / "info" / "train_filelist_google.txt"
    list_of_google.write_text(list_of_google.read_text() * 2)
    assert open_images("webvision", root=root).declared_splits.count("train") == 3
    list_of_google.write_text("google/q0001/1a.jpg 0\ngoogle/q0001/1a.jpg 1\n")
    with pytest.raises(UserError, match="an image is listed twice"):
        open_images("webvision", root=root)


@pytest.mark.parametrize("labelled", [True, False])
@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("../../secret.jpg 0", "leads out of the folder of the images"),
        ("/etc/secret.jpg 0", "leads out of the folder of the images"),
        ("google\\..\\..\\x.jpg 0", "leads out of the folder of the images"),
        ("google/q0001 0", "expected"),
        ("google/q0001/1a.jpg zero", "expected"),
        ("\x00\x01", "expected"),
    ],
)
def test_bad_line__is_one_sentence_with_file_and_line(line, problem, labelled, root):
    MAKE["webvision"](root)
    (root / "info" / "train_filelist_flickr.txt").write_text(f"flickr/q0002/277.jpg 1\n\n{line}\n")
    with pytest.raises(UserError, match=rf"^line 3 of \S+train_filelist_flickr.txt .*{problem}[^\n]*$"):
        open_images("webvision", root=root, labelled=labelled)


def test_bad_label__is_named_with_file_and_line(root):
    MAKE["webvision"](root)
    (root / "info" / "val_filelist.txt").write_text("val000001.jpg 2\nval000002.jpg 3\n")
    with pytest.raises(UserError, match=r"line 2 of \S+val_filelist.txt has the class 3; expected a class from 0 to 2"):
        open_images("webvision", root=root)
    assert len(open_images("webvision", root=root, labelled=False)) == 5


def test_info__is_read_within_bounds(root, monkeypatch):
    MAKE["webvision"](root)
    (root / "info" / "synsets.txt").write_text("n1 a\n" * 1001)
    with pytest.raises(UserError, match=r"synsets.txt names 1001 classes, expected 1000"):
        open_images("webvision", root=root)
    monkeypatch.setattr(readers, "MAX_SYNSETS_BYTES", 1000)
    with pytest.raises(UserError, match=r"synsets.txt' is larger than 1,000 bytes"):
        open_images("webvision", root=root)
    (root / "info" / "synsets.txt").unlink()
    (root / "info" / "val_filelist.txt").unlink()
    with pytest.raises(UserError, match=r"incomplete or damaged \(.*val_filelist.txt.*remove info from"):
        open_images("webvision", root=root)


def test_open_images__are_read_from_one_folder_too(root):
    for number in range(3):
        picture(root / "train" / f"{number}00026e7ee790996.jpg", level("train", number))
    images = open_images("openimages", root=root, labelled=False)
    assert greys(images) == [0, 10, 20]
    assert "published with 9,011,219 images, but 3 exist here" in images.notes[-1]
    shutil.rmtree(root / "train")
    (root / "train").mkdir()
    with pytest.raises(
        UserError, match=r"incomplete or damaged \(there are no images\); its archives must be downloaded"
    ):
        open_images("openimages", root=root, labelled=False)


def test_open_images__have_no_classes(root):
    with pytest.raises(
        UserError,
        match=r"labels of the data set 'openimages' are not read.*use 'paucal pretrain openimages', which learns from",
    ):
        open_images("openimages", root=root)
