"""Suffixes of the image files that the installed packages can read."""

import importlib.util

from PIL import features

_ALWAYS_READABLE = (
    *(".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gif", ".ppm"),
    *(".jfif", ".jpe", ".mpo", ".apng", ".pgm", ".pbm", ".pnm"),
    ".npy",  # a NumPy array of the pixels
)
# Pillow feature that is needed to read files of each suffix.
_PILLOW_FEATURES = {".jp2": "jpg_2000", ".j2k": "jpg_2000", ".jpx": "jpg_2000", ".j2c": "jpg_2000", ".avif": "avif"}
_HEIF = (".heic", ".heif", ".hif")  # suffixes that need the package pillow-heif


def _readable_suffixes() -> tuple[str, ...]:
    supported = {**features.modules, **features.codecs}
    in_pillow = [
        suffix for suffix, feature in _PILLOW_FEATURES.items() if feature in supported and features.check(feature)
    ]
    has_heif = importlib.util.find_spec("pillow_heif") is not None  # installed with `paucal[heif]`
    return (*_ALWAYS_READABLE, *in_pillow, *(_HEIF if has_heif else ()))


IMAGE_SUFFIXES = _readable_suffixes()


def install_command(suffix: str) -> str:
    """Return the command that installs support for a suffix that is not in `IMAGE_SUFFIXES`, if any; else ""."""
    if suffix in _HEIF:
        return "pip install 'paucal[heif]'"
    return "pip install -U pillow" if suffix in _PILLOW_FEATURES else ""
