"""Zip and tar files of folders: the same set as the folder itself, and no way out of them."""

import io
import pickle
import stat
import tarfile
import zipfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data.conftest import encode
from paucal.data.decode import UnreadableImage
from paucal.data.sources.opening import open_images
from paucal.types import UserError


def pack(file: Path, content: dict[str, bytes]) -> Path:
    if file.suffix == ".zip":
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in content.items():
                archive.writestr(name, data)
        return file
    with tarfile.open(file, "w:gz" if file.suffix == ".tgz" else "w") as archive:
        for name, data in content.items():
            header = tarfile.TarInfo(name)
            header.size = len(data)
            archive.addfile(header, io.BytesIO(data))
    return file


KINDS = pytest.mark.parametrize("kind", ["zip", "tar"])
PICTURES = {f"{name}/{n}.png": encode(n) for name in ("cat", "dog") for n in range(4)}


def same(first, second) -> None:
    assert (first.keys, first.classes, first.declared_splits) == (second.keys, second.classes, second.declared_splits)
    assert first.labels.tolist() == second.labels.tolist()
    for index in range(len(first)):
        assert first.store.read(index).tobytes() == second.store.read(index).tobytes()


def unpacked(folder: Path, content: dict[str, bytes]) -> Path:
    for name, data in content.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder


@KINDS
@pytest.mark.parametrize("base", ["", "photos/", "a/b/"])
def test_archive__is_the_folder_it_was_made_of(tmp_path, kind, base):
    content = {f"{base}{name}": data for name, data in PICTURES.items()} | {f"{base}readme.txt": b"x"}
    images = open_images(pack(tmp_path / f"set.{kind}", content))
    same(images, open_images(unpacked(tmp_path / "folder", PICTURES)))
    assert images.name == "set"
    assert any("skipped" in note for note in images.notes)


@KINDS
def test_archive__has_parts_and_unlabelled_images(tmp_path, kind):
    content = {f"{part}/{name}": data for part in ("train", "test") for name, data in PICTURES.items()}
    file = pack(tmp_path / f"set.{kind}", content)
    assert set(open_images(file).declared_splits) == {"train", "test"}
    loose = pack(tmp_path / f"loose.{kind}", {"1.png": encode(1), "x/y/2.png": encode(2)})
    assert open_images(loose, labelled=False).keys == ["1.png", "x/y/2.png"]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sets(
        st.lists(st.sampled_from(["train", "val", "a", "b", "c d", "ü"]), min_size=1, max_size=3).map("/".join),
        min_size=1,
        max_size=6,
    ),
    st.booleans(),
)
def test_archive__of_any_layout_is_the_folder(tmp_path_factory, folders, labelled):
    content = {f"{folder}/{number}.png": encode(number) for number, folder in enumerate(sorted(folders))}
    base = tmp_path_factory.mktemp("layout")
    made = unpacked(base / "set", {f"top/{name}": data for name, data in content.items()} | {"top2.txt": b""})
    for kind in ("zip", "tar"):
        archive = pack(base / f"top.{kind}", content)
        outcomes = []
        for place in (made / "top", archive):
            try:
                found = open_images(place, labelled=labelled)
                outcomes.append(
                    (len(found), found.classes, sorted(found.declared_splits), sorted(found.labels.tolist()))
                )
            except UserError:
                outcomes.append(None)
        stripped = len(folders) == 1 or len({folder.split("/")[0] for folder in folders}) == 1
        if not stripped:  # a single top folder is the root of an archive
            assert outcomes[0] == outcomes[1]


@KINDS
@pytest.mark.parametrize("name", ["../x.png", "cat/../../x.png", "/etc/x.png", "..\\x.png", "C:\\x.png"])
def test_archive__that_leads_out_of_itself_is_refused(tmp_path, kind, name):
    with pytest.raises(UserError, match="is absolute or leads to a parent folder"):
        open_images(pack(tmp_path / f"set.{kind}", {**PICTURES, name: encode(1)}))


