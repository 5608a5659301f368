import zipfile
from io import BytesIO
from pathlib import Path

import fsspec
import numpy as np
import pytest
from PIL import Image

import paucal
from paucal.cli.main import main
from paucal.data.images import ImageSet
from paucal.data.sources.opening import open_images
from paucal.verbs.shard import launch


@pytest.fixture
def photos(tmp_path):
    for number, name in enumerate(["train/cat/1.png", "train/cat/2.png", "train/dog/3.png", "test/cat/4.png"]):
        file = tmp_path / "photos" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (number, 0, 0)).save(file)
    return tmp_path / "photos"


def test_shard__writes_what_the_other_verbs_open(photos, capsys):
    out = photos.parent / "shards"
    assert main(["shard", str(photos), str(out)]) == 0
    said = capsys.readouterr().out
    assert f"4 images in 2 shards (0.0 MiB) in {out}" in said
    assert f"paucal train {out}" in said
    images = open_images(out)
    assert images.classes == ("cat", "dog")
    found = {images.store.read(n).getpixel((0, 0))[0]: (images.labels[n], images.declared_splits[n]) for n in range(4)}
    assert found == {0: (0, "train"), 1: (0, "train"), 2: (1, "train"), 3: (0, "test")}
    assert [entry.name for entry in out.parent.iterdir() if entry.name.startswith(".")] == []


def test_shard__python_parquet_without_labels_and_small_shards(photos):
    out = photos.parent / "empty"
    out.mkdir()
    made = paucal.shard(photos, output=out, format="parquet", shard_images=1, unlabelled=True)
    assert (made.images, made.shards, made.folder) == (4, 4, str(out))
    images = open_images(out, labelled=False)
    assert sorted(images.store.read(n).getpixel((0, 0))[0] for n in range(4)) == [0, 1, 2, 3]
    assert sorted(images.declared_splits) == ["test", "train", "train", "train"]


def test_shard__onto_object_storage(photos):
    files = fsspec.filesystem("memory")
    paucal.shard(photos, output="memory://cli/set")
    assert len(open_images("memory://cli/set")) == 4
    with pytest.raises(paucal.UserError, match="already contains files"):
        paucal.shard(photos, output="memory://cli/set")
    files.rm("/cli", recursive=True)


def test_shard__refuses_what_would_lose_or_mix_something(photos, capsys, monkeypatch):
    full = photos.parent / "full"
    full.mkdir()
    (full / "notes.txt").write_text("mine")
    assert main(["shard", str(photos), str(full)]) == 2
    assert "is not empty" in capsys.readouterr().err
    assert main(["shard", str(photos), str(photos / "shards")]) == 2
    assert "is inside the images" in capsys.readouterr().err
    (photos / "train" / "dog" / "3.png").write_bytes(b"broken")
    assert main(["shard", str(photos), str(photos.parent / "out")]) == 2
    assert "1 of 4 images cannot be read (train/dog/3.png)" in capsys.readouterr().err
    assert main(["shard", str(photos), str(photos.parent / "out"), "--on-bad-image", "skip"]) == 0
    assert "1 unreadable image was left out" in capsys.readouterr().out
    monkeypatch.setattr(launch.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 10}))
    assert main(["shard", str(photos), str(photos.parent / "other")]) == 2
    assert "GiB are free" in capsys.readouterr().err
    assert sorted(entry.name for entry in photos.parent.iterdir()) == ["full", "out", "photos"]


def test_cache__shows_fetched_shards_and_removes_them(photos, monkeypatch, capsys):
    monkeypatch.setenv("PAUCAL_IMAGE_CACHE", str(photos.parent / "kept"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(photos.parent / "user"))
    files = fsspec.filesystem("memory")
    paucal.shard(photos, output="memory://kept/set")
    images = open_images("memory://kept/set")
    assert [images.store.size(n) for n in range(4)] == [(8, 8)] * 4
    assert len(list((photos.parent / "kept").rglob("*.tar"))) == 2
    assert main(["cache"]) == 0
    assert "shards: 0 MiB of downloaded shards and indices" in capsys.readouterr().out
    assert main(["cache", "--clear"]) == 0
    assert "MiB of shards" in capsys.readouterr().out
    assert list((photos.parent / "kept").rglob("*.tar")) == []
    files.rm("/kept", recursive=True)


@pytest.mark.parametrize("form", ["tar", "parquet"])
@pytest.mark.parametrize(("channels", "dtype"), [(3, "u1"), (5, "u1"), (5, "f4")])
def test_shard__keeps_arrays_of_any_channels_also_from_archives(tmp_path, form, channels, dtype):
    draw = np.random.default_rng(0)
    with zipfile.ZipFile(tmp_path / "set.zip", "w") as archive:
        for number in range(8):
            content = BytesIO()
            np.save(content, draw.integers(0, 255, (9, 9, channels)).astype(dtype))
            archive.writestr(f"{'ab'[number % 2]}/{number}.npy", content.getvalue())
    paucal.shard(tmp_path / "set.zip", output=tmp_path / "shards", format=form)
    paucal.convert(tmp_path / "set.zip", to="folders", output=tmp_path / "folders")
    again = paucal.convert(tmp_path / "shards", to="folders", output=tmp_path / "again", channels=channels)
    kept = [sorted(contents(open_images(tmp_path / name))) for name in ("set.zip", "shards", "folders", "again")]
    assert len(kept[0]) == again.images == 8
    assert all(other == kept[0] for other in kept)
    assert {Path(key).suffix for key in open_images(tmp_path / "again").keys} == {".npy"}


def contents(images: ImageSet) -> list[bytes]:
    sources = [images.store.source(index) for index in range(len(images))]
    return [source.read_bytes() if isinstance(source, Path) else source for source in sources]
