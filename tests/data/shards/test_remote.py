"""Shards on object storage: fsspec's own memory stands for it."""

import errno
import os
import pickle
from pathlib import Path
from types import SimpleNamespace

import fsspec
import pytest
from fsspec.spec import AbstractBufferedFile

from data.shards.made_sets import URL, number_of
from paucal.data.decode import DecodeOptions, UnreadableImage
from paucal.data.decoded.cache_folder import CACHE_VARIABLE, SHARDS, clear_downloaded_shards, folder_bytes
from paucal.data.decoded.prepare import prepare_images
from paucal.data.shards import folders as place_module
from paucal.data.shards import requests
from paucal.data.shards.folders import RemoteShardFolder, upload_folder
from paucal.data.shards.index import INDEX_NAME
from paucal.data.shards.requests import RetriesFailed, retry
from paucal.data.sources.opening import open_images
from paucal.types import UserError


def shards_in(cache: Path) -> list[str]:
    return sorted(file.name for file in cache.rglob("*.tar"))


def test_remote__is_opened_by_its_index_and_fetched_when_needed(storage, cache, fetched):
    images = open_images(URL)
    assert (len(images), images.name, images.location, images.classes) == (100, "set", URL, ("even", "odd", "third"))
    assert images.stream is not None  # also where it is small: it is not all there
    assert fetched == []
    assert number_of(images.store.read(0)) % 3 == images.labels[0]
    assert fetched == ["shard-000000.tar"]
    store = pickle.loads(pickle.dumps(images.store))
    assert sorted(number_of(store.read(n)) for n in range(100)) == list(range(100))
    assert fetched == [f"shard-00000{n}.tar" for n in range(4)]
    again = open_images(URL)
    assert number_of(again.store.read(99)) % 3 == again.labels[99]
    assert len(fetched) == 4
    assert folder_bytes(cache / SHARDS) > 4 * 25 * 512
    assert clear_downloaded_shards(cache) > 0
    assert shards_in(cache) == []


def test_remote__an_index_is_requested_in_pieces(storage, cache, monkeypatch):
    class InPieces(AbstractBufferedFile):
        def _fetch_range(self, start, end):
            sizes.append(end - start)
            return storage.cat_file(self.path, start, end)

    sizes, whole = [], open_images(URL)
    monkeypatch.setattr(place_module, "_BLOCK_BYTES", 1000)
    monkeypatch.setattr(
        type(storage), "open", lambda self, path, mode, block_size: InPieces(self, path, mode, block_size)
    )
    assert list(open_images(URL).keys) == list(whole.keys)
    assert sum(sizes) >= storage.size(f"/bucket/set/{INDEX_NAME}") > 2000
    assert max(sizes) <= 2000  # a piece, and one read ahead


def test_remote__shards_make_room_for_each_other(storage, cache, fetched, monkeypatch):
    images = open_images(URL)
    size = images.store._index.files[0].size  # type: ignore[attr-defined]
    monkeypatch.setattr(place_module, "MAX_CACHE_BYTES", 2 * size + 100)
    for n in range(100):
        images.store.read(n)
        assert len(shards_in(cache)) <= 2
    assert shards_in(cache) == ["shard-000002.tar", "shard-000003.tar"]
    assert fetched == [f"shard-00000{n}.tar" for n in range(4)]


def test_remote__another_process_may_make_room_at_the_same_time(storage, cache, monkeypatch):
    images = open_images(URL)
    images.store.read(0)
    (first,) = cache.rglob("shard-000000.tar")
    real, looked = type(first).stat, []

    def removed(path, **options):
        looked.append(path)
        if looked.count(first) > 1:
            raise FileNotFoundError(2, "removed in the meantime")
        return real(path, **options)

    monkeypatch.setattr(type(first), "stat", removed)
    RemoteShardFolder(URL).fetch_shard(images.store._index.files[1])


def test_remote__without_an_index_is_looked_through_once(storage, cache, fetched):
    whole = open_images(URL)
    storage.rm(f"/bucket/set/{INDEX_NAME}")
    images = open_images(URL)
    assert list(images.keys) == list(whole.keys)
    assert images.labels.tolist() == whole.labels.tolist()
    assert len(fetched) == 4
    clear = [file.unlink() for file in cache.rglob("*.tar")]
    assert len(clear) == 4
    assert len(open_images(URL)) == 100
    assert len(fetched) == 4


def test_remote__storage_that_lists_nothing_needs_the_index(storage, cache, monkeypatch):
    monkeypatch.setattr(RemoteShardFolder, "list_files", lambda _: None)
    assert len(open_images(URL)) == 100
    storage.rm(f"/bucket/set/{INDEX_NAME}")
    with pytest.raises(UserError, match="cannot be listed: check the address, or add the index"):
        open_images(URL)