def test_tar__links_are_no_images(tmp_path):
    file = pack(tmp_path / "set.tar", PICTURES)
    with tarfile.open(file, "a") as archive:
        link = tarfile.TarInfo("cat/link.png")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    images = open_images(file)
    assert len(images) == len(PICTURES)
    assert "1 link was left out (cat/link.png): links in archives are not followed" in images.notes


def test_zip__links_are_no_images(tmp_path):
    file = pack(tmp_path / "set.zip", PICTURES)
    with zipfile.ZipFile(file, "a") as archive:
        for name in ("dog/link.png", "cat/link.png", "cat/.hidden.png"):
            link = zipfile.ZipInfo(name)
            link.create_system, link.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
            archive.writestr(link, "2.png")
    images = open_images(file)
    assert len(images) == len(PICTURES)
    assert "2 links were left out (cat/link.png, ...): links in archives are not followed" in images.notes


def test_tar__file_with_two_names_is_two_images(tmp_path):
    file = pack(tmp_path / "set.tar", PICTURES)
    with tarfile.open(file, "a") as archive:
        link = tarfile.TarInfo("cat/copy.png")
        link.type, link.linkname = tarfile.LNKTYPE, "cat/2.png"
        archive.addfile(link)
    images = open_images(file)
    assert len(images) == len(PICTURES) + 1
    contents = [images.store.source(images.keys.index(name)) for name in ("cat/2.png", "cat/copy.png")]
    assert contents[0] == contents[1] == PICTURES["cat/2.png"]


@pytest.mark.parametrize("damage", ["cut off", "other bytes"])
def test_tar__that_ends_early_is_refused(tmp_path, damage):
    file = pack(tmp_path / "set.tar", PICTURES)
    with tarfile.open(file) as archive:
        begin = [member.offset for member in archive][5]
    content = file.read_bytes()
    file.write_bytes(content[:begin] + (b"\xff" * 512 + content[begin + 512 :] if damage == "other bytes" else b""))
    with pytest.raises(UserError, match="truncated or damaged"):
        open_images(file)


def test_archive__compressed_as_a_whole_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"compressed as a whole.*\.zip or uncompressed \.tar"):
        open_images(pack(tmp_path / "set.tgz", PICTURES))


@pytest.mark.parametrize("name", ["set.zip", "set.tar"])
@pytest.mark.parametrize("content", [b"", b"PK\x03\x04" + b"\0" * 40, b"x" * 2000])
def test_archive__damaged_ends_in_a_sentence(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError):
        open_images(tmp_path / name)


def test_zip__image_of_more_bytes_than_are_read_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("paucal.data.sources.archive.MAX_IMAGE_BYTES", 10_000)
    images = open_images(pack(tmp_path / "set.zip", {**PICTURES, "cat/bomb.png": b"\0" * 1_000_000}))
    with pytest.raises(UnreadableImage, match=r"cat/bomb\.png is larger than the limit of 10,000 bytes"):
        images.store.check(images.keys.index("cat/bomb.png"))


def test_zip__damaged_image_is_named(tmp_path):
    file = tmp_path / "set.zip"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, data in PICTURES.items():
            archive.writestr(name, data)
    content = bytearray(file.read_bytes())
    place = content.index(PICTURES["dog/2.png"][30:60], content.index(b"dog/2.png"))
    content[place] ^= 0xFF
    file.write_bytes(bytes(content))
    images = open_images(file)
    with pytest.raises(UnreadableImage, match=r"dog/2\.png"):
        images.store.read(images.keys.index("dog/2.png"))
    assert images.store.read(0).size == (12, 8)


@KINDS
def test_archive__is_read_by_other_processes(tmp_path, kind):
    store = open_images(pack(tmp_path / f"set.{kind}", PICTURES)).store
    here = [store.read(index).tobytes() for index in range(len(PICTURES))]
    there = pickle.loads(pickle.dumps(store))
    assert [there.read(index).tobytes() for index in range(len(PICTURES))] == here
