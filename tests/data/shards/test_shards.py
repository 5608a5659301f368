"""Tar shards as people have them: opened as one set, and one clear sentence for what is wrong with them."""

import io
import json
import multiprocessing
import os
import pickle
import tarfile
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from data.conftest import encode
from data.shards.made_sets import number_of, numbered
from paucal.data.decode import UnreadableImage
from paucal.data.decoded.cache_folder import CACHE_VARIABLE
from paucal.data.shards import index as index_module
from paucal.data.shards import opening
from paucal.data.shards import tar as tar_module
from paucal.data.shards.folders import is_remote
from paucal.data.shards.index import INDEX_NAME
from paucal.data.shards.opening import split_of_shard
from paucal.data.shards.tar import sample_key
from paucal.data.shards.writing import write_shards
from paucal.data.sources.opening import open_images
from paucal.data.stores import Store
from paucal.types import UserError


def tar(file: Path, members: dict[str, bytes], form: int = tarfile.GNU_FORMAT, mode: str = "w") -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(file, mode, format=form) as archive:  # type: ignore[call-overload]
        for name, data in members.items():
            header = tarfile.TarInfo(name)
            header.size = len(data)
            archive.addfile(header, io.BytesIO(data))
    return file


def samples(numbers: range, label: str = ".cls") -> dict[str, bytes]:
    found = {}
    for n in numbers:
        found[f"{n:04d}.png"] = encode(n)
        found[f"{n:04d}{label}"] = str(n % 2).encode() if label == ".cls" else json.dumps({"label": n % 2}).encode()
    return found


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """Two shards of training images and one to test with, with labels and no index."""
    tar(tmp_path / "set" / "train-000.tar", samples(range(5)))
    tar(tmp_path / "set" / "train-001.tar", samples(range(5, 8)), tarfile.PAX_FORMAT)
    tar(tmp_path / "set" / "test-000.tar", samples(range(8, 10)))
    return tmp_path / "set"


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """Shards that paucal has written, with their index."""
    folder = tmp_path / "written"
    folder.mkdir()
    write_shards(numbered(60, ("train", "test")), folder, max_images=20)
    return folder


def test_shards__are_one_set_with_parts_labels_and_pixels(shards):
    images = open_images(shards)
    assert list(images.keys) == [
        *(f"test-000.tar/{n:04d}.png" for n in (8, 9)),
        *(f"train-000.tar/{n:04d}.png" for n in range(5)),
        *(f"train-001.tar/{n:04d}.png" for n in range(5, 8)),
    ]
    assert images.classes == ("0", "1")
    assert images.labels.tolist() == [0, 1, 0, 1, 0, 1, 0, 1, 0, 1]
    assert list(images.declared_splits) == ["test"] * 2 + ["train"] * 8
    assert [images.store.read(n).getpixel((0, 0))[0] for n in range(10)] == [8, 9, *range(8)]
    again = pickle.loads(pickle.dumps(images.store))
    assert again.read(3).tobytes() == images.store.read(3).tobytes()
    assert not list(shards.glob("*.npz"))  # nothing is written among people's data


def test_shards__are_looked_through_once(shards, monkeypatch):
    first = open_images(shards)
    monkeypatch.setattr(opening, "index_tar", lambda *_: pytest.fail("looked through again"))
    again = open_images(shards)
    assert list(again.keys) == list(first.keys)
    assert again.labels.tolist() == first.labels.tolist()
    monkeypatch.undo()
    tar(shards / "train-001.tar", samples(range(5, 7)))
    assert len(open_images(shards)) == 9


def test_shards__without_a_cache_are_looked_through_each_time(shards, monkeypatch):
    monkeypatch.setenv(CACHE_VARIABLE, "off")
    assert len(open_images(shards)) == 10


def test_shards__labels_in_json_and_names_of_classes(tmp_path):
    folder = tmp_path / "set"
    tar(folder / "a.tar", samples(range(4), ".json"))
    (folder / "classes.txt").write_text("cat\ndog\nemu\n")
    images = open_images(folder)
    assert images.classes == ("cat", "dog", "emu")
    assert images.labels.tolist() == [0, 1, 0, 1]
    tar(
        folder / "a.tar", {"1.png": encode(), "1.json": b'{"kind": "x"}', "2.png": encode(), "2.json": b'{"kind": "y"}'}
    )
    assert open_images(folder, label_column="kind").classes == ("x", "y")


