import pickle
from pathlib import Path

import numpy as np
import pytest

from paucal.data.sources.opening import open_images
from paucal.types import UserError


def test_open_folder__class_folders(make_folder):
    images = open_images(make_folder("dog/2.png", "dog/1.JPG", "Cat/a.jpeg", "ant/deep/er/x.PNG"))
    assert images.classes == ("Cat", "ant", "dog")  # lexicographic, capitals first
    assert images.keys == ["Cat/a.jpeg", "ant/deep/er/x.PNG", "dog/1.JPG", "dog/2.png"]
    assert images.labels.tolist() == [0, 1, 2, 2]
    assert images.declared_splits == [""] * 4
    assert images.name == "photos"
    assert images.store.read(3).size == (12, 8)
    assert images.store.size(3) == (8, 12)
    assert images.class_counts().tolist() == [1, 1, 2]
    assert images.class_counts([2, 3]).tolist() == [0, 0, 2]


@pytest.mark.parametrize("val", ["val", "valid", "Validation", "DEV"])
@pytest.mark.parametrize("test", ["test", "Testing"])
def test_open_folder__parts_in_any_spelling(make_folder, val, test):
    folder = make_folder("Train/a/1.png", "Train/b/2.png", f"{val}/b/3.png", f"{test}/a/4.png", f"{test}/b/5.png")
    images = open_images(folder)
    found = {Path(key).name: part for key, part in zip(images.keys, images.declared_splits, strict=True)}
    assert found == {"1.png": "train", "2.png": "train", "3.png": "val", "4.png": "test", "5.png": "test"}


def test_open_folder__a_class_missing_in_one_part_shifts_no_label(make_folder):
    folder = make_folder("train/a/1.png", "train/b/1.png", "train/c/1.png", "test/a/2.png", "test/c/2.png")
    images = open_images(folder)
    labels = dict(zip(images.keys, images.labels.tolist(), strict=True))
    assert labels["test/c/2.png"] == labels["train/c/1.png"] == 2


def test_open_folder__ignores_hidden_system_and_other_files(make_folder):
    folder = make_folder(
        "a/1.png", "b/1.png", "a/.2.png", ".git/x.png", "__MACOSX/a/1.png", "a/.thumbs/1.png", "b/notes.txt"
    )
    assert open_images(folder).keys == ["a/1.png", "b/1.png"]
    assert open_images(folder, labelled=False).keys == ["a/1.png", "b/1.png"]


def test_open_folder__notes_loose_images(make_folder):
    images = open_images(make_folder("a/1.png", "b/1.png", "sheet.png"))
    assert len(images) == 2
    assert "1 image outside of the folders was left out (sheet.png)" in images.notes[0]


def test_open_folder__follows_links_without_loops(make_folder, tmp_path):
    folder = make_folder("a/1.png", "b/1.png")
    (tmp_path / "elsewhere").mkdir()
    (folder / "a/1.png").rename(tmp_path / "elsewhere/2.png")
    (folder / "a").rmdir()
    (folder / "a").symlink_to(tmp_path / "elsewhere")
    (folder / "b/loop").symlink_to(folder)
    assert open_images(folder).keys == ["a/2.png", "b/1.png"]


def test_open_folder__takes_train_as_a_class_among_classes(make_folder):
    images = open_images(make_folder("train/1.png", "bus/1.png", "car/1.png"))
    assert images.classes == ("bus", "car", "train")
    assert images.declared_splits == ["", "", ""]


def test_open_folder__unlabelled_takes_any_nesting(make_folder):
    images = open_images(make_folder("1.png", "x/2.png", "x/y/z/3.jpg"), labelled=False)
    assert images.keys == ["1.png", "x/2.png", "x/y/z/3.jpg"]
    assert images.classes == ()
    assert not images.has_single_labels
    assert images.labels.tolist() == [-1, -1, -1]
    assert images.declared_splits == ["", "", ""]


def test_open_folder__unlabelled_still_knows_the_parts(make_folder):
    images = open_images(make_folder("train/a/1.png", "train/2.png", "test/b/1.png"), labelled=False)
    assert images.declared_splits == ["test", "train", "train"]


def test_open_images__a_single_image_without_labels(make_folder):
    images = open_images(make_folder("a/1.png") / "a/1.png", labelled=False)
    assert images.keys == ["1.png"]
    assert images.store.read(0).size == (12, 8)


