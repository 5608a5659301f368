"""Archives of images and masks: unpacked once, read like the folder, and refused where they are hostile."""

import io
import os
import shutil
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest

from cli.calls import call, make_scenes
from paucal.data.decoded.cache_folder import unpacked_archives_folder
from paucal.data.masks.pairs import find_pairs
from paucal.types import UserError


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PAUCAL_IMAGE_CACHE", str(tmp_path / "cache" / "images"))
    return tmp_path / "cache"


def packed(folder: Path, suffix: str, inside: str = "") -> Path:
    """Return an archive of a folder, whose files lie in a folder `inside`."""
    return Path(shutil.make_archive(str(folder), suffix, folder.parent if inside else folder, inside or None))


@pytest.mark.parametrize(("suffix", "inside"), [("zip", ""), ("tar", ""), ("zip", "scenes")])
def test_archives__have_the_pairs_of_their_folder(tmp_path: Path, suffix: str, inside: str):
    folder = make_scenes(tmp_path / "scenes", 3)
    (folder / "train.txt").write_text("00\n01\n02\n")
    (folder / "other.bin").write_bytes(b"7")
    archive = packed(folder, suffix, inside)
    expected, found = find_pairs(folder), find_pairs(archive)
    assert [pair.key for pair in found.pairs] == [pair.key for pair in expected.pairs]
    assert [pair.part for pair in found.pairs] == [pair.part for pair in expected.pairs]
    for mine, theirs in zip(found.pairs, expected.pairs, strict=True):
        assert [path.read_bytes() for path in mine.masks] == [path.read_bytes() for path in theirs.masks]
    assert found.root.is_relative_to(unpacked_archives_folder())
    assert not list(found.root.rglob("*.bin"))
    before = found.root.stat().st_mtime_ns
    assert find_pairs(archive).root.stat().st_mtime_ns == before  # the cache has it


def test_archives__note_the_links_that_are_left_out(tmp_path: Path):
    folder = make_scenes(tmp_path / "scenes", 3)
    (folder / "images" / "03.png").symlink_to("00.png")
    note = "1 link was left out (images/03.png): links in archives are not followed"
    archive = packed(folder, "tar")
    assert note in find_pairs(archive).notes
    assert note in find_pairs(archive).notes  # also of the cache


def test_archives__are_unpacked_again_once_the_cache_has_lost_a_file(tmp_path: Path):
    archive = packed(make_scenes(tmp_path / "scenes", 3), "zip")
    pairs = find_pairs(archive).pairs
    for file in (find_pairs(archive).root / pairs[0].key, *pairs[0].masks):
        file.unlink()
    assert find_pairs(archive).pairs == pairs
    assert pairs[0].masks[0].is_file()
    assert [entry.name for entry in unpacked_archives_folder().iterdir()] == [find_pairs(archive).root.name]


def test_archives__that_another_process_unpacks_at_the_same_time_are_kept(tmp_path: Path, monkeypatch):
    archive = packed(make_scenes(tmp_path / "scenes", 3), "zip")
    real, inner = os.replace, []

    def replace(source, target):
        if not inner:
            inner.append(1)
            inner.append(find_pairs(archive).pairs)  # the other process
        return real(source, target)

    monkeypatch.setattr(os, "replace", replace)
    assert find_pairs(archive).pairs == inner[1]


def test_commands__read_archives_and_the_cache_is_shown_and_cleared(tmp_path: Path, capsys: pytest.CaptureFixture):
    archive = packed(make_scenes(tmp_path / "scenes", 12), "zip")
    assert call("segment", archive, "--print-config") == 0
    capsys.readouterr()
    assert call("check", archive) == 0
    assert "12 images with masks" in " ".join(capsys.readouterr().out.split())
    assert call("cache") == 0
    assert "of unpacked masks" in capsys.readouterr().out
    assert call("cache", "--clear") == 0
    assert not unpacked_archives_folder().exists()


def hostile(path: Path, kind: str) -> Path:
    name = {"escape": "../images/1.png", "absolute": "/images/1.png"}.get(kind, "images/1.png")
    if kind == "link":
        with tarfile.open(path.with_suffix(".tar"), "w") as file:
            entry = tarfile.TarInfo("images/1.png")
            entry.type, entry.linkname = tarfile.SYMTYPE, "/etc/passwd"
            file.addfile(entry)
        return path.with_suffix(".tar")
    if kind == "compressed":
        with tarfile.open(path.with_suffix(".tar.gz"), "w:gz") as file:
            file.addfile(tarfile.TarInfo(name), io.BytesIO())
        return path.with_suffix(".tar.gz")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr(name, np.zeros(1 << 20, np.uint8).tobytes() if kind == "large" else b"")
    return path


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("escape", "is absolute or leads to a parent folder"),
        ("absolute", "is absolute or leads to a parent folder"),
        ("link", "no masks|no images|has no"),
        ("compressed", "is compressed as a whole"),
        ("large", "are free in the cache folder"),
    ],
)
def test_hostile_archives__are_refused_and_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, words: str
):
    if kind == "large":
        monkeypatch.setattr("paucal.data.masks.pairs.usable_disk_bytes", lambda folder: 1 << 19)
    with pytest.raises(UserError, match=words):
        find_pairs(hostile(tmp_path / "set.zip", kind))
    assert not [path for path in unpacked_archives_folder().rglob("*") if path.is_file()]
    assert not (tmp_path / "images").exists()
