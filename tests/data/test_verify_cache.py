import multiprocessing

import numpy as np
import pytest
from PIL import Image

from paucal import memory
from paucal.data.decoded import in_memory as cache
from paucal.data.decoded.in_memory import InMemoryStore, cache_images
from paucal.data.sources.opening import open_images
from paucal.data.unreadable import verify_images
from paucal.types import UserError


def _break(folder, *names: str) -> None:
    for name in names:
        file = folder / name
        file.write_bytes(file.read_bytes()[:40])


@pytest.fixture
def damaged(make_folder):
    folder = make_folder(*[f"a/{i}.jpg" for i in range(4)], *[f"b/{i}.png" for i in range(4)])
    _break(folder, "a/1.jpg", "b/2.png")
    return open_images(folder)


@pytest.mark.parametrize("check", [verify_images, cache_images])
def test_verify__refuses_and_names_what_is_damaged(damaged, check):
    message = r"2 of 8 images cannot be read \(a/1\.jpg, b/2\.png\); .*--on-bad-image skip"
    with pytest.raises(UserError, match=message):
        check(damaged)


@pytest.mark.parametrize("check", [verify_images, cache_images])
def test_verify__skips_what_is_damaged(damaged, check):
    good, names = check(damaged, on_bad="skip")
    assert names == ["a/1.jpg", "b/2.png"]
    assert good.keys == ["a/0.jpg", "a/2.jpg", "a/3.jpg", "b/0.png", "b/1.png", "b/3.png"]
    assert good.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert "2 of 8 images cannot be read" in good.notes[0]
    for position, key in enumerate(good.keys):
        original = damaged.store.read(damaged.keys.index(key))
        assert good.store.read(position).tobytes() == original.tobytes()


def test_verify__names_only_the_first_few(make_folder):
    folder = make_folder(*[f"a/{i}.png" for i in range(6)], "b/1.png")
    _break(folder, *[f"a/{i}.png" for i in range(6)])
    with pytest.raises(UserError, match=r"6 of 7 images cannot be read \(a/0\.png, a/1\.png, a/2\.png, \.\.\.\)"):
        verify_images(open_images(folder))


def test_verify__refuses_when_nothing_is_readable_even_if_told_to_skip(make_folder):
    folder = make_folder("a/1.png", "b/1.png")
    _break(folder, "a/1.png", "b/1.png")
    with pytest.raises(UserError, match=r"2 of 2 images cannot be read.*check the files in"):
        verify_images(open_images(folder), on_bad="skip")


@pytest.mark.parametrize("check", [verify_images, cache_images])
def test_verify__reports_progress(make_set, check):
    calls = []
    check(make_set([0, 1] * 100), progress=lambda done, total: calls.append((done, total)))
    assert calls == [(64, 200), (128, 200), (192, 200), (200, 200)]


def test_cache_images__holds_images_of_different_sizes_exactly(make_folder):
    folder = make_folder("a/1.png", "b/1.png")
    noise = np.random.default_rng(0).integers(0, 255, (9, 5, 3), dtype=np.uint8)
    Image.fromarray(noise).save(folder / "a/2.png")
    images = open_images(folder)
    cached, names = cache_images(images)
    assert names == []
    assert isinstance(cached.store, InMemoryStore)
    assert np.array_equal(np.asarray(cached.store.read(1)), noise)
    assert [cached.store.size(i) for i in range(3)] == [(8, 12), (9, 5), (8, 12)]
    assert cached.store.read(2).tobytes() == images.store.read(2).tobytes()


def test_cache_images__shares_its_memory(make_set):
    store = cache_images(make_set([0, 1, 1]))[0].store
    assert store.pixels.is_shared()
    assert store.offsets.is_shared()
    assert store.shapes.is_shared()
    worker = multiprocessing.get_context("fork").Process(target=store.pixels.fill_, args=(77,))
    worker.start()
    worker.join()
    assert np.asarray(store.read(2)).tolist() == np.full((6, 6, 3), 77).tolist()


def test_cache_images__does_not_read_the_source_again(damaged, tmp_path):
    cached, _ = cache_images(damaged, on_bad="skip")
    for file in (tmp_path / "photos").rglob("*.*"):
        file.unlink()
    assert cached.store.read(5).size == (12, 8)


def test_cache_images__keeps_the_store_when_the_budget_is_too_small(make_set):
    images = make_set([0, 1, 1])
    exact = 3 * 6 * 6 * 3
    assert isinstance(cache_images(images, max_bytes=exact)[0].store, InMemoryStore)
    assert cache_images(images, max_bytes=exact - 1)[0].store is images.store
    assert cache_images(images, max_bytes=0)[0].store is images.store


def test_cache_images__falls_back_when_the_sample_was_too_small(make_folder, monkeypatch):
    folder = make_folder("a/1.png", "b/1.png")
    Image.new("RGB", (100, 100)).save(folder / "b/2.png")
    images = open_images(folder)
    monkeypatch.setattr(cache, "_SAMPLED_IMAGES", 1)  # sees the first image only
    cached, names = cache_images(images)
    assert cached.store is images.store
    assert names == []


def test_cache_images__needs_no_shared_memory_where_workers_are_forked(make_set, monkeypatch):
    monkeypatch.setattr(cache.shutil, "disk_usage", lambda path: type("Usage", (), {"free": 10}))
    images = make_set([0, 1, 1])
    monkeypatch.setattr(cache, "start_method", lambda: "fork")
    private = cache_images(images)[0].store
    assert isinstance(private, InMemoryStore)
    assert not private.pixels.is_shared()
    monkeypatch.setattr(cache, "start_method", lambda: "spawn")
    assert cache_images(images)[0].store is images.store


def test_available_memory__is_the_smaller_of_machine_and_container(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(memory, "_CGROUP", tmp_path)
    assert memory.read_available_memory() > 0  # neither file is there
    (tmp_path / "meminfo").write_text("MemTotal: 100 kB\nMemAvailable:   50 kB\n")
    assert memory.read_available_memory() == 50 * 1024
    (tmp_path / "memory.max").write_text("30000\n")
    (tmp_path / "memory.current").write_text("25000\n")
    (tmp_path / "memory.stat").write_text("anon 1\ninactive_file 15000\n")
    assert memory.read_available_memory() == 20000
    (tmp_path / "memory.max").write_text("max\n")
    assert memory.read_available_memory() == 50 * 1024