def test_open_images__digits():
    images = open_images("digits")
    assert len(images) == 1797
    assert images.classes == tuple("0123456789")
    assert images.class_counts().tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert (images.hints.flip, images.hints.image_size, images.hints.epochs) == (False, 16, 16)
    first = np.asarray(images.store.read(0))
    assert first.shape == (8, 8, 3)
    assert first[0, :4, 0].tolist() == [0, 0, 80, 207]  # 0, 0, 5, 13 of 16
    assert len(open_images("digits", labelled=False).classes) == 0


def test_image_set__select_keeps_rows_together(make_folder):
    images = open_images(make_folder("a/1.png", "a/2.png", "b/3.png"))
    chosen = images.select(np.asarray([2, 0]), "a note")
    assert chosen.keys == ["b/3.png", "a/1.png"]
    assert chosen.labels.tolist() == [1, 0]
    assert chosen.notes == ("a note",)
    assert np.asarray(chosen.store.read(0))[0, 0, 0] == np.asarray(images.store.read(2))[0, 0, 0] == 2


def test_image_set__sample_sizes_leaves_out_what_cannot_be_read(make_folder):
    folder = make_folder("a/1.png", "b/1.png", "b/2.png")
    (folder / "b/1.png").write_bytes(b"")
    assert open_images(folder).sample_sizes().tolist() == [[8, 12], [8, 12]]


def test_image_set__can_be_pickled(make_folder):
    images = open_images(make_folder("a/1.png", "b/2.png"))
    again = pickle.loads(pickle.dumps(images))
    assert again.keys == images.keys
    assert again.store.read(1).tobytes() == images.store.read(1).tobytes()


def test_image_set__refuses_columns_of_different_length(make_set):
    with pytest.raises(ValueError, match=r"differ in length: \[1, 2\]"):
        make_set([0, 1], keys=["only"])


def test_folders_of_parts_beside_others__are_classes_with_a_note(make_folder):
    images = open_images(make_folder("train/1.png", "val/2.png", "more/3.png"))
    assert images.classes == ("more", "train", "val")
    assert "'train', 'val' have no class folders, so these folders are read as classes" in images.notes


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        ((), r"no images in .*photos \(expected files ending in \.jpg"),
        (("a/readme.txt",), "no images in"),
        (("a/1.png",), r"only one class \('a'\).*at least two class folders\.$"),
        (("all/a/1.png", "all/b/1.png"), r"only one class \('all'\).*did you mean .*photos/all\?"),
        (
            ("Image/1.png", "label/1.png"),
            r"has 1 mask \('label/1\.png' of 'Image/1\.png'\), and no classes of images: `paucal segment`",
        ),
        (
            ("train/imgs/1.png", "train/masks/1.png", "val/imgs/2.png", "val/masks/2.png"),
            r"has 2 masks \(",
        ),
        (("1.png", "2.png"), "has images but no class folders; expected photos/<class>/<image>"),
        (
            ("train/1.png", "val/2.png"),
            r"photos/train has no class folders inside; expected train/<class>/<image>",
        ),
        (("train/a/1.png", "train/b/1.png", "val/1.png"), "photos/val has no class folders inside"),
        (("a/1.png", "b/1.png", "c/notes.txt"), "class folder 'c' in .* has no images"),
        (("train/a/1.png", "train/b/1.png", "test/c/x.txt"), "class folder 'test/c' in .* has no images"),
        (
            ("train/a/1.png", "test/a/1.png", "more/1.png"),
            "has 'test', 'train' with class folders, and also images in 'more'",
        ),
        (
            ("val/a/1.png", "valid/a/1.png", "train/a/1.png"),
            r"more than one folder for val \('train', 'val', 'valid'\)",
        ),
    ],
)
def test_open_folder__says_what_is_wrong(make_folder, paths, message):
    with pytest.raises(UserError, match=message):
        open_images(make_folder(*paths))


def test_open_images__suggests_near_names(make_folder):
    folder = make_folder("a/1.png", "b/1.png")
    with pytest.raises(UserError, match=r"phots does not exist; did you mean photos\?"):
        open_images(folder.parent / "phots")
    with pytest.raises(UserError, match="xyz does not exist; check the spelling"):
        open_images(folder.parent / "xyz")
    with pytest.raises(UserError, match="nor does its folder"):
        open_images(folder.parent / "no/where")


def test_open_images__says_what_a_file_should_be(make_folder):
    folder = make_folder("a/1.png", "b/notes.md")
    with pytest.raises(UserError, match="is a single image; give a folder"):
        open_images(folder / "a/1.png")
    with pytest.raises(
        UserError,
        match=r"has an unsupported format; expected a folder, or a Parquet or Arrow file .*, or a list file .*, "
        r"or an image\.$",
    ):
        open_images(folder / "b/notes.md")
