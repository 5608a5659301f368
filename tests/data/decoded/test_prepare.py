import io
import os
import pickle
import shutil
import threading

import numpy as np
import pytest
from PIL import Image

from paucal.data.decode import DEFAULT_DECODE_OPTIONS, DecodeOptions
from paucal.data.decoded import cache_folder as folder
from paucal.data.decoded import prepare
from paucal.data.decoded.in_memory import InMemoryStore
from paucal.data.decoded.on_disk import EntryWriter, MappedStore, open_entry
from paucal.data.decoded.prepare import prepare_images
from paucal.data.images import full_size_image, without_decoded_copies
from paucal.data.sources.opening import open_images
from paucal.data.stores import ConvertedStore
from paucal.data.views.normalisation import compute_normalisation
from paucal.types import UserError

SMALL = DecodeOptions(side=64)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A cache of its own for each test."""
    monkeypatch.setenv(folder.CACHE_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def photos(tmp_path):
    """Twelve photos of noise, larger than 64 pixels needs, in two classes."""
    root, random = tmp_path / "photos", np.random.default_rng(0)
    for number in range(12):
        file = root / "ab"[number % 2] / f"{number:02d}.{'jpg' if number % 3 else 'png'}"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 255, (160, 200, 3), dtype=np.uint8)).save(file)
    return root


@pytest.fixture
def decoded(monkeypatch):
    """The names of the images that are decoded."""
    names, real = [], prepare.decode_image

    def noted(source, name, reading):
        names.append(name)
        return real(source, name, reading)

    monkeypatch.setattr(prepare, "decode_image", noted)
    return names


def same(images, others) -> bool:
    return all(images.store.read(i).tobytes() == others.store.read(i).tobytes() for i in range(len(images)))


def test_prepare__keeps_exactly_what_is_read_without_it(photos):
    images = open_images(photos)
    kept, bad = prepare_images(images, SMALL)
    assert isinstance(kept.store, MappedStore)
    assert bad == []
    assert kept.decode_options == SMALL
    assert [kept.store.read(i).size for i in range(12)] == [(80, 64)] * 12
    assert [kept.store.size(i) for i in range(12)] == [(160, 200)] * 12  # of the images themselves
    plain = ConvertedStore(images.store, SMALL)
    assert all(kept.store.read(i).tobytes() == plain.read(i).tobytes() for i in range(12))


def test_prepare__decodes_once(photos, decoded):
    first, _ = prepare_images(open_images(photos), SMALL)
    assert len(decoded) == 12
    second, _ = prepare_images(open_images(photos), SMALL)
    assert len(decoded) == 12
    assert same(first, second)


def test_prepare__decodes_only_what_is_new_or_changed(photos, decoded):
    prepare_images(open_images(photos), SMALL)
    decoded.clear()
    Image.new("RGB", (200, 160), "red").save(photos / "a" / "99.png")
    Image.new("RGB", (200, 160), "blue").save(photos / "b" / "01.jpg")
    images, _ = prepare_images(open_images(photos), SMALL)
    assert sorted(decoded) == ["a/99.png", "b/01.jpg"]
    assert np.asarray(images.store.read(images.keys.index("a/99.png")))[5, 5].tolist() == [255, 0, 0]
    assert np.asarray(images.store.read(images.keys.index("b/01.jpg")))[5, 5].tolist() == [0, 0, 254]


def test_prepare__knows_a_copy_of_the_set_by_its_bytes(photos, decoded, tmp_path):
    first, _ = prepare_images(open_images(photos), SMALL)
    shutil.copytree(photos, tmp_path / "copy")
    decoded.clear()
    second, _ = prepare_images(open_images(tmp_path / "copy"), SMALL)
    assert decoded == []
    assert same(first, second)
    assert len(list((tmp_path / "cache").glob("*.pixels"))) == 1  # the same images, the same file


def test_prepare__takes_a_file_touched_since_for_what_it_is(photos, decoded):
    prepare_images(open_images(photos), SMALL)
    for file in photos.rglob("*.*"):
        os.utime(file, (1, 1))
    decoded.clear()
    prepare_images(open_images(photos), SMALL)
    assert decoded == []


def test_prepare__keeps_readings_apart(photos, decoded):
    small, _ = prepare_images(open_images(photos), SMALL)
    whole, _ = prepare_images(open_images(photos), DEFAULT_DECODE_OPTIONS)
    assert len(decoded) == 24
    assert (small.store.read(0).size, whole.store.read(0).size) == ((80, 64), (200, 160))


def test_prepare__measures_as_without_it(photos):
    images = open_images(photos)
    rows = np.arange(12)
    assert compute_normalisation(prepare_images(images, DEFAULT_DECODE_OPTIONS)[0], rows) == compute_normalisation(
        images, rows
    )


def test_prepare__finds_the_moments_of_the_pass(photos, monkeypatch):
    images, _ = prepare_images(open_images(photos), DEFAULT_DECODE_OPTIONS)
    expected = compute_normalisation(images, np.arange(12))
    monkeypatch.setattr(MappedStore, "read", lambda *_: pytest.fail("an image was read again"))
    assert compute_normalisation(images, np.arange(12)) == expected


@pytest.mark.parametrize("damage", [b"", b"\xff\xd8\xff", None])
def test_prepare__names_what_is_damaged_and_remembers_the_rest(photos, decoded, damage):
    file = photos / "b" / "07.jpg"
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2] if damage is None else damage)
    with pytest.raises(UserError, match=r"1 of 12 images cannot be read \(b/07\.jpg\)"):
        prepare_images(open_images(photos), SMALL)
    decoded.clear()
    images, bad = prepare_images(open_images(photos), SMALL, on_bad="skip")
    assert decoded == ["b/07.jpg"]
    assert bad == ["b/07.jpg"]
    assert len(images) == len(images.store) == 11
    file.write_bytes(whole)
    decoded.clear()
    again, _ = prepare_images(open_images(photos), SMALL)
    assert decoded == ["b/07.jpg"]
    assert len(again) == 12


def test_prepare__waits_for_no_pipe(photos):
    os.mkfifo(photos / "a" / "pipe.jpg")
    with pytest.raises(UserError, match=r"1 of 13 images cannot be read \(a/pipe\.jpg\)"):
        prepare_images(open_images(photos), SMALL)


def test_prepare__reports_progress_in_both_passes(photos):
    calls = []
    for _ in range(2):
        calls.clear()
        prepare_images(open_images(photos), SMALL, progress=lambda done, total: calls.append((done, total)))
        assert calls[-1] == (12, 12)


def test_prepare__makes_do_without_a_disk(photos, monkeypatch, tmp_path):
    images = open_images(photos)
    expected, _ = prepare_images(images, SMALL)
    (tmp_path / "file").write_text("no folder")
    for place in ("off", str(tmp_path / "file" / "below")):
        monkeypatch.setenv(folder.CACHE_VARIABLE, place)
        kept, _ = prepare_images(images, SMALL)
        assert isinstance(kept.store, InMemoryStore)
        assert same(kept, expected)
        assert kept.store.size(0) == (160, 200)


@pytest.mark.parametrize("room", [10, 12 * 80 * 64 * 3 - 1])
def test_prepare__makes_do_where_the_disk_is_too_small(photos, monkeypatch, room, cache):
    monkeypatch.setattr(prepare, "usable_disk_bytes", lambda _: room)
    monkeypatch.setattr(prepare, "estimate_decoded_bytes", lambda _: 1.0)  # the sample promised less
    kept, _ = prepare_images(open_images(photos), SMALL)
    assert isinstance(kept.store, InMemoryStore)
    assert list(cache.glob("*.pixels")) == list(cache.glob(".*")) == []


def test_prepare__leaves_images_in_memory_where_they_are(make_set):
    images, _ = prepare_images(make_set([0, 1, 1]), SMALL)
    assert isinstance(images.store, InMemoryStore)
    assert np.asarray(images.store.read(2)).tolist() == np.full((6, 6, 3), 2).tolist()


def test_prepare__knows_the_rows_of_parquet(make_parquet, decoded):
    file = make_parquet("set.parquet", 8, {"label": [0, 1] * 4})
    first, _ = prepare_images(open_images(file), SMALL)
    assert len(decoded) == 8
    second, _ = prepare_images(open_images(file), SMALL)
    assert len(decoded) == 8
    assert same(first, second)
    make_parquet("set.parquet", 8, {"label": [1, 0] * 4}, rows=3)  # the same images in a file that has changed
    third, _ = prepare_images(open_images(file), SMALL)
    assert len(decoded) == 8
    assert same(first, third)


@pytest.mark.parametrize("end", [".npz", ".pixels", ".known.npz"])
def test_prepare__makes_a_damaged_entry_anew(photos, cache, end):
    expected, _ = prepare_images(open_images(photos), SMALL)
    pictures = [expected.store.read(i).tobytes() for i in range(12)]
    for file in cache.glob(f"*{end}"):
        file.write_bytes(file.read_bytes()[:50])
    again, _ = prepare_images(open_images(photos), SMALL)
    assert [again.store.read(i).tobytes() for i in range(12)] == pictures


def test_prepare__is_safe_with_runs_beside(photos, cache):
    found = []

    def run() -> None:
        images, _ = prepare_images(open_images(photos), SMALL)
        found.append([images.store.read(i).tobytes() for i in range(12)])

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert all(pictures == found[0] for pictures in found)
    assert len(list(cache.glob("*.pixels"))) == 1
    assert list(cache.glob(".*")) == []


@pytest.mark.parametrize("interrupted", ["table", "pixels"])
def test_entry__never_exchanges_images_of_writers_at_the_same_time(tmp_path, monkeypatch, interrupted):
    def started(order):
        writer = EntryWriter(tmp_path, 2, 1 << 16).__enter__()
        for index in order:
            writer.add(index, Image.new("RGB", (8, 8), (100 * index,) * 3), (8, 8))
        return writer

    first, second = started([0, 1]), started([1, 0])
    real, replaced = type(tmp_path).replace, []

    def replace(path, target):
        if not replaced and target.suffix == (folder.PIXELS_SUFFIX if interrupted == "pixels" else folder.INDEX_SUFFIX):
            replaced.append(target)
            second.finish("key", np.arange(2), "reading")  # the other process goes on meanwhile
        return real(path, target)

    monkeypatch.setattr(type(tmp_path), "replace", replace)
    first.finish("key", np.arange(2), "reading")
    entry = open_entry(tmp_path, "key")
    assert replaced
    assert (entry is None) == (interrupted == "table")
    assert entry is None or [int(entry.view(index).max()) for index in (0, 1)] == [0, 100]


def test_mapped_store__reads_originals_once_another_process_stored_them_in_another_order(photos):
    prepared = prepare_images(open_images(photos), SMALL)[0]
    sent = pickle.dumps(prepared.store)
    file = prepared.store.entry.path
    file.write_bytes(file.read_bytes()[-100:] + file.read_bytes()[:-100])
    received = pickle.loads(sent)
    assert received.entry.view(0) is None
    assert received.read(0).tobytes() == prepared.store.original.read(0).tobytes()


def test_prepare__leaves_nothing_half_written_after_an_interrupt(photos, cache, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(prepare, "decode_image", interrupted)
    with pytest.raises(KeyboardInterrupt):
        prepare_images(open_images(photos), SMALL)
    assert [file for file in cache.iterdir() if file.suffix != ".npz"] == []


def test_mapped_store__can_be_sent_and_survives_its_file(photos, cache):
    images, _ = prepare_images(open_images(photos), SMALL)
    expected = images.store.read(3).tobytes()
    sent = pickle.dumps(images.store)
    assert len(sent) < 12 * 80 * 64
    assert pickle.loads(sent).read(3).tobytes() == expected
    folder.clear_cache(cache)
    assert images.store.read(3).tobytes() == expected  # still mapped
    assert pickle.loads(sent).read(3).tobytes() == expected  # from the image itself


def test_whole_image__is_the_image_itself(photos, monkeypatch):
    images = open_images(photos)
    for place in (None, "off"):
        if place:
            monkeypatch.setenv(folder.CACHE_VARIABLE, place)
        kept, _ = prepare_images(images, SMALL)
        assert full_size_image(kept, 4).tobytes() == images.store.read(4).tobytes()
        assert (
            prepare_images(without_decoded_copies(kept), DEFAULT_DECODE_OPTIONS)[0].store.read(4).tobytes()
            == images.store.read(4).tobytes()
        )


def test_make_room__removes_what_was_used_longest_ago(photos, cache):
    for side in (16, 32, 64):
        prepare_images(open_images(photos), DecodeOptions(side=side))
    entries = folder.list_entries(cache)
    assert [one.n_bytes for one in entries] == [12 * 3 * side + 16 for side in (20 * 16, 40 * 32, 80 * 64)]
    prepare_images(open_images(photos), DecodeOptions(side=16))  # used again
    folder.evict_entries(cache, max_bytes=entries[0].n_bytes + entries[2].n_bytes)
    assert {one.n_bytes for one in folder.list_entries(cache)} == {entries[0].n_bytes, entries[2].n_bytes}
    folder.evict_entries(cache, max_bytes=0, kept_pixels_path=entries[0].pixels_path)
    assert [one.pixels_path for one in folder.list_entries(cache)] == [entries[0].pixels_path]


def test_make_room__removes_what_nobody_has_finished(cache):
    cache.mkdir()
    old, new = cache / ".1.tmp", cache / ".2.tmp"
    for file in (old, new):
        file.write_bytes(b"x")
    os.utime(old, (1, 1))
    folder.evict_entries(cache)
    assert not old.exists()
    assert new.exists()


def test_clear__frees_what_it_says_and_leaves_other_files(photos, cache):
    prepare_images(open_images(photos), SMALL)
    (cache / "mine.txt").write_text("stay")
    assert folder.clear_cache(cache) == 12 * 80 * 64 * 3 + 16
    assert [file.name for file in cache.iterdir()] == ["mine.txt"]


def test_cache_folder__is_where_the_environment_says(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(folder.CACHE_VARIABLE)
    assert folder.cache_folder() == tmp_path / "paucal" / "images"
    made = folder.usable_cache_folder()
    assert made is not None
    assert made.stat().st_mode & 0o077 == 0  # its owner's alone
    monkeypatch.setenv(folder.CACHE_VARIABLE, "OFF")
    assert folder.cache_folder() is None


def test_prepare__reads_real_photographs_of_every_kind(tmp_path):
    root = tmp_path / "kinds"
    root.mkdir()
    random = np.random.default_rng(0)
    picture = Image.fromarray(random.integers(0, 255, (40, 30, 3), dtype=np.uint8))
    (root / "a").mkdir()
    (root / "b").mkdir()
    picture.convert("CMYK").save(root / "a" / "cmyk.jpg")
    picture.convert("P").save(root / "a" / "palette.png")
    picture.convert("RGBA").save(root / "a" / "opacity.png")
    picture.convert("L").save(root / "b" / "grey.png")
    picture.save(root / "b" / "pages.tif", save_all=True, append_images=[Image.new("RGB", (9, 9))])
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    (root / "b" / "wrong.jpg").write_bytes(buffer.getvalue())
    images, bad = prepare_images(open_images(root), DEFAULT_DECODE_OPTIONS)
    assert bad == []
    assert [images.store.read(i).size for i in range(len(images))] == [(30, 40)] * 6
    exact = [images.keys.index(key) for key in ("a/opacity.png", "b/pages.tif", "b/wrong.jpg")]
    assert all(images.store.read(i).tobytes() == picture.tobytes() for i in exact)
