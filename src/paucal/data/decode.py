"""Decoding of images to upright 8-bit RGB. Every failure becomes an `UnreadableImage` that names the image.

Images much larger than the network's input are reduced. Files are untrusted: every exception of a decoder is caught,
and warnings of decoders are silenced.
"""

import io
import stat
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image

from paucal.data.channels.pixels import has_high_bit_depth, high_bit_values, to_8_bits
from paucal.types import UserError
from paucal.wording import counted, join_first_few

ImageSource = bytes | Path

# Accepted formats; Pillow reads more, some of them through external programs (EPS through Ghostscript).
_FORMATS = ("JPEG", "MPO", "PNG", "WEBP", "BMP", "TIFF", "GIF", "PPM", "JPEG2000", "AVIF", "HEIF")
# Largest ratio of the longer to the shorter side. An image of 1 x 65,000 pixels, resized until its shorter side has the
# length of the network's input, would take up 10 GB.
_MAX_ASPECT_RATIO = 100
# Formats that `Image.draft` decodes at a reduced size. MPO, which some phones write, is JPEG with additional images.
_DRAFT_FORMATS = ("JPEG", "MPO")
# An image is reduced only if its shorter side is more than `_MIN_REDUCTION` times as long as the requested side.
_MIN_REDUCTION = 1.5
# Largest numbers of pixels and bytes of small JPEG images, which are decoded without Pillow. This saves little time for
# larger images.
MAX_SMALL_PIXELS = 128 * 128
MAX_SMALL_BYTES = 2 * MAX_SMALL_PIXELS
# Byte strings in files whose image may be stored rotated, or whose colours Pillow converts in a different way.
_PILLOW_ONLY_MARKS = (b"Exif\0", b"tiff:Orientation", b"Adobe\0")
_ORIENTATION_TAG = 0x0112  # number of the EXIF tag for the orientation
# Transposition that undoes each value of the EXIF orientation (EXIF 2.3, table 6).
UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


@dataclass(frozen=True)
class Orientation:
    """The EXIF orientation of a file, 1 (the default) to 8, and the (height, width) before and after rotation."""

    value: int
    stored_size: tuple[int, int]
    upright_size: tuple[int, int]

    @property
    def is_ambiguous(self) -> bool:
        """Whether the upright image differs from the stored image but has its size, so that annotations fit both."""
        return self.value != 1 and self.stored_size == self.upright_size


@dataclass(frozen=True)
class DecodeOptions:
    """How images are decoded: the size, the channels and the value ranges of the result."""

    side: int | None = None  # shorter side in pixels to which much larger images are reduced; None keeps all sizes
    # The values that become 0 and 255 in images of more than 8 bits. None: 0 and 65,535, and floats are refused.
    value_range: tuple[float, float] | None = None
    channels: int = 3  # number of channels of every image; 3 converts every image that Pillow reads to RGB
    # Value range of each channel, if `channels` is not 3.
    channel_ranges: tuple[tuple[float, float], ...] | None = None

    def reduced_size(self, size: tuple[int, int]) -> tuple[int, int]:
        """Return the size to which an image of the given size is reduced, with the sides in the same order."""
        shorter = min(size)
        if self.side is None or shorter <= _MIN_REDUCTION * self.side:
            return size
        first, second = (round(length * self.side / shorter) for length in size)
        return first, second


DEFAULT_DECODE_OPTIONS = DecodeOptions()


class UnreadableImage(UserError):
    """Error for an image that cannot be decoded; the message contains the name of the image and the reason."""

    def __init__(self, message: str) -> None:
        # torch recreates the exception with the loader process's traceback, which ends in the original message.
        super().__init__(message.rpartition(f"{type(self).__name__}: ")[2])


