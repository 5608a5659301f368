"""The EXIF orientation of images: what it says, and whether the size of an annotation shows if it was obeyed."""

from collections.abc import Sequence
from dataclasses import dataclass

from PIL import Image

from paucal.wording import counted

_TAG = 0x0112
_SHOWN = 5  # images that a note names
# What undoes each value of the EXIF orientation tag (EXIF 2.3, table 6).
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
    """The EXIF orientation of an image file, with its size before and after it is applied.

    Attributes:
        value: EXIF orientation from 1 to 8; 1 where the file has none or an invalid one.
        stored: (height, width) in pixels as stored.
        upright: (height, width) in pixels as seen.
    """

    value: int
    stored: tuple[int, int]
    upright: tuple[int, int]

    @property
    def is_ambiguous(self) -> bool:
        """Whether an annotation of this image has the same size before and after the image is turned.

        So it is for half turns, mirror images and squares. Whether boxes or a mask were drawn on the stored or on the
        upright pixels cannot be told from their size then.
        """
        return self.value != 1 and self.stored == self.upright


def orientation_of(image: Image.Image) -> int:
    """Return the EXIF orientation of an image that Pillow has opened and not decoded yet.

    Returns:
        A value from 1 to 8. An invalid value (65537, 0, text) and damaged metadata count as 1, upright.
    """
    try:
        # A PNG's own `getexif` decodes the pixels to look behind them.
        value = Image.Image.getexif(image).get(_TAG)
        return int(value) if value in UPRIGHT else 1
    except Exception:  # Pillow raises nearly anything for damaged metadata, which does not make the pixels unusable
        return 1


def ambiguity_note(names: Sequence[str], annotations: str) -> str:
    """Return the sentence that says which annotations may be drawn on pixels that were not turned yet.

    Args:
        names: Names of the images whose `Orientation.is_ambiguous`, at least one.
        annotations: Word for what was drawn, such as "masks" or "boxes".
    """
    shown = ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
    turned = counted(len(names), "image is turned by its EXIF tag", "images are turned by their EXIF tags")
    return (
        f"{turned} ({shown}), and the size does not show whether the {annotations} were drawn before or after the "
        "turn: they are read as drawn after it; look at some of them, or store the images upright without the tag"
    )
