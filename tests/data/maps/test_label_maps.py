"""Label maps on disk: what is written is read, and what does not fit is refused."""

import json
import os
import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from paucal.data.decode import DecodeOptions
from paucal.data.decoded.cache_folder import CACHE_VARIABLE
from paucal.data.decoded.prepare import prepare_images
from paucal.data.images import ImageSet
from paucal.data.maps import store as hashes
from paucal.data.maps.reader import LabelMaps
from paucal.data.maps.store import LabelMapMetadata, MapWriter, pixel_hash
from paucal.data.sources.opening import open_images
from paucal.types import UserError


class Pictures:
    """Plain colours, by position."""

    def __init__(self, shades):
        self.shades = list(shades)

    def __len__(self):
        return len(self.shades)

    def read(self, index):
        return Image.new("RGB", (8, 6), (self.shades[index], 0, 0))


def image_set(count=4, classes=("cat", "dog", "elk")):
    keys = [f"{i}.png" for i in range(count)]
    return ImageSet(
        "pictures", "here", classes, keys, np.arange(count) % len(classes), [""] * count, Pictures(range(count))
    )


def written(folder, images, classes=None, trained_on=()):
    facts = LabelMapMetadata("a teacher", tuple(classes or images.classes), (2, 3), 2, tuple(trained_on))
    hashes = [pixel_hash(images.store.read(i)) for i in range(len(images))]
    writer = MapWriter(folder, facts, images.keys, hashes)
    generator = np.random.default_rng(0)
    shape = (len(images), 2, 2, 3)
    values, indices = generator.normal(size=shape).astype(np.float16), generator.integers(0, len(facts.classes), shape)
    for at in ([2, 0], [1, 3]):
        writer.write(at, values[at], indices[at])
    return values, indices


def test_maps__come_back_as_written_in_any_order(tmp_path):
    images = image_set()
    values, indices = written(tmp_path, images)
    shuffled = images.select(np.array([3, 1, 0, 2]))
    reader = LabelMaps(tmp_path).open_reader(shuffled, np.array([0, 3]))
    for position, row in ((0, 3), (3, 2)):
        found = pickle.loads(pickle.dumps(reader))(position)  # as a worker gets it
        assert np.array_equal(found["values"].numpy(), values[row])
        assert np.array_equal(found["indices"].numpy(), indices[row])
        assert found["indices"].dtype == torch.int64


def test_maps__follow_the_sets_order_of_classes(tmp_path):
    images = image_set()
    _, indices = written(tmp_path, images, classes=("elk", "cat", "dog"))
    found = LabelMaps(tmp_path).open_reader(images, np.arange(4))(1)["indices"].numpy()
    assert np.array_equal(found, np.array([2, 0, 1])[indices[1]])


def test_storage__is_small(tmp_path):
    written(tmp_path, image_set())
    maps = LabelMaps(tmp_path)
    assert maps.metadata.bytes_per_image == 2 * 6 * (2 + 1)
    assert (tmp_path / "indices.npy").stat().st_size == 128 + 4 * 2 * 6


def refused(folder, images, match):
    with pytest.raises(UserError, match=match):
        LabelMaps(folder).open_reader(images, np.arange(len(images)))


def test_images__that_have_changed_are_noticed(tmp_path):
    images = image_set()
    written(tmp_path, images)
    refused(tmp_path, replace(images, store=Pictures([0, 1, 9, 3])), "'2.png' has changed since")


def test_maps__of_another_set_or_of_other_classes_are_refused(tmp_path):
    written(tmp_path, image_set())
    refused(tmp_path, image_set(5), "has no map of '4.png'")
    refused(tmp_path, image_set(classes=("cat", "dog", "emu")), "lack 1 of the 3 classes .*'emu'")
    refused(tmp_path, image_set(classes=("cat", "dog", "elk", "fox")), "lack 1 of the 4 .*'fox'.*--classes")


def test_maps__of_more_classes_than_the_set_has_are_read_by_name(tmp_path):
    images = image_set(classes=("elk", "cat"))
    _, indices = written(tmp_path, images, classes=("bat", "cat", "dog", "elk", "bat"))
    assert set(indices.ravel()) == {0, 1, 2, 3, 4}
    found = LabelMaps(tmp_path).open_reader(images, np.arange(4))(1)
    # The set's own first, then each class of the teacher for itself, whatever it is called.
    assert np.array_equal(found["indices"].numpy(), np.array([2, 1, 3, 0, 4])[indices[1]])
    assert found["teacher_classes"].item() == 5
    refused(tmp_path, image_set(classes=("elk", "bat")), "the maps have 2 classes called 'bat'")
    own = image_set()
    written(tmp_path / "own", own)
    assert "teacher_classes" not in LabelMaps(tmp_path / "own").open_reader(own, np.arange(4))(1)


