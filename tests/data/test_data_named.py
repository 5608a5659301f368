"""Data sets by name, on tiny copies of their official layouts."""

import os
import pickle
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader
from torchvision.datasets import cifar, flowers102, stl10, svhn

from data.fake_sets import MAKE, level
from paucal.data import named_store
from paucal.data.cache import cache_images
from paucal.data.decode import UnreadableImage
from paucal.data.images import ImageSet
from paucal.data.named import NAMED, data_root
from paucal.data.sources import open_images
from paucal.data.splits import make_split
from paucal.types import UserError

# (part, number of the image in that part, class); what each fake set must come out as, in order.
EXPECTED: dict[str, list[tuple[str, int, str]]] = {
    "cifar10": [
        *(("train", row, name) for row, name in enumerate(["airplane", "bird", "cat", "airplane", "bird"])),
        *(("test", 0, "bird"), ("test", 1, "cat")),
    ],
    "cifar100": [
        *(("train", 0, "apple"), ("train", 1, "bear"), ("train", 2, "can")),
        *(("test", 0, "apple"), ("test", 1, "bear")),
    ],
    "mnist": [
        *(("train", 0, "5"), ("train", 1, "0"), ("train", 2, "9")),
        *(("test", 0, "7"), ("test", 1, "0")),
    ],
    "svhn": [
        *(("train", 0, "1"), ("train", 1, "0"), ("train", 2, "9")),
        *(("test", 0, "2"), ("test", 1, "0")),
    ],
    "stl10": [
        *(("train", 0, "airplane"), ("train", 1, "bird"), ("train", 2, "bird")),
        *(("test", 0, "bird"), ("test", 1, "airplane")),
    ],
    "food101": [
        *(("train", 1, "apple_pie"), ("train", 0, "waffles")),
        *(("test", 1, "apple_pie"), ("test", 0, "waffles")),
    ],
    "dtd": [(part, row, ("banded", "woven")[row]) for part in ("train", "val", "test") for row in (0, 1)],
    "pets": [(part, row, ("Abyssinian", "Great Pyrenees")[row]) for part in ("train", "test") for row in (0, 1)],
    # The official validation images are training images in the paper.
    "flowers102": [
        *(("train", 1, "pink primrose"), ("train", 0, "blackberry lily")),
        *(("train as val", 0, "hard-leaved pocket orchid"), ("train as val", 1, "blackberry lily")),
        *(("test", 1, "pink primrose"), ("test", 0, "hard-leaved pocket orchid")),
    ],
    "gtsrb": [("train", 0, "00002"), ("train", 1, "00041"), ("test", 0, "00041"), ("test", 1, "00002")],
    "pcam": [
        *(("train", 0, "normal"), ("train", 1, "tumor"), ("train", 2, "tumor")),
        *(("val", 0, "tumor"), ("test", 0, "tumor"), ("test", 1, "normal")),
    ],
    "caltech101": [(" as train", 1, "Faces"), (" as train", 2, "accordion")],
    "sun397": [(" as train", 0, "abbey"), (" as train", 1, "apartment_building/outdoor")],
    "aircraft": [(part, row, ("707-320", "F-16A/B")[row]) for part in ("train", "val", "test") for row in (0, 1)],
    "cars": [
        *(("train", 0, "Acura RL Sedan 2012"), ("train", 1, "AM General Hummer SUV 2000")),
        *(("test", 0, "Acura RL Sedan 2012"), ("test", 1, "AM General Hummer SUV 2000")),
    ],
}


@pytest.fixture
def root(tmp_path, monkeypatch) -> Path:
    """A data root; torchvision takes any file for the official one."""
    for module in (cifar, flowers102, stl10, svhn):
        monkeypatch.setattr(module, "check_integrity", lambda path, md5=None: os.path.isfile(path))
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


def rows(images: ImageSet) -> list[tuple[str, int, str]]:
    """(declared part, grey level, class) of each image."""
    greys = [int(np.asarray(images.store.read(row))[-1, -1, 1]) for row in range(len(images))]
    names = [images.classes[label] for label in images.labels]
    return list(zip(images.declared, greys, names, strict=True))


def expected_rows(name: str) -> list[tuple[str, int, str]]:
    found = []
    for part, row, label in EXPECTED[name]:
        declared, _, drawn = part.partition(" as ")
        found.append((declared, level(drawn or declared, row), label))
    return found


