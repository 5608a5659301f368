import numpy as np
import pytest
from PIL import Image

from paucal.cli.main import main
from paucal.data.decode import DecodeOptions
from paucal.data.decoded.prepare import prepare_images
from paucal.data.sources.opening import open_images


@pytest.fixture
def photos(tmp_path, monkeypatch):
    monkeypatch.setenv("PAUCAL_IMAGE_CACHE", str(tmp_path / "kept images"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    for name in ("a", "b"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        squares = np.random.default_rng(0).integers(0, 255, (60, 70, 3), dtype=np.uint8)
        pixels = squares.repeat(10, axis=0).repeat(10, axis=1)
        Image.fromarray(pixels).save(tmp_path / "photos" / name / "1.png")
    return tmp_path / "photos"


def test_cache__says_what_is_kept_and_removes_it(photos, capsys):
    prepare_images(open_images(photos), DecodeOptions(side=64))
    prepare_images(open_images(photos), DecodeOptions(side=512))
    features = photos.parent / "user" / "paucal" / "features"
    features.mkdir(parents=True)
    (features / "x.safetensors").write_bytes(bytes(3 << 20))
    (features / "mine.txt").write_text("stays")
    assert main(["cache"]) == 0
    said = capsys.readouterr().out
    assert "decoded images: 2 sets, 2 MiB of at most 32 GiB" in said
    assert str(photos.parent / "kept images") in said
    assert "features: 1 file, 3 MiB" in said
    assert main(["cache", "--clear"]) == 0
    said = capsys.readouterr().out
    assert "removed 2 MiB of decoded images" in said
    assert "removed 3 MiB of features" in said
    assert list((photos.parent / "kept images").iterdir()) == []
    assert [file.name for file in features.iterdir()] == ["mine.txt"]


def test_cache__says_so_where_nothing_is_kept(photos, capsys, monkeypatch):
    assert main(["cache"]) == 0
    assert "0 sets, 0 MiB" in capsys.readouterr().out
    monkeypatch.setenv("PAUCAL_IMAGE_CACHE", "off")
    assert main(["cache", "--clear"]) == 0
    assert "not cached (PAUCAL_IMAGE_CACHE is off)" in capsys.readouterr().out
