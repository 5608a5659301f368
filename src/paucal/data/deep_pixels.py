"""Images of more than 8 bits a channel: their values as they are, and as 8 bits.

Pillow keeps grey ones (modes "I;16", "I" and "F"), but of colours the upper 8 bits alone, so that 12-bit values in a
16-bit file keep 17 levels. torchvision reads 16-bit PNG whole, tifffile (extra `tiff`) TIFF.
"""

import io

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from PIL.TiffImagePlugin import TiffImageFile

_MOST = 65535
_BITS = 258  # the TIFF tag with the bits of each channel
_ALPHA = (2, 4)  # numbers of channels of which the last one is opacity


def is_deep(image: Image.Image) -> bool:
    """Return whether an image that Pillow has opened holds more than 8 bits a channel.

    Of one in colour that is decoded already, the 8 bits are all that is left.
    """
    return image.mode == "F" or image.mode.startswith("I") or _deep_colours(image)


def deep_values(image: Image.Image, opacity: bool = False) -> NDArray[np.generic]:
    """Return the (H, W) or (H, W, 3) values of a deep image, or one channel more where its opacity is asked for.

    Raises:
        ValueError: it is a TIFF in colour and tifffile is not installed, or the file is damaged.
    """
    if not _deep_colours(image):
        return np.asarray(image)
    file = getattr(image, "fp")  # noqa: B009 (Pillow declares it for files alone)
    file.seek(0)
    encoded = file.read()
    values = _png(encoded) if image.format == "PNG" else _tiff(encoded)
    if values.shape[:2] != (image.height, image.width):
        raise ValueError(f"it holds {values.shape} values, and its header says {image.width} x {image.height} pixels")
    if values.ndim == 3 and values.shape[2] in _ALPHA and not opacity:
        values = values[..., :-1]
    return values[..., 0] if values.ndim == 3 and values.shape[2] == 1 else values


def to_8_bits(values: NDArray[np.generic], value_range: tuple[float, float] | None) -> Image.Image:
    """Return values as an 8-bit picture: what is at or below the range becomes 0, at or above it 255.

    Args:
        values: (H, W) or (H, W, 3).
        value_range: the range; None for 0 to 65,535.

    Raises:
        ValueError: there is no range and the values are floats or beyond 16 bits, or they are of no real kind.

    Example:
        >>> list(to_8_bits(np.array([[0, 1000, 4095, 5000]]), (0, 4095)).tobytes())
        [0, 62, 255, 255]
    """
    if values.dtype.kind not in "iuf" or values.ndim not in (2, 3):
        raise ValueError(f"its pixels are {values.dtype} of shape {values.shape}")
    if value_range is None:
        return Image.fromarray(_whole_range(values))
    low, high = value_range
    scaled = (values.astype(np.float64) - low) * (255 / (high - low))
    return Image.fromarray(np.nan_to_num(scaled, nan=0.0).clip(0, 255).round().astype(np.uint8))


def _whole_range(values: NDArray[np.generic]) -> NDArray[np.uint8]:
    if values.dtype.kind == "f":
        raise ValueError("its pixels are floats of unknown range (save it with 8 or 16 bits)")
    wide = values.astype(np.int64)
    if wide.min() < 0 or wide.max() > _MOST:
        raise ValueError("its pixels are integers beyond 16 bits (save it with 8 or 16 bits)")
    return ((wide * 255 + _MOST // 2) // _MOST).astype(np.uint8)


def _deep_colours(image: Image.Image) -> bool:
    """Return whether Pillow is going to drop the lower 8 bits of each colour, or to mix them up (planes of a TIFF)."""
    tiles, colours = getattr(image, "tile", None), image.mode in ("RGB", "RGBA", "RGBX", "LA")
    if not colours or not tiles or getattr(image, "fp", None) is None:
        return False
    if isinstance(image, TiffImageFile):
        return max(image.tag_v2.get(_BITS, (8,))) > 8
    return image.format == "PNG" and ";16" in str(tiles[0][3])


def _png(encoded: bytes) -> NDArray[np.generic]:
    # Loaded here, because both take seconds and few images need them.
    import torch
    from torchvision.io import ImageReadMode, decode_png

    try:
        pixels = decode_png(torch.frombuffer(bytearray(encoded), dtype=torch.uint8), mode=ImageReadMode.UNCHANGED)
    except RuntimeError as problem:
        raise ValueError(str(problem).splitlines()[0]) from None
    return pixels.permute(1, 2, 0).numpy()


def _tiff(encoded: bytes) -> NDArray[np.generic]:
    try:
        import tifffile
    except ImportError:
        raise ValueError("it is a TIFF of 16-bit colours, which needs: pip install 'paucal[tiff]'") from None
    with tifffile.TiffFile(io.BytesIO(encoded)) as file:
        page = file.pages[0]
        values = page.asarray()
        planar = values.ndim == 3 and values.shape[0] in (3, 4) and page.axes.startswith("S")
    return np.moveaxis(values, 0, 2) if planar else values
