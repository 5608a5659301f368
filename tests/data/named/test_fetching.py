"""Data sets by name whose files are not there: what is said, and what is fetched."""

import pytest

from data.fake_sets import MAKE, expected_rows, rows
from paucal.data.named import store as named_store
from paucal.data.named.table import NAMED, data_root
from paucal.data.sources.opening import open_images
from paucal.types import UserError


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
        open_images(name, root=root, labelled=NAMED[name].labelled)
    message, entry = str(error.value), NAMED[name]
    assert message.startswith(f"the data set '{name}' is not in {root}: ")
    assert f"put {entry.files} from {entry.source} into {root / entry.folder}" in message
    assert "--data-root" in message
    assert ("--download" in message) == entry.downloadable
    assert list(root.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "obstacle"),
    [
        ("cars", "torchvision can no longer download it, so put"),
        ("fer2013", "Kaggle only offers it to signed-in users, so put fer2013.csv"),
        ("ucf101", "extracted from videos"),
        ("hateful_memes", "its licence must be accepted manually, so put train.jsonl"),
        ("webvision", "its archives must be downloaded manually, so put the folders google, flickr and info"),
    ],
)
def test_set__that_no_program_can_fetch_says_why(name, obstacle, root):
    with pytest.raises(UserError, match=obstacle):
        open_images(name, root=root, download=True)


def test_download__asks_torchvision_for_every_part_and_opens_what_it_brought(root, monkeypatch):
    fetched = []

    def fetch(name, folder, portion):
        fetched.append((name, folder, portion.part))
        if len(fetched) == 1:
            MAKE["dtd"](folder)

    monkeypatch.setattr(named_store, "download_portion", fetch)
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

    monkeypatch.setattr(named_store, "download_portion", fetch)
    with pytest.raises(
        UserError, match=r"'dtd' could not be downloaded \(<urlopen error no route>\); try again, or put dtd"
    ):
        open_images("dtd", root=root, download=True)


def test_missing_package__is_named(root, monkeypatch):
    MAKE["pcam"](root)
    monkeypatch.setattr(named_store.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"PatchCamelyon needs the package h5py.*pip install 'paucal\[datasets\]'"):
        open_images("pcam", root=root)