def test_shards__in_folders_of_parts(shards):
    for part in ("train", "test"):
        (shards / part).mkdir()
        for file in shards.glob(f"{part}-*.tar"):
            file.rename(shards / part / f"{file.stem[-3:]}.tar")
    images = open_images(shards)
    assert list(images.declared_splits) == ["test"] * 2 + ["train"] * 8
    assert images.keys[0] == "test/000.tar/0008.png"


def test_folder__with_images_or_classes_beside_a_tar_is_a_folder(shards):
    for name in ("a", "b"):
        (shards / name).mkdir()
        (shards / name / "1.png").write_bytes(encode())
    assert list(open_images(shards).keys) == ["a/1.png", "b/1.png"]
    (shards / "loose.png").write_bytes(encode())
    assert sorted(open_images(shards, labelled=False).keys) == ["a/1.png", "b/1.png", "loose.png"]


def test_shard__alone_is_a_set_without_parts(shards):
    images = open_images(shards / "train-000.tar")
    assert (len(images), set(images.declared_splits), images.name) == (5, {""}, "train-000")


def test_shards__images_without_a_label_are_left_out_with_a_note(tmp_path):
    members = samples(range(3)) | {"0007.png": encode(7)}
    tar(tmp_path / "set" / "a.tar", members)
    images = open_images(tmp_path / "set")
    assert list(images.keys) == [f"a.tar/{n:04d}.png" for n in range(3)]
    assert any("1 image without a label was left out (a.tar/0007.png" in note for note in images.notes)
    assert len(open_images(tmp_path / "set", labelled=False)) == 4


def refused(location: Path | str, **options) -> str:
    with pytest.raises(UserError) as problem:
        open_images(location, **options)
    return str(problem.value)


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ({"1.png": b"x"}, "no image of {} has a label: expected a member such as 000001.cls"),
        ({"../1.png": b"x", "1.cls": b"0"}, "'../1.png', which is absolute or leads to a parent folder"),
        ({"/etc/1.png": b"x", "1.cls": b"0"}, "is absolute or leads to a parent folder"),
        ({"1.png": b"x", "1.jpg": b"y", "1.cls": b"0"}, "has the key '1' twice (1.png and 1.jpg)"),
        ({"1.png": b"x", "1.cls": b"0", "1.label": b"1"}, "two labels for the key '1'"),
        ({"1.png": b"x", "1.json": b"{"}, "1.json in {}/a.tar cannot be read as a label"),
        ({"1.png": b"x", "1.json": b'{"label": [1, 2]}'}, "has the label '[1, 2]'; expected one class"),
        ({"1.txt": b"x"}, "there are no images in"),
    ],
)
def test_shards__one_sentence_for_what_is_wrong_with_them(tmp_path, members, words):
    folder = tmp_path / "set"
    tar(folder / "a.tar", members)
    assert words.format(folder.resolve()) in refused(folder)


@pytest.mark.parametrize("kind", [tarfile.LNKTYPE, tarfile.SYMTYPE])
@pytest.mark.parametrize("name", ["0009.png", "0001.cls", "0001.json"])
def test_shards__links_to_other_files_are_refused(tmp_path, name, kind):
    file = tmp_path / "set/a.tar"
    tar(file, samples(range(3)))
    with tarfile.open(file, "a") as archive:
        link = tarfile.TarInfo(name)
        link.type, link.linkname = kind, "0000.png"
        archive.addfile(link)
    assert f"stores {name} as a link to 0000.png" in refused(tmp_path / "set")


def test_shards__same_key_in_several_shards_is_no_duplicate(tmp_path):
    tar(tmp_path / "set" / "a.tar", samples(range(2)))
    tar(tmp_path / "set" / "b.tar", samples(range(2)))
    assert len(set(open_images(tmp_path / "set").keys)) == 4


def test_shards__names_after_an_empty_line_are_refused(shards):
    (shards / "classes.txt").write_text("cat\n\ndog\n")
    assert "line 2 of" in (text := refused(shards))
    assert "is empty, so the class numbers after this line are unclear" in text


def test_shards__number_beyond_the_names_is_refused(shards):
    (shards / "classes.txt").write_text("cat\n")
    assert "have the label 1, but classes.txt has 1 class, numbered" in refused(shards)


