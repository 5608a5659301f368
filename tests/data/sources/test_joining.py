"""Several places as one set, and PASCAL VOC's lists of classes."""

import hashlib
import os

import numpy as np
import pytest

from data.conftest import encode
from paucal.data.checking.survey import digest_of
from paucal.data.sources.joining import split_location
from paucal.data.sources.opening import open_images
from paucal.data.stores import locate
from paucal.types import UserError


def folder(base, *names):
    for number, name in enumerate(names):
        path = base / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode(number))
    return base


def joined(*places) -> str:
    return os.pathsep.join(map(str, places))


def test_places__become_one_set_with_the_classes_of_all(tmp_path):
    one = folder(tmp_path / "one", "cat/1.png", "dog/2.png")
    two = folder(tmp_path / "two", "bird/1.png", "dog/3.png")
    images = open_images(joined(one, two))
    assert images.classes == ("bird", "cat", "dog")
    assert images.keys == ["one/cat/1.png", "one/dog/2.png", "two/bird/1.png", "two/dog/3.png"]
    assert images.labels.tolist() == [1, 2, 0, 2]
    parts = [open_images(place) for place in (one, two)]
    expected = [part.store.read(index).tobytes() for part in parts for index in range(2)]
    assert [images.store.read(index).tobytes() for index in range(4)] == expected
    places = [locate(images.store, index) for index in range(4)]
    assert [store.name(place) for store, place in places] == ["cat/1.png", "dog/2.png", "bird/1.png", "dog/3.png"]


def test_places__of_one_name_are_numbered(tmp_path):
    one, two = (folder(tmp_path / base / "photos", "cat/1.png", "dog/2.png") for base in ("a", "b"))
    assert open_images(joined(one, two)).keys[::2] == ["photos-1/cat/1.png", "photos-2/cat/1.png"]


def test_places__of_one_name_beside_one_with_that_number_have_distinct_keys(tmp_path):
    places = [folder(tmp_path / name, "cat/1.png", "dog/2.png") for name in ("a/photos", "b/photos", "photos-1")]
    keys = open_images(joined(*places)).keys
    assert keys[::2] == ["photos-1/cat/1.png", "photos-2/cat/1.png", "photos-1-3/cat/1.png"]


def test_places__with_parts_and_without(tmp_path):
    one = folder(tmp_path / "one", "train/cat/1.png", "train/dog/2.png", "test/cat/3.png")
    two = folder(tmp_path / "two", "cat/1.png", "dog/3.png")
    assert open_images(joined(one, two)).declared_splits == ["test", "train", "train", "train", "train"]


def test_places__each_with_one_class_are_enough_together(tmp_path):
    places = [folder(tmp_path / name, f"{name}/1.png") for name in ("cat", "dog")]
    assert open_images(joined(*places)).classes == ("cat", "dog")


def test_places__keep_the_further_columns_of_their_tables(tmp_path):
    one, two = (folder(tmp_path / name, "1.png", "2.png") for name in ("one", "two"))
    three = folder(tmp_path / "three", "a/1.png", "b/2.png")
    (one / "labels.csv").write_text("image,label,patient\n1.png,a,p\n2.png,b,q\n")
    (two / "labels.csv").write_text("image,label,age,patient\n1.png,a,7,q\n2.png,b,8,r\n")
    images = open_images(joined(one / "labels.csv", two, three))
    assert images.columns["patient"] == ["p", "q", "q", "r", "", ""]
    assert images.columns["age"] == ["", "", "7", "8", "", ""]


def test_places__one_that_is_missing_is_named(tmp_path):
    one = folder(tmp_path / "one", "cat/1.png", "dog/2.png")
    with pytest.raises(UserError, match="nothing does not exist"):
        open_images(joined(one, tmp_path / "nothing"))


def test_roots__of_a_name_with_a_colon_that_exists(tmp_path):
    odd = folder(tmp_path / f"a{os.pathsep}b", "cat/1.png", "dog/2.png")
    assert split_location(odd) == [str(odd)]
    assert split_location("hf:owner/name") == ["hf:owner/name"]


def voc(base, shown: dict[str, dict[str, int]], part: str = "train"):
    images = sorted({image for signs in shown.values() for image in signs})
    folder(base, *(f"JPEGImages/{image}.png" for image in images))
    (base / "ImageSets/Main").mkdir(parents=True, exist_ok=True)
    for name, signs in shown.items():
        lines = "".join(f"{image} {sign:2}\n" for image, sign in signs.items())
        (base / "ImageSets/Main" / f"{name}_{part}.txt").write_text(lines)
    return base


def test_voc__with_one_class_for_each_image(tmp_path):
    voc(tmp_path, {"cat": {"1": 1, "2": -1, "3": -1}, "dog": {"1": -1, "2": 1, "3": -1}})
    voc(tmp_path, {"cat": {"7": -1}, "dog": {"7": 1}}, "val")
    images = open_images(tmp_path)
    assert images.classes == ("cat", "dog")
    assert images.keys == [f"JPEGImages/{n}.png" for n in (1, 2, 7)]
    assert np.array_equal(images.labels, [0, 1, 1])
    assert images.declared_splits == ["train", "train", "val"]
    assert any("without a class" in note for note in images.notes)


