"""Data sets by name, on tiny copies of their official layouts."""

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from data.fake_sets import EXPECTED, MAKE, expected_rows, rows
from paucal.data.decoded.in_memory import cache_images
from paucal.data.images import ImageSet
from paucal.data.named.table import NAMED
from paucal.data.sources.opening import open_images
from paucal.data.splits.split import make_split
from paucal.types import UserError


@pytest.mark.parametrize("name", NAMED)
def test_open_images__reads_each_named_set(name, root):
    MAKE[name](root)
    images = open_images(name, root=root, labelled=NAMED[name].labelled)
    assert rows(images) == expected_rows(name)
    assert images.name == name
    assert images.location == str(root)
    again = pickle.loads(pickle.dumps(images))
    assert rows(again) == rows(images)
    kept, bad = cache_images(images)
    assert rows(kept) == rows(images)
    assert bad == []
    published = sum(portion.count for portion in NAMED[name].portions)
    assert published > 1000
    assert any(f"{NAMED[name].portions[0].count:,}" in note and "exist here" in note for note in images.notes)


def test_open_images__all_sets_are_tested():
    assert EXPECTED.keys() == NAMED.keys() == MAKE.keys()


@pytest.mark.parametrize(("name", "side"), [("cifar10", 32), ("svhn", 32), ("stl10", 96), ("pcam", 96)])
def test_named_arrays__keep_rows_columns_and_channels(name, side, root):
    MAKE[name](root)
    images = open_images(name, root=root)
    for row in (0, len(images) - 1):
        image = np.asarray(images.store.read(row))
        assert image.shape == (side, side, 3)
        assert images.store.size(row) == (side, side)
        assert image[0, 1].tolist() == [255, 0, 0]
        assert len(np.unique(image[1, 0])) == 1
    assert images.keys[:2] == [f"{name}/train#0", f"{name}/train#1"]


def test_named_files__keys_are_paths_below_the_root(root):
    MAKE["flowers102"](root)
    images = open_images("flowers102", root=root)
    assert images.keys[0] == "flowers-102/jpg/image_00001.jpg"
    assert all((root / key).is_file() for key in images.keys)


def test_named_sets__parts_become_splits(root):
    for name in ("dtd", "flowers102"):
        MAKE[name](root)
    textures = make_split(open_images("dtd", root=root))
    assert textures.counts() == {"train": 2, "val": 2, "test": 2, "unused": 0}
    flowers = open_images("flowers102", root=root)
    assert "as in the DrLoc paper" in flowers.notes[0]
    assert len(flowers.classes) == 102
    assert [flowers.declared_splits.count(part) for part in ("train", "val", "test")] == [4, 0, 2]


def test_named_sets__hints_forbid_mirrors_of_digits_and_signs(root):
    for name in ("svhn", "gtsrb", "dtd"):
        MAKE[name](root)
    hints = {name: open_images(name, root=root).hints for name in ("svhn", "gtsrb", "dtd")}
    assert [hints[name].flip for name in hints] == [False, False, True]
    assert [hints[name].image_size for name in hints] == [32, 32, None]


def test_named_sets__can_be_opened_without_labels(root):
    MAKE["dtd"](root)
    images = open_images("dtd", root=root, labelled=False)
    assert images.classes == ()
    assert set(images.labels.tolist()) == {-1}
    assert images.declared_splits.count("val") == 2


def test_named_sets__the_published_count_is_no_note(root, monkeypatch):
    MAKE["caltech101"](root)
    entry = NAMED["caltech101"]
    real = type(entry)(**{**vars(entry), "portions": (type(entry.portions[0])("", 3, {}),)})
    monkeypatch.setitem(NAMED, "caltech101", real)
    assert not [note for note in open_images("caltech101", root=root).notes if "exist here" in note]


def test_is_named__a_path_wins_unless_a_root_is_given(root, make_folder, monkeypatch):
    MAKE["dtd"](root)
    photos = make_folder("a/1.png", "b/1.png", root="dtd")
    monkeypatch.chdir(photos.parent)
    assert open_images("dtd").classes == ("a", "b")
    assert open_images("dtd", root=root).classes == ("banded", "woven")
    assert open_images(Path("dtd"), root=root).classes == ("a", "b")


class Greys(torch.utils.data.Dataset):
    def __init__(self, images: ImageSet) -> None:
        self.images = images

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> int:
        return int(np.asarray(self.images.store.read(index))[-1, -1, 1])


def test_pcam__is_read_in_forked_workers(root):
    MAKE["pcam"](root)
    images = open_images("pcam", root=root)
    images.store.read(0)  # the parent has the file open too
    loader = DataLoader(Greys(images), batch_size=2, num_workers=2, multiprocessing_context="fork")
    assert torch.cat(list(loader)).tolist() == [grey for _, grey, _ in rows(images)]


def test_misspelt_name__is_suggested(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"cifar-10 does not exist; did you mean cifar10"):
        open_images("cifar-10")
