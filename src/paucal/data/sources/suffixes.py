"""The ends of the names of image files, as far as such files can be read here."""

import importlib.util

from PIL import features

_ALWAYS = (
    *(".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gif", ".ppm"),
    *(".jfif", ".jpe", ".mpo", ".apng", ".pgm", ".pbm", ".pnm"),
    ".npy",  # an array of channels
)
# What each kind needs: a feature that Pillow was built with, or a package.
_BUILT_IN = {".jp2": "jpg_2000", ".j2k": "jpg_2000", ".jpx": "jpg_2000", ".j2c": "jpg_2000", ".avif": "avif"}
_HEIF = (".heic", ".heif", ".hif")


def has_heif() -> bool:
    """Return whether photos of recent phones can be read: the extra `heif`."""
    return importlib.util.find_spec("pillow_heif") is not None


def _readable() -> tuple[str, ...]:
    known = {**features.modules, **features.codecs}
    built_in = [suffix for suffix, feature in _BUILT_IN.items() if feature in known and features.check(feature)]
    return (*_ALWAYS, *built_in, *(_HEIF if has_heif() else ()))


IMAGE_SUFFIXES = _readable()


def advice(suffix: str) -> str:
    """Return what makes files of a kind readable that are none of `IMAGE_SUFFIXES`; "" where nothing does.

    Example:
        >>> advice(".avif"), advice(".txt")
        ('pip install -U pillow', '')
    """
    if suffix in _HEIF:
        return "pip install 'paucal[heif]'"
    return "pip install -U pillow" if suffix in _BUILT_IN else ""