class _SilencedWarnings:
    """Thread-safe `warnings.catch_warnings`: the first thread silences warnings, and the last one restores them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._depth = 0
        self._catcher = warnings.catch_warnings()

    def __enter__(self) -> None:
        with self._lock:
            if self._depth == 0:
                self._catcher = warnings.catch_warnings()
                self._catcher.__enter__()
                warnings.simplefilter("ignore")
            self._depth += 1

    def __exit__(self, *exc_info: object) -> None:
        with self._lock:
            self._depth -= 1
            if self._depth == 0:
                self._catcher.__exit__(None, None, None)


_SILENCED_WARNINGS = _SilencedWarnings()


def decode_rgb(source: ImageSource, name: str, options: DecodeOptions = DEFAULT_DECODE_OPTIONS) -> Image.Image:
    """Decode an image to upright 8-bit RGB.

    The EXIF orientation is applied, an alpha channel is dropped (as torchvision's loader does), palettes are looked up,
    and values of more than 8 bits are scaled to 8 bits (Pillow's own conversion would clip grey values at 255). A JPEG
    that will be reduced is decoded at a half, a quarter or an eighth of its size.

    Pixels without a known value range (floats, or integers outside 0 to 65,535) are refused, and so are images beyond
    Pillow's limit against decompression bombs, or more than 100 times as long as wide.
    """
    small = decode_small(source) if isinstance(source, bytes) else None
    if small is not None and options.reduced_size(small.size) == small.size:
        return small
    with open_image(source, name) as image:
        size = options.reduced_size(image.size)
        if size != image.size and image.format in _DRAFT_FORMATS:
            image.draft(image.mode, size)
        return _decode_upright(image, size, options.value_range)


def decode_small(content: bytes) -> Image.Image | None:
    """Decode a small JPEG image to RGB without Pillow, in a third of the time, if the extra `jpeg` is installed.

    Pillow takes about 55 µs to open and return any image, five times as long as decoding 32 x 32 pixels takes. The
    pixels are the same, since Pillow and simplejpeg use libjpeg-turbo. The result is None if the image is not a small
    JPEG, is damaged, or might have other pixels if it is not decoded by Pillow.
    """
    if len(content) > MAX_SMALL_BYTES or not content.startswith(b"\xff\xd8\xff") or not _agrees_with_pillow():
        return None
    if any(mark in content for mark in _PILLOW_ONLY_MARKS):
        return None
    import simplejpeg

    try:
        *sides, colours, _ = simplejpeg.decode_jpeg_header(content)
        shorter, longer = sorted(map(int, sides))
        # An image of one row may be longer than `decode_jpeg` accepts.
        if shorter * longer > MAX_SMALL_PIXELS or shorter == 1 or colours not in ("YCbCr", "Gray"):
            return None
        return Image.fromarray(simplejpeg.decode_jpeg(content))
    except ValueError:  # damaged, or not supported by simplejpeg
        return None


@cache
def _agrees_with_pillow() -> bool:
    """Return whether simplejpeg is installed and decodes as Pillow does; the two may use different libjpeg versions."""
    try:
        import simplejpeg
    except ImportError:
        return False
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (33, 47, 3), dtype=np.uint8))
    for subsampling in (0, 1, 2):  # 4:4:4, 4:2:2, 4:2:0
        file = io.BytesIO()
        noise.save(file, "JPEG", subsampling=subsampling)
        with Image.open(file) as image:
            if not np.array_equal(np.asarray(image), simplejpeg.decode_jpeg(file.getvalue())):
                return False
    return True


def upright_rgb(image: Image.Image, options: DecodeOptions = DEFAULT_DECODE_OPTIONS) -> Image.Image:
    """Convert an image opened by Pillow in the same way as `decode_rgb`; the argument is not changed."""
    return _decode_upright(image, options.reduced_size(image.size), options.value_range)


def _decode_upright(image: Image.Image, size: tuple[int, int], value_range: tuple[float, float] | None) -> Image.Image:
    transposition = _exif_transposition(image)
    deep_pixels = high_bit_values(image) if has_high_bit_depth(image) else None  # read before `load` closes the file
    image.load()
    rgb = _to_rgb(image) if deep_pixels is None else to_8_bits(deep_pixels, value_range).convert("RGB")
    if rgb.size != size:
        rgb = rgb.resize(size, Image.Resampling.HAMMING, reducing_gap=2.0)
    rgb = rgb if transposition is None else rgb.transpose(transposition)
    rgb.info = {}  # Pillow copies the EXIF orientation, and a later reader would rotate the image again
    return rgb


def turn_upright(image: Image.Image) -> Image.Image:
    """Return an image opened by Pillow with its EXIF orientation applied."""
    transposition = _exif_transposition(image)
    image.load()
    return image if transposition is None else image.transpose(transposition)


def _orientation_of(image: Image.Image) -> Orientation:
    value, (width, height) = exif_orientation(image), image.size
    if value < 5:  # orientations 1 to 4 do not rotate by 90 degrees
        return Orientation(value, (height, width), (height, width))
    if image.format == "TIFF":  # Pillow has already swapped width and height
        return Orientation(value, (width, height), (height, width))
    return Orientation(value, (height, width), (width, height))


def _exif_transposition(image: Image.Image) -> Image.Transpose | None:
    """Return the transposition that turns a decoded image upright; None for a TIFF, which Pillow rotates itself."""
    return None if image.format == "TIFF" else UPRIGHT.get(exif_orientation(image))


def read_orientation(source: ImageSource, name: str) -> Orientation:
    """Read the EXIF orientation and the sizes of an image from the header, without decoding the pixels."""
    with open_image(source, name) as image:
        return _orientation_of(image)


def check_decodes(source: ImageSource, name: str, options: DecodeOptions = DEFAULT_DECODE_OPTIONS) -> None:
    """Raise `UnreadableImage` if an image cannot be decoded to its last byte; a JPEG is decoded at 1/8 of its size."""
    with open_image(source, name) as image:
        if has_high_bit_depth(image):
            to_8_bits(high_bit_values(image), options.value_range)
            return
        if image.format in _DRAFT_FORMATS:
            image.draft(image.mode, (1, 1))
        image.load()
        _to_rgb(image)


def decode_reduced(
    source: ImageSource, name: str, side: int, value_range: tuple[float, float] | None = None
) -> tuple[Image.Image, str, tuple[int, int]]:
    """Return the upright image (a JPEG at `side` or more), the mode in its file, and its full (height, width)."""
    with open_image(source, name) as image:
        mode, full_size = image.mode, _orientation_of(image).upright_size
        if image.format in _DRAFT_FORMATS:
            image.draft(image.mode, (side, side))
        return upright_rgb(image, DecodeOptions(value_range=value_range)), mode, full_size


@contextmanager
def open_image(source: ImageSource, name: str) -> Iterator[Image.Image]:
    """Open an image with Pillow, without its warnings; any exception in the block becomes an `UnreadableImage`."""
    file = io.BytesIO(source) if isinstance(source, bytes) else source
    with wrap_decoding_errors(name):
        if isinstance(source, Path) and not stat.S_ISREG(source.stat().st_mode):
            raise ValueError("it is not a regular file (a pipe or a device, for instance)")
        with _SILENCED_WARNINGS, Image.open(file, formats=_readable_formats()) as image:
            check_shape(*image.size)
            yield image


def check_shape(width: int, height: int) -> None:
    """Raise a ValueError if one side is over 100 times the other, or Pillow's error if the image is too large."""
    if max(width, height) > _MAX_ASPECT_RATIO * min(width, height):
        raise ValueError(f"{width} x {height} pixels are more than {_MAX_ASPECT_RATIO} times as long as wide")
    if width * height > 2 * (Image.MAX_IMAGE_PIXELS or width * height):
        raise Image.DecompressionBombError


@contextmanager
def wrap_decoding_errors(name: str) -> Iterator[None]:
    """Turn any exception of a decoder into an `UnreadableImage` that names the image."""
    try:
        yield
    except UnreadableImage:
        raise
    except Image.DecompressionBombError:
        raise UnreadableImage(
            f"image {name} has more than {2 * (Image.MAX_IMAGE_PIXELS or 0):,} pixels, the limit against "
            "decompression bombs; make the image smaller."
        ) from None
    # Decoders raise almost any exception on damaged data: OSError, SyntaxError, ValueError, struct.error, IndexError.
    except Exception as error:
        is_unknown = isinstance(error, Image.UnidentifiedImageError)
        reason = "it is empty or not in a supported format" if is_unknown else str(error) or type(error).__name__
        raise UnreadableImage(f"image {name} cannot be decoded: {reason}") from None


@cache
def _readable_formats() -> tuple[str, ...]:
    Image.init()
    try:
        from pillow_heif import register_heif_opener  # type: ignore[import-not-found]

        register_heif_opener()
    except ImportError:  # the extra `heif`, for photos of recent phones, is not installed
        pass
    return tuple(name for name in _FORMATS if name in Image.OPEN)


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode == "PA" or (image.mode == "P" and "transparency" in image.info):
        image = image.convert("RGBA")
    return image.convert("RGB")


def exif_orientation(image: Image.Image) -> int:
    """Return the EXIF orientation (1 to 8) of an image that is not decoded yet; 1 for invalid values and metadata."""
    try:
        # The `getexif` of PNG images would decode the pixels to find metadata after them.
        value = Image.Image.getexif(image).get(_ORIENTATION_TAG)
        return int(value) if value in UPRIGHT else 1
    except Exception:  # Pillow may raise any exception for damaged metadata, and the pixels are still usable
        return 1


def ambiguity_note(names: Sequence[str], annotations: str) -> str:
    """Return a note on images with an ambiguous `Orientation`; `annotations` is "masks" or "boxes"."""
    subject = counted(len(names), "image is rotated by its EXIF tag", "images are rotated by their EXIF tags")
    return (
        f"{subject} ({join_first_few(names)}), and the size does not show whether the {annotations} were drawn before "
        f"or after the rotation. The {annotations} are read as drawn after the rotation; check some {annotations}, or "
        "store the images upright without the tag"
    )