def test_shards__cut_off_shard_is_named(shards):
    file = shards / "train-000.tar"
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2 + 100])
    assert "train-000.tar cannot be read as a tar file" in refused(shards)
    file.write_bytes(b"no tar at all" * 100)
    assert "train-000.tar cannot be read as a tar file" in refused(shards)


def test_shards__compressed_ones_are_refused_with_what_to_do(tmp_path):
    tar(tmp_path / "set" / "a.tar.gz", samples(range(2)), mode="w:gz")
    words = refused(tmp_path / "set")
    assert "a.tar.gz is compressed as a whole" in words
    assert "gunzip" in words
    assert "compressed as a whole" in refused(tmp_path / "set" / "a.tar.gz")


def test_written__read_back_by_the_index_as_without_it(written):
    images = open_images(written)
    assert (len(images), images.classes) == (60, ("even", "odd", "third"))
    assert sorted(file.name for file in written.glob("*.tar")) == [
        *(f"test-00000{n}.tar" for n in range(2)),
        *(f"train-00000{n}.tar" for n in range(2)),
    ]
    numbers = [number_of(images.store.read(n)) for n in range(60)]
    assert sorted(numbers) == list(range(60))
    assert numbers != sorted(numbers)
    assert images.labels.tolist() == [n % 3 for n in numbers]
    assert list(images.declared_splits) == [("train", "test")[n % 2] for n in numbers]
    assert [f"made_{n}-" in key or f"made/{n}-" in key for n, key in zip(numbers, images.keys, strict=True)]
    (written / INDEX_NAME).unlink()
    plain = open_images(written)
    assert list(plain.keys) == list(images.keys)
    assert plain.labels.tolist() == images.labels.tolist()
    assert plain.classes == images.classes
    assert plain.store.read(17).tobytes() == images.store.read(17).tobytes()


def test_written__is_the_same_for_the_same_seed_alone(tmp_path):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        (tmp_path / name).mkdir()
        write_shards(numbered(30), tmp_path / name, seed=seed)
    content = [(tmp_path / name / "shard-000000.tar").read_bytes() for name in "abc"]
    assert content[0] == content[1] != content[2]


def test_index__missing_changed_and_unknown_shards_are_named(written):
    shard = written / "train-000001.tar"
    content = shard.read_bytes()
    shard.unlink()
    assert "the shard train-000001.tar is in paucal_index.npz, but not in" in refused(written)
    shard.write_bytes(content + b"\0" * 512)
    assert "train-000001.tar of" in refused(written)
    assert "was changed after it was indexed" in refused(written)
    shard.write_bytes(content)  # as it was, with another time
    os.utime(shard, (1, 1))
    assert len(open_images(written)) == 60
    shard.write_bytes((content[512 * 3 :] + content)[: len(content)])
    assert "was changed after it was indexed" in refused(written)
    shard.write_bytes(content)
    tar(written / "train-000009.tar", samples(range(2)))
    assert "does not list the shard train-000009.tar" in refused(written)


def test_index__shard_that_changes_while_it_is_read_is_named(written):
    images = open_images(written)
    shard = next(place for place, key in enumerate(images.keys) if key.startswith("train-000001"))
    file = written / "train-000001.tar"
    file.write_bytes(b"\0" * file.stat().st_size)
    with pytest.raises(UnreadableImage, match=r"train-000001\.tar/.* is not at its position in the index"):
        images.store.read(shard)
    file.write_bytes(b"")
    with pytest.raises(UnreadableImage, match="is not at its position in the index"):
        images.store.read(shard)


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("offsets", lambda values: values - 10**6, "outside of its shard"),
        ("lengths", lambda values: values + 10**6, "outside of its shard"),
        ("labels", lambda values: values + 9, "outside of the 3 classes"),
        ("shards", lambda values: values[::-1].copy(), "images refer to shards that are not in the list of shards"),
        ("key_ends", lambda values: values + 5, "names of images are damaged"),
        ("offsets", lambda values: values.astype(np.float64), "'offsets' has the type float64"),
        ("about", lambda _: np.array('{"format": 99}'), "the format of the file is 99, but"),
        ("about", lambda _: np.array("{"), "cannot be read as an index"),
        (
            "about",
            lambda text: np.array(str(text).replace("test-000000", "../000000")),
            "is absolute or leads to a parent folder",
        ),
    ],
)
def test_index__hostile_or_damaged_is_refused(written, name, change, words):
    with np.load(written / INDEX_NAME) as stored:
        content = dict(stored)
    np.savez(written / INDEX_NAME, **(content | {name: change(content[name])}))
    assert words in refused(written)