def test_voc__with_several_classes_for_an_image(tmp_path):
    voc(tmp_path, {"cat": {"1": 1, "2": 1, "3": -1}, "dog": {"1": 1, "2": 0, "3": -1}})
    images = open_images(tmp_path)
    assert images.multi_hot is not None
    assert images.multi_hot.tolist() == [[1, 1], [1, -1], [0, 0]]  # difficult to see: neither for nor against
    assert any("several labels (such as '1')" in note for note in images.notes)


def test_voc__image_with_two_marks_in_one_list_is_refused(tmp_path):
    voc(tmp_path, {"cat": {"1": 1, "2": -1}, "dog": {"1": -1, "2": 1}})
    file = tmp_path / "ImageSets/Main/cat_train.txt"
    file.write_text(f"{file.read_text()}1 1\n")
    assert open_images(tmp_path).labels.tolist() == [0, 1]  # the same line again does no harm
    file.write_text(f"{file.read_text()}1.jpg -1\n")
    with pytest.raises(UserError, match=r"'1' has the marks 1 and -1 for 'cat' in the lists in .*; keep one mark\."):
        open_images(tmp_path)


def test_voc__of_boxes_without_lists_of_classes_says_what_to_do(tmp_path):
    folder(tmp_path, "JPEGImages/1.png")
    (tmp_path / "Annotations").mkdir()
    (tmp_path / "Annotations/1.xml").write_text("<annotation/>")
    with pytest.raises(UserError, match=r"has boxes \(Annotations\) .* write a table of image_path,label"):
        open_images(tmp_path)
    assert len(open_images(tmp_path, labelled=False)) == 1


def test_coco__boxes_without_classes_of_images_say_what_to_do(tmp_path):
    folder(tmp_path / "c", "train/1.jpg", "valid/2.jpg")
    (tmp_path / "c/train/_annotations.coco.json").write_text("{}")
    with pytest.raises(UserError, match=r"has boxes \(train/_annotations\.coco\.json\) .* write a table of"):
        open_images(tmp_path / "c")
    assert len(open_images(tmp_path / "c", labelled=False)) == 2
    folder(tmp_path / "d", "train/a/1.jpg", "train/b/2.jpg")
    (tmp_path / "d/train/_annotations.coco.json").write_text("{}")
    assert open_images(tmp_path / "d").classes == ("a", "b")  # class folders tell classes, whatever lies beside them


@pytest.mark.parametrize("line", ["1 2", "../x 1", "1"])
def test_voc__of_odd_lines_ends_in_a_sentence(tmp_path, line):
    voc(tmp_path, {"cat": {"1": 1}, "dog": {"2": 1}})
    (tmp_path / "ImageSets/Main/cat_train.txt").write_text(line)
    with pytest.raises(UserError, match=r"line 1 of .*expected an image and 1, 0 or -1"):
        open_images(tmp_path)


def test_places__are_read_as_files_and_decoded_once_like_one(tmp_path):
    one = folder(tmp_path / "one", "cat/1.png", "dog/2.png")
    two = folder(tmp_path / "two", "cat/1.png", "dog/3.png")
    images = open_images(joined(one, two))
    stores = [locate(images.store, index) for index in range(4)]
    assert all(store.stamp(place) is not None for store, place in stores)  # known again without being read
    assert digest_of(images.store, 0) == hashlib.blake2b((one / "cat/1.png").read_bytes(), digest_size=16).digest()


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("line", ["{}", "{}.jpg", "JPEGImages/{}.jpg", "JPEGImages\\{}.JPG"])
def test_voc__lists_as_other_programs_write_them(tmp_path, encoding, line):
    names = ["slide 1", "slide 1 copy", "caf\u00e9"]
    voc(tmp_path, {"cat": dict.fromkeys(["slide 1", "slide 1 copy", "cafe\u0301"], 1)})
    folder = tmp_path / "ImageSets" / "Main"
    (folder / "cat_train.txt").unlink()
    for number, (part, words) in enumerate([("Train", names[:1]), ("valid", names[1:2]), ("TEST", names[2:])]):
        for name in ("cat", "crash_test"):
            signs = [1 if (name == "cat") == (number % 2 == 0) else -1] * len(words)
            text = "".join(f"{line.format(word)}  {sign}\r\n" for word, sign in zip(words, signs, strict=True))
            (folder / f"{name}_{part}.txt").write_bytes(text.encode(encoding))
    (folder / "cat_trainval.txt").write_text("slide 1 1\nslide 1 copy -1\n")
    images = open_images(tmp_path)
    assert images.classes == ("cat", "crash_test")
    found = dict(zip(images.keys, zip(images.labels.tolist(), images.declared_splits, strict=True), strict=True))
    assert sorted(found.values()) == [(0, "test"), (0, "train"), (1, "val")]
    assert found["JPEGImages/slide 1.png"] == (0, "train")