def test_maps__that_name_unknown_classes_are_refused(tmp_path):
    images = image_set()
    written(tmp_path, images)
    stored = np.load(tmp_path / "indices.npy", mmap_mode="r+")
    stored[1, 0, 0, 0] = 7
    stored.flush()
    refused(tmp_path, images, "refer to class 7, but there are 3 classes")


@pytest.mark.parametrize("name", ["values.npy", "indices.npy", "done.npy"])
def test_maps__cut_short_are_refused(tmp_path, name):
    written(tmp_path, image_set())
    content = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(content[:-2])
    refused(tmp_path, image_set(), "truncated")


@pytest.mark.parametrize(
    ("old", "new"), [(b"{", b"("), (b"'shape'", b"[shape'"), (b"\x93NUMPY", b"PK\x03\x04PY"), (b"(4, 2", b"(5, 2")]
)
def test_maps__with_a_damaged_header_are_refused_and_left_alone(tmp_path, old, new):
    images = image_set()
    written(tmp_path, images)
    damaged = (tmp_path / "values.npy").read_bytes().replace(old, new, 1)
    (tmp_path / "values.npy").write_bytes(damaged)
    refused(tmp_path, images, "make (them|the maps) again")
    with pytest.raises(UserError, match="again"):
        written(tmp_path, images)
    assert (tmp_path / "values.npy").read_bytes() == damaged


def test_maps__with_code_in_them_are_refused(tmp_path):
    written(tmp_path, image_set())
    np.save(tmp_path / "values.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    refused(tmp_path, image_set(), "not an array")


@pytest.mark.parametrize("text", ["", "[]", '{"format": 2}', '{"format": 1, "keys": []}'])
def test_index__of_another_kind_is_refused(tmp_path, text):
    written(tmp_path, image_set())
    (tmp_path / "index.json").write_text(text)
    refused(tmp_path, image_set(), "make (them|the maps) again")


def test_folder__without_maps_is_refused(tmp_path):
    refused(tmp_path, image_set(), "there are no label maps in")


def test_index__says_who_made_the_maps(tmp_path):
    written(tmp_path, image_set(), trained_on=["0.png"])
    index = json.loads((tmp_path / "index.json").read_text())
    assert index["teacher"] == "a teacher"
    assert LabelMaps(tmp_path).metadata.trained_on == ("0.png",)


def test_hashes__of_files_are_computed_once_until_a_file_changes(make_folder, tmp_path, monkeypatch):
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    folder = make_folder("a/0.png", "a/1.png", "b/2.jpg")
    images = open_images(folder)
    plain = [pixel_hash(images.store.read(n)) for n in range(3)]
    seen: list[int] = []
    whole = hashes.full_size_image
    monkeypatch.setattr(hashes, "full_size_image", lambda one, n: (seen.append(n), whole(one, n))[1])
    told: list[tuple[int, int]] = []
    assert hashes.pixel_hashes(images, [2, 0, 1], lambda *step: told.append(step)) == [plain[2], *plain[:2]]
    assert (seen, told) == ([2, 0, 1], [(1, 3), (2, 3), (3, 3)])
    seen.clear()
    told.clear()
    kept = prepare_images(open_images(folder), DecodeOptions(side=2))[
        0
    ]  # copies of a smaller size stand for their files
    assert hashes.pixel_hashes(kept, np.arange(3), lambda *step: told.append(step)) == plain
    assert (seen, told) == ([], [(3, 3)])
    Image.new("RGB", (12, 8), (9, 9, 9)).save(folder / "a" / "1.png")
    os.utime(folder / "a" / "1.png", ns=(1, 1))
    again = hashes.pixel_hashes(open_images(folder), np.arange(3))
    assert seen == [1]
    assert [one == other for one, other in zip(again, plain, strict=True)] == [True, False, True]


def test_hashes__without_a_cache_are_computed_anew(make_folder, monkeypatch):
    monkeypatch.setenv(CACHE_VARIABLE, "off")
    images = open_images(make_folder("a/0.png", "b/1.png"))
    assert hashes.pixel_hashes(images, [0, 1]) == [pixel_hash(images.store.read(n)) for n in range(2)]