@pytest.mark.parametrize("name", NAMED)
def test_open_images__reads_each_named_set(name, root):
    MAKE[name](root)
    images = open_images(name, root=root)
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
    assert any(f"{NAMED[name].portions[0].count:,}" in note and "are here" in note for note in images.notes)


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
    assert [flowers.declared.count(part) for part in ("train", "val", "test")] == [4, 0, 2]


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
    assert images.declared.count("val") == 2


def test_named_sets__the_published_count_is_no_note(root, monkeypatch):
    MAKE["caltech101"](root)
    entry = NAMED["caltech101"]
    real = type(entry)(**{**vars(entry), "portions": (type(entry.portions[0])("", 2, {}),)})
    monkeypatch.setitem(NAMED, "caltech101", real)
    assert not [note for note in open_images("caltech101", root=root).notes if "are here" in note]


def test_is_named__a_path_wins_unless_a_root_is_given(root, make_folder, monkeypatch):
    MAKE["dtd"](root)
    photos = make_folder("a/1.png", "b/1.png", root="dtd")
    monkeypatch.chdir(photos.parent)
    assert open_images("dtd").classes == ("a", "b")
    assert open_images("dtd", root=root).classes == ("banded", "woven")
    assert open_images(Path("dtd"), root=root).classes == ("a", "b")