def test_index__no_zip_and_too_large_are_refused(written, monkeypatch):
    monkeypatch.setattr(index_module, "MAX_BYTES", 10)
    assert "more than 10 bytes" in refused(written)
    monkeypatch.undo()
    (written / INDEX_NAME).write_bytes(b"no zip")
    assert "cannot be read as an index of shards" in refused(written)


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("train-000000.tar", "train"),
        ("imagenet1k-validation-12.tar", "val"),
        ("Val_3.tar", "val"),
        ("test/0001.tar", "test"),
        ("0001.tar", ""),
        ("train-test-0.tar", ""),
        ("trainer-0.tar", ""),
    ],
)
def test_part__is_told_by_a_word_of_the_name_or_the_folder(name, part):
    assert split_of_shard(name) == part


def test_write__several_labels_go_into_parquet_and_come_back(tmp_path):
    one = numbered(40, ("train", "test"))
    rows = np.stack([np.arange(40) % 2, np.arange(40) % 3 == 0, np.arange(40) % 5 == 0], axis=1).astype(np.int8)
    images = replace(one, labels=np.full(40, -1), multi_hot=rows)
    for folder in ("rows", "tars"):
        (tmp_path / folder).mkdir()
    write_shards(images, tmp_path / "rows", "parquet", max_images=15)
    again = open_images(tmp_path / "rows")
    assert again.multi_hot is not None
    assert again.classes == images.classes
    numbers = [number_of(again.store.read(place)) for place in range(40)]
    assert sorted(numbers) == list(range(40))
    assert again.multi_hot.tolist() == rows[numbers].tolist()
    with pytest.raises(UserError, match=r"--format tar stores one label for each image.* use --format parquet"):
        write_shards(images, tmp_path / "tars")
    unknown = replace(images, multi_hot=np.where(rows == 1, rows, -1).astype(np.int8))
    with pytest.raises(UserError, match=r"these images have \d+ unknown labels.*--classes"):
        write_shards(unknown, tmp_path / "tars", "parquet")
    assert list((tmp_path / "tars").iterdir()) == []


def test_shards__stay_open_for_a_minute_and_are_at_most_64(tmp_path, monkeypatch):
    folder = tmp_path / "many"
    folder.mkdir()
    write_shards(numbered(140), folder, max_images=2)
    images = open_images(folder)
    opened: list[str] = []
    open_file = tar_module.OpenFile

    def noted(path: Path) -> tar_module.OpenFile:
        opened.append(path.name)
        return open_file(path)

    monkeypatch.setattr(tar_module, "OpenFile", noted)
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else None
    store = images.store
    store.read(0)
    store.read(1)
    assert opened == ["shard-000000.tar"]
    assert [number_of(store.read(n)) % 3 for n in range(140)] == images.labels.tolist()
    assert len(opened) == 70
    if before is not None:
        assert len(os.listdir("/proc/self/fd")) == before + 64
    store.read(139)
    assert len(opened) == 70
    monkeypatch.setattr(tar_module, "_MAX_OPEN_SECONDS", 0.0)
    store.read(139)
    assert len(opened) == 71
    if before is not None:  # those that were opened long ago are closed
        assert len(os.listdir("/proc/self/fd")) == before + 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are spawned here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # other tests may have left threads
def test_shards__that_are_open_are_read_by_forked_processes_at_once(written):
    images = open_images(written)
    expected = [images.store.read(n).tobytes() for n in range(60)]
    with multiprocessing.get_context("fork").Pool(2) as pool:
        found = pool.map(partial(pixels_of, images.store), range(60), chunksize=1)
    assert found == expected


def pixels_of(store: Store, number: int) -> bytes:
    return store.read(number).tobytes()


def test_sample_key__ends_at_the_first_dot_of_the_file_name():
    assert sample_key("n01/cat.v2/000123.JPG") == ("n01/cat.v2/000123", ".jpg")
    assert sample_key("7.seg.png") == ("7", ".seg.png")


def test_is_remote__is_true_of_urls():
    assert [is_remote(text) for text in ("s3://bucket/shards", "photos/", "hf:owner/name")] == [True, False, False]
