"""The suffixes of the image files that the installed packages can read."""

import importlib.util

from PIL import features

_ALWAYS = (
    *(".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gif", ".ppm"),
    *(".jfif", ".jpe", ".mpo", ".apng", ".pgm", ".pbm", ".pnm"),
    ".npy",  # an array of channels
)
# Requirement of each suffix: a feature of Pillow's build, or a package.
_BUILT_IN = {".jp2": "jpg_2000", ".j2k": "jpg_2000", ".jpx": "jpg_2000", ".j2c": "jpg_2000", ".avif": "avif"}
_HEIF = (".heic", ".heif", ".hif")


def _readable_suffixes() -> tuple[str, ...]:
    """Return the suffixes of the image files that the installed packages can read."""
    supported = {**features.modules, **features.codecs}
    built_in = [suffix for suffix, feature in _BUILT_IN.items() if feature in supported and features.check(feature)]
    has_heif = importlib.util.find_spec("pillow_heif") is not None  # the extra `heif`
    return (*_ALWAYS, *built_in, *(_HEIF if has_heif else ()))


IMAGE_SUFFIXES = _readable_suffixes()


def advice(suffix: str) -> str:
    """Return the command that makes files of a suffix outside `IMAGE_SUFFIXES` readable; "" if there is none.

    Example:
        >>> advice(".avif"), advice(".txt")
        ('pip install -U pillow', '')
    """
    if suffix in _HEIF:
        return "pip install 'paucal[heif]'"
    return "pip install -U pillow" if suffix in _BUILT_IN else ""