def test_data_root__is_the_flag_then_the_environment_then_the_cache(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("PAUCAL_DATA", raising=False)
    assert data_root() == tmp_path / "home/.cache/paucal/data"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert data_root() == tmp_path / "cache/paucal/data"
    monkeypatch.setenv("PAUCAL_DATA", str(tmp_path / "sets"))
    assert data_root() == tmp_path / "sets"
    assert data_root("here") == tmp_path / "here"
    MAKE["dtd"](data_root())
    assert open_images("dtd").location == str(tmp_path / "sets")


@pytest.mark.parametrize("name", NAMED)
def test_missing_set__says_what_to_fetch_and_where_to_put_it(name, root):
    with pytest.raises(UserError) as error:
        open_images(name, root=root)
    message, entry = str(error.value), NAMED[name]
    assert message.startswith(f"the data set '{name}' is not in {root}: ")
    assert f"put {entry.files} from {entry.source} into {root / entry.folder}" in message
    assert "--data-root" in message
    assert ("--download" in message) == (name != "cars")
    assert list(root.iterdir()) == []


def test_cars__cannot_be_fetched(root):
    with pytest.raises(UserError, match="torchvision cannot fetch it any more"):
        open_images("cars", root=root, download=True)


def test_download__asks_torchvision_for_every_part_and_opens_what_it_brought(root, monkeypatch):
    fetched = []

    def fetch(name, folder, portion):
        fetched.append((name, folder, portion.part))
        if len(fetched) == 1:
            MAKE["dtd"](folder)

    monkeypatch.setattr(named_store, "fetch_portion", fetch)
    images = open_images("dtd", root=root, download=True)
    assert fetched == [("dtd", root, part) for part in ("train", "val", "test")]
    assert rows(images) == expected_rows("dtd")
    open_images("dtd", root=root, download=True)
    assert len(fetched) == 3  # what is there is not fetched again


def test_download__unpacks_an_official_archive_that_lies_there(root, monkeypatch):
    import tarfile

    from torchvision.datasets import DTD, utils

    elsewhere = root.parent / "elsewhere"
    elsewhere.mkdir()
    MAKE["dtd"](elsewhere)
    (root / "dtd").mkdir()
    archive = root / "dtd" / "dtd-r1.0.1.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(elsewhere / "dtd" / "dtd", "dtd")
    monkeypatch.setattr(DTD, "_MD5", utils.calculate_md5(archive))
    assert rows(open_images("dtd", root=root, download=True)) == expected_rows("dtd")


def test_download__that_fails_is_one_sentence(root, monkeypatch):
    def fetch(name, folder, portion):
        raise OSError("<urlopen error no route>")

    monkeypatch.setattr(named_store, "fetch_portion", fetch)
    with pytest.raises(
        UserError, match=r"'dtd' could not be fetched \(<urlopen error no route>\); try again, or put dtd"
    ):
        open_images("dtd", root=root, download=True)


def test_missing_package__is_named(root, monkeypatch):
    MAKE["pcam"](root)
    monkeypatch.setattr(named_store.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"PatchCamelyon needs the package h5py.*pip install 'paucal\[datasets\]'"):
        open_images("pcam", root=root)


class Trap:
    """Leaves a folder behind when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_cifar__a_foreign_pickle_is_never_loaded(tmp_path):
    MAKE["cifar10"](tmp_path)
    for name in ("data_batch_1", "test_batch", "batches.meta"):
        (tmp_path / "cifar-10-batches-py" / name).write_bytes(pickle.dumps(Trap(tmp_path / "sprung")))
    with pytest.raises(UserError, match=r"incomplete or damaged \(files are missing or differ from the official"):
        open_images("cifar10", root=tmp_path)
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize(
    ("name", "file", "text", "reason"),
    [
        ("dtd", "dtd/dtd/labels/train1.txt", "../secret.jpg\n", "leads out of the folder"),
        ("aircraft", "fgvc-aircraft-2013b/data/images_variant_test.txt", "../../../x 707-320\n", "leads out"),
        ("aircraft", "fgvc-aircraft-2013b/data/images_variant_test.txt", "/etc/x 707-320\n", "not in the subpath"),
        ("food101", "food-101/meta/test.json", '{"waffles": ["../../../x"], "apple_pie": []}', "leads out"),
        ("food101", "food-101/meta/test.json", '{"waffles": []}', "different classes"),
        ("food101", "food-101/meta/test.json", "{", "Expecting property name"),
        ("pets", "oxford-iiit-pet/annotations/test.txt", "a b\n", "not enough values"),
        ("pets", "oxford-iiit-pet/annotations/test.txt", "Abyssinian_x 1 1 1\n", "different classes"),
        ("gtsrb", "gtsrb/GT-final_test.csv", "Filename;ClassId\n00000.ppm;43\n", "not among its 43 classes"),
        ("dtd", "dtd/dtd/labels/test1.txt", "banded/a.jpg\nwoven/b.jpg\nwoven/b.jpg\n", "listed twice"),
    ],
)
def test_damaged_lists__are_one_sentence(name, file, text, reason, root):
    MAKE[name](root)
    (root / file).write_text(text)
    with pytest.raises(UserError, match="incomplete or damaged") as error:
        open_images(name, root=root)
    assert reason in str(error.value)
    assert "\n" not in str(error.value)


def test_unfinished_unpacking__leaves_an_image_that_is_named(root):
    MAKE["dtd"](root)
    (root / "dtd/dtd/images/woven/woven_val.jpg").unlink()
    with pytest.raises(UserError, match=r"1 of 6 images cannot be read \(dtd/dtd/images/woven/woven_val.jpg\)"):
        cache_images(open_images("dtd", root=root))


def test_pcam__points_into_no_other_file(root):
    MAKE["pcam"](root)
    file = root / "pcam" / "camelyonpatch_level_2_split_test_x.h5"
    with h5py.File(root / "other.h5", "w") as other:
        other["x"] = np.zeros((2, 96, 96, 3), dtype=np.uint8)
    with h5py.File(file, "w") as damaged:
        damaged["x"] = h5py.ExternalLink(str(root / "other.h5"), "x")
    with pytest.raises(UserError, match="no data set 'x' of its own"):
        open_images("pcam", root=root)
    with h5py.File(file, "w") as damaged:
        damaged["x"] = np.zeros((2, 96, 96), dtype=np.uint8)
    with pytest.raises(UserError, match="not 8-bit RGB images"):
        open_images("pcam", root=root)
    file.write_bytes(b"no HDF5")
    with pytest.raises(UserError, match="incomplete or damaged"):
        open_images("pcam", root=root)


def test_pcam__a_file_that_changed_is_an_unreadable_image(root):
    MAKE["pcam"](root)
    images = pickle.loads(pickle.dumps(open_images("pcam", root=root)))
    (root / "pcam" / "camelyonpatch_level_2_split_test_x.h5").write_bytes(b"gone")
    with pytest.raises(UnreadableImage, match=r"image 0 of camelyonpatch_level_2_split_test_x\.h5"):
        images.store.read(4)


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
