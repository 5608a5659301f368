"""Damaged shards: named and refused, or left out and counted by choice."""

import errno
import os
from pathlib import Path

import pyarrow as pa
import pytest

from data.shards.made_sets import number_of, numbered
from paucal.data.decoded.cache_folder import CACHE_VARIABLE, clear_downloaded_shards
from paucal.data.shards.folders import RemoteShardFolder, upload_folder
from paucal.data.shards.index import INDEX_NAME
from paucal.data.shards.writing import write_shards
from paucal.data.sources.opening import open_images
from paucal.runner.images import open_undecoded
from paucal.settings.shared import LabelledDataSettings
from paucal.types import UserError


@pytest.fixture
def written(tmp_path: Path, monkeypatch) -> Path:
    """Four shards of 25 images with their index."""
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    folder = tmp_path / "set"
    folder.mkdir()
    write_shards(numbered(100), folder, max_images=25)
    return folder


def damage(folder: Path, how: str) -> None:
    if how == "cut off":
        os.truncate(folder / "shard-000001.tar", 4000)
    elif how == "missing":
        (folder / "shard-000001.tar").unlink()
    else:
        (folder / "shard-000001.tar").write_bytes(b"no tar at all" * 1000)


@pytest.mark.parametrize("how", ["cut off", "missing", "other bytes"])
@pytest.mark.parametrize("indexed", [True, False])
def test_damaged_shard__is_refused_or_left_out_and_counted(written, how, indexed):
    whole = {key: number_of(image) for key, image in pixels(open_images(written))}
    damage(written, how)
    if not indexed:
        (written / INDEX_NAME).unlink()
    if how == "missing" and not indexed:  # nothing says that there should be another
        assert len(open_images(written)) == 75
        return
    with pytest.raises(UserError, match=r"shard-000001\.tar.*--on-bad-image skip"):
        open_images(written)
    images = open_images(written, skip_damaged=True)
    assert len(images) == 75
    assert {key: number_of(image) for key, image in pixels(images)} == {
        key: number for key, number in whole.items() if not key.startswith("shard-000001.tar")
    }
    assert all(
        number % 3 == label for number, label in zip(map(whole.__getitem__, images.keys), images.labels, strict=True)
    )
    (note,) = (note for note in images.notes if "left out" in note)
    assert note.startswith("1 of 4 shards cannot be read (shard-000001.tar); ")
    assert ("with 25 images" in note) == indexed


def pixels(images):
    return [(key, images.store.read(number)) for number, key in enumerate(images.keys)]


def test_damaged_shards__all_of_them_are_refused(written):
    for file in written.glob("*.tar"):
        os.truncate(file, 100)
    with pytest.raises(UserError, match=r"4 of 4 shards cannot be read \(shard-000000\.tar, .*, \.\.\.\)"):
        open_images(written, skip_damaged=True)


def test_damaged_shard__is_left_out_by_the_flag_for_images(written):
    damage(written, "cut off")
    settings = LabelledDataSettings(data=str(written), on_bad_image="skip")
    assert len(open_undecoded(settings)) == 75


def test_damaged_parquet__is_left_out_and_counted(tmp_path):
    folder = tmp_path / "rows"
    folder.mkdir()
    write_shards(numbered(100), folder, max_images=25, form="parquet")
    first = min(folder.glob("*.parquet"))
    os.truncate(first, first.stat().st_size // 2)
    with pytest.raises((UserError, pa.ArrowException)):
        open_images(folder)
    images = open_images(folder, skip_damaged=True)
    assert len(images) == 75
    assert any(note.startswith(f"1 of 4 shards cannot be read ({first.name})") for note in images.notes)


def test_damaged_footer_of_remote_parquet__is_no_failure_of_the_network(storage, tmp_path):
    folder = tmp_path / "rows"
    folder.mkdir()
    write_shards(numbered(100), folder, max_images=25, form="parquet")
    first = min(folder.glob("*.parquet"))
    content = first.read_bytes()
    first.write_bytes(content[:-200] + b"\xff" * 190 + content[-10:])
    words = rf"{first.name} cannot be read as a Parquet file \(Could.*\); give another file"
    for place in (folder, "memory://bucket/footer"):
        if place != folder:
            upload_folder(folder, place)
        with pytest.raises(UserError, match=words):
            open_images(place)
        assert len(open_images(place, skip_damaged=True)) == 75


@pytest.mark.parametrize("form", ["tar", "parquet"])
@pytest.mark.parametrize(
    ("problem", "words"),
    [
        (ConnectionError("the network is down"), "the network is down"),
        (OSError(errno.ENOSPC, "No space left on device"), "full|No space left"),
    ],
)
def test_shards_that_cannot_be_fetched__are_not_left_out_as_damaged(
    storage, tmp_path, monkeypatch, form, problem, words
):
    folder = tmp_path / "unindexed"
    folder.mkdir()
    write_shards(numbered(100), folder, max_images=25, form=form)
    (folder / INDEX_NAME).unlink(missing_ok=True)
    upload_folder(folder, "memory://bucket/unindexed")
    assert len(open_images("memory://bucket/unindexed", skip_damaged=True)) == 100
    clear_downloaded_shards(tmp_path / "cache")
    name = "_download" if form == "tar" else "open_file"
    bring = getattr(RemoteShardFolder, name)

    def fail(self, shard, *more):
        if "000001" in getattr(shard, "name", str(shard)):
            raise problem
        return bring(self, shard, *more)

    monkeypatch.setattr(RemoteShardFolder, name, fail)
    with pytest.raises(UserError, match=words):
        open_images("memory://bucket/unindexed", skip_damaged=True)
