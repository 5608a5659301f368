"""Parquet files on object storage: fsspec's own memory stands for it."""

import os
import pickle

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data.conftest import encode
from data.shards.made_sets import CLASSES, number_of, numbered
from paucal.data.decode import DecodeOptions, UnreadableImage
from paucal.data.decoded.prepare import prepare_images
from paucal.data.shards import folders as place_module
from paucal.data.shards.folders import RemoteShardFolder, upload_folder
from paucal.data.shards.stream import StreamOrder
from paucal.data.shards.writing import write_shards
from paucal.data.sources.opening import open_images
from paucal.types import UserError

URL = "memory://bucket/rows"


@pytest.fixture
def storage(tmp_path, cache):
    """Train and test, each in two files of up to 30 images."""
    (tmp_path / "made").mkdir()
    write_shards(numbered(100, ("train", "test")), tmp_path / "made", "parquet", max_images=30)
    upload_folder(tmp_path / "made", URL)
    files = fsspec.filesystem("memory")
    yield files
    if files.exists("/bucket"):
        files.rm("/bucket", recursive=True)


def test_remote_parquet__is_what_it_is_on_this_machine(storage, cache, fetched, tmp_path):
    images, here = open_images(URL), open_images(tmp_path / "made")
    assert fetched == []  # labels are read where they lie
    assert (len(images), images.name, images.location, images.classes) == (100, "rows", URL, CLASSES)
    assert (list(images.keys), images.labels.tolist()) == (here.keys, here.labels.tolist())
    assert list(images.declared_splits) == here.declared_splits
    assert images.notes[0].startswith("100 images in 4 shards are streamed: they are not decoded before the run")
    assert sorted(number_of(images.store.read(n)) for n in range(100)) == list(range(100))
    assert all(number_of(images.store.read(n)) % 3 == images.labels[n] for n in range(100))
    assert fetched == [f"{part}-00000{n}.parquet" for part in ("test", "train") for n in range(2)]
    store = pickle.loads(pickle.dumps(images.store))
    assert number_of(store.read(99)) == number_of(images.store.read(99))
    assert len(fetched) == 4


def test_remote_parquet__streams_in_the_order_of_its_row_groups(storage, cache):
    images = open_images(URL)
    assert images.stream is not None
    assert len(np.unique(images.stream.shards)) == 4
    orders = [StreamOrder(images.stream, seed)[np.arange(len(images))] for seed in (0, 0, 1)]
    assert orders[0].tolist() == orders[1].tolist() != orders[2].tolist()
    assert sorted(orders[0].tolist()) == list(range(100))
    prepared, left = prepare_images(images, DecodeOptions(side=64))
    assert (len(prepared), left) == (100, [])


def test_remote_parquet__files_make_room_for_each_other(storage, cache, fetched, monkeypatch):
    images = open_images(URL)
    size = max(shard.size for shard in images.store._files)  # type: ignore[attr-defined]
    monkeypatch.setattr(place_module, "MAX_CACHE_BYTES", 2 * size + 100)
    for n in range(100):
        images.store.read(n)
        assert len(list(cache.rglob("*.parquet"))) <= 2
    assert len(fetched) == 4


def test_remote_parquet__one_file_by_its_name_where_storage_lists_nothing(storage, cache, monkeypatch):
    monkeypatch.setattr(RemoteShardFolder, "list_files", lambda _: None)
    images = open_images(f"{URL}/test-000000.parquet")
    assert (images.name, images.location) == ("test-000000", f"{URL}/test-000000.parquet")
    assert set(images.declared_splits) == {""}
    assert number_of(images.store.read(7)) % 3 == images.labels[7]
    assert len(images) == 30
    with pytest.raises(UserError, match=r"none\.parquet does not exist; check the address"):
        open_images(f"{URL}/none.parquet")


def test_remote_parquet__of_the_same_size_is_fetched_again_once_it_was_changed(cache, tmp_path):
    folder = tmp_path / "storage"
    folder.mkdir()

    def written(labels: list[int]) -> int:
        pictures = [{"bytes": encode(number), "path": None} for number in range(4)]
        table = pa.table({"image": pictures, "label": pa.array(labels, pa.int64())})
        pq.write_table(
            table, folder / "train.parquet", compression="none", use_dictionary=False, write_statistics=False
        )
        os.utime(folder / "train.parquet", ns=(labels[0] * 10**9, labels[0] * 10**9))
        return (folder / "train.parquet").stat().st_size

    sizes = []
    for labels in ([0, 1, 0, 1], [1, 0, 1, 0]):
        sizes.append(written(labels))
        images = open_images(f"file://{folder}")
        assert images.labels.tolist() == labels
        images.store.read(0)  # downloads the file
    assert sizes[0] == sizes[1]


def test_remote_parquet__with_several_labels(cache, tmp_path, make_parquet):
    path = make_parquet("s/train.parquet", 4, {"label": pa.array([["a", "b"], ["b"], [], ["a"]])})
    upload_folder(path.parent, "memory://labels/set")
    images = open_images("memory://labels/set")
    assert images.multi_hot is not None
    assert images.multi_hot.tolist() == [[1, 1], [0, 1], [0, 0], [1, 0]]
    fsspec.filesystem("memory").rm("/labels", recursive=True)


def test_remote_parquet__says_what_is_wrong(storage, cache, monkeypatch):
    images = open_images(URL)
    storage.pipe_file("/bucket/rows/test-000001.parquet", b"short")
    with pytest.raises(UnreadableImage, match=r"test-000001\.parquet of memory.* has 5 bytes, but \d+ bytes according"):
        images.store.read(30)
    with pytest.raises(UserError, match=r"memory.*test-000001\.parquet cannot be read as a Parquet file"):
        open_images(URL)
    storage.rm("/bucket/rows/test-000001.parquet")
    with pytest.raises(UnreadableImage, match=r"test-000001\.parquet is in the index, but not in memory"):
        images.store.read(30)
    tries = []

    def fail(*_):
        tries.append(1)
        raise ConnectionError("the network is down")

    monkeypatch.setattr(RemoteShardFolder, "open_file", fail)
    with pytest.raises(UserError, match=r"cannot be read \(the network is down, after 3 tries in 0 s\)"):
        open_images(URL)
    assert len(tries) == 3
