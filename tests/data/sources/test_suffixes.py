import io

import numpy as np
import pytest
from PIL import Image, features

from paucal.data.channels.decoding import decode_image
from paucal.data.decode import decode_rgb
from paucal.data.sources import suffixes
from paucal.data.sources.folder import find_images, open_folder
from paucal.data.sources.suffixes import install_command
from paucal.types import UserError


@pytest.mark.parametrize("suffix", sorted(suffixes.IMAGE_SUFFIXES))
def test_suffixes__are_of_files_that_are_read(tmp_path, suffix):
    file = tmp_path / f"x{suffix.upper()}"
    form = "HEIF" if suffix in (".heic", ".heif", ".hif") else None
    mode = "1" if suffix == ".pbm" else "L" if suffix == ".pgm" else "RGB"
    decode_rgb(_png(tmp_path), "x")  # registers what can be read and written
    white = Image.new(mode, (64, 32), "white")
    if suffix == ".npy":
        file.write_bytes(_npy(np.asarray(white)))
    else:
        white.save(file, form)
    assert find_images(tmp_path) == sorted(["png.png", file.name])
    decoded = decode_image(file, "x")
    assert decoded.size == (64, 32)
    assert np.asarray(decoded).min() >= 250


def _npy(array):
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def _png(folder):
    file = folder / "png.png"
    Image.new("RGB", (2, 2)).save(file)
    return file


def test_suffixes__leave_out_what_this_pillow_cannot_read(monkeypatch):
    assert (".avif" in suffixes.IMAGE_SUFFIXES) == bool(features.check("avif"))
    monkeypatch.setattr(suffixes.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(suffixes.features, "check", lambda feature: False)
    assert not {".heic", ".avif", ".jp2"} & set(suffixes._readable_suffixes())
    monkeypatch.setattr(suffixes.importlib.util, "find_spec", lambda name: object())
    assert ".heic" in suffixes._readable_suffixes()


def test_open_folder__says_what_makes_passed_over_files_readable(make_folder, monkeypatch):
    folder = make_folder("a/1.png", "b/1.png")
    (folder / "a" / "2.heic").write_bytes(b"x")
    (folder / "b" / "notes.txt").write_bytes(b"x")
    monkeypatch.setattr("paucal.data.sources.folder.IMAGE_SUFFIXES", (".png",))
    assert open_folder(folder).notes == (
        "2 files were skipped for having no known image format (1 .heic, 1 .txt); to read them: "
        "pip install 'paucal[heif]'",
    )
    for file in folder.rglob("*.png"):
        file.unlink()
    with pytest.raises(UserError, match=r"no images in .*paucal\[heif\]"):
        open_folder(folder)


def test_install_command__is_for_what_a_package_could_read():
    assert (install_command(".avif"), install_command(".txt")) == ("pip install -U pillow", "")