def test_remote__missing_changed_and_unreachable_shards_are_named(storage, cache, monkeypatch):
    images = open_images(URL)
    storage.pipe_file("/bucket/set/shard-000001.tar", b"short")
    with pytest.raises(UnreadableImage, match=r"shard-000001\.tar of memory.* has 5 bytes, but \d+ bytes according"):
        images.store.read(30)
    with pytest.raises(UserError, match=r"shard-000001\.tar of memory.* was changed after it was indexed"):
        open_images(URL)
    storage.rm("/bucket/set/shard-000001.tar")
    with pytest.raises(UnreadableImage, match=r"shard-000001\.tar is in .*, but not in memory"):
        images.store.read(30)
    with pytest.raises(UserError, match=r"shard-000001\.tar is in .*, but not in memory"):
        open_images(URL)
    tries = []

    def fail(*_):
        tries.append(1)
        raise ConnectionError("the network is down")

    monkeypatch.setattr(RemoteShardFolder, "_download", fail)
    with pytest.raises(UnreadableImage, match=r"cannot be downloaded from memory.*is down, after 3 tries in"):
        images.store.read(60)
    assert len(tries) == 3
    assert list(cache.rglob("*.tmp")) == []


def test_remote__a_transfer_that_ends_early_is_tried_again(storage, cache, monkeypatch):
    images, whole, tries = open_images(URL), RemoteShardFolder._download, []

    def cut(self, name: str, target: Path) -> None:
        whole(self, name, target)
        tries.append(name)
        if len(tries) < 3:
            os.truncate(target, 100)

    monkeypatch.setattr(RemoteShardFolder, "_download", cut)
    assert number_of(images.store.read(60)) % 3 == images.labels[60]
    assert len(tries) == 3
    tries.clear()
    monkeypatch.setattr(requests, "_MIN_TRIES", 2)
    with pytest.raises(UnreadableImage, match=r"\(100 of \d+ bytes arrived, after 2 tries in 0 s\)"):
        images.store.read(30)


def test_remote__a_full_disk_is_no_fault_of_the_network(storage, cache, monkeypatch):
    images = open_images(URL)

    def fill(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(RemoteShardFolder, "_download", fill)
    with pytest.raises(UserError, match=r"the disk of .* is too full for the shard shard-000002\.tar .* free some"):
        images.store.read(60)


def test_retry__pauses_are_random_and_end_with_the_budget(monkeypatch):
    now, pauses = [0.0], []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        now[0] += seconds

    def fail() -> None:
        now[0] += 1.0
        raise ConnectionError("503 Slow Down")

    monkeypatch.setattr(requests, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    with pytest.raises(RetriesFailed, match=r"503 Slow Down, after \d+ tries in \d+ s"):
        retry(fail)
    assert 90 < now[0] <= 121  # the last pause would have gone beyond the budget
    assert max(pauses) <= 30
    assert all(pause <= 2 * 2**number for number, pause in enumerate(pauses))
    first, pauses[:], now[0] = pauses[0], [], 0.0
    with pytest.raises(RetriesFailed):
        retry(fail)
    assert pauses[0] != first
    with pytest.raises(FileNotFoundError):  # which another try would not find either
        retry(lambda: Path("/nowhere").read_bytes())


def test_remote__sentences_for_what_cannot_be_opened(cache, monkeypatch):
    with pytest.raises(UserError, match="the files in memory://nothing cannot be listed: check the address"):
        open_images("memory://nothing")
    files = fsspec.filesystem("memory")
    files.pipe_file("/rows/train.parquet", b"x")
    with pytest.raises(UserError, match=r"memory://rows/train\.parquet cannot be read as a Parquet file"):
        open_images("memory://rows")
    files.mv("/rows/train.parquet", "/rows/train.txt")
    with pytest.raises(UserError, match=r"no shards \(\.tar, \.parquet\) in memory://rows; check the address"):
        open_images("memory://rows")
    files.rm("/rows", recursive=True)
    with pytest.raises(UserError, match="cannot be opened"):
        open_images("nosuch://bucket/set")
    monkeypatch.setenv(CACHE_VARIABLE, "off")
    with pytest.raises(UserError, match="the cache is off or cannot be written"):
        open_images(URL)


def test_remote__chained_caches_of_fsspec_do(storage, cache):
    images = open_images("simplecache::memory://bucket/set")
    assert number_of(images.store.read(99)) % 3 == images.labels[99]


def test_remote__is_prepared_by_a_sample(storage, cache):
    images, left = prepare_images(open_images(URL), DecodeOptions(side=64))
    assert (len(images), left) == (100, [])


def test_upload__leaves_what_is_there(storage, tmp_path):
    with pytest.raises(UserError, match="already contains files"):
        upload_folder(tmp_path / "made", URL)
