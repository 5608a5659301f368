"""How many channels the images of a set have: three, unless they are arrays of others or somebody says so."""

from paucal.data.channels.arrays import NPY, TIFF
from paucal.data.channels.decoding import array_shape
from paucal.data.channels.planes import RGB
from paucal.data.decode import UnreadableImage
from paucal.data.images import ImageSet, locate
from paucal.data.sources.stores import EncodedStore
from paucal.types import UserError

_LOOKED_AT = 256
_GREY = 1  # is read as RGB, as grey photographs are


def count_channels(images: ImageSet) -> int:
    """Return how many channels a set is read with, from the headers of up to 256 images spread over it.

    Only files that Pillow cannot have another look at count: `.npy`, and TIFF of channels that it does not know.
    Whatever Pillow reads is RGB, and so is a single channel.

    Raises:
        UserError: two of them differ.
    """
    known: tuple[int, str] | None = None
    for index in images.sample(_LOOKED_AT):
        store, place = locate(images.store, int(index))
        if not isinstance(store, EncodedStore) or not store.name(place).lower().endswith((*NPY, *TIFF)):
            found = RGB
        else:
            try:
                shape = array_shape(store.source(place), store.name(place))
            except UnreadableImage:  # is named when all images are read
                continue
            found = RGB if shape is None or shape.channels == _GREY else shape.channels
        key = images.keys[int(index)]
        if known is not None and found != known[0]:
            raise UserError(
                f"the images differ in their channels: {known[1]} has {known[0]}, {key} has {found}; give --channels "
                "and only images of as many, or leave the others out with --on-bad-image skip."
            )
        known = known or (found, key)
    return RGB if known is None else known[0]


def spoken(channels: int) -> str:
    """Return what is said of a set whose images have other than three channels; "" of any other."""
    if channels == RGB:
        return ""
    kept = "" if channels < RGB else "; sheets and reports show the first three"
    return (
        f"images are read with {channels} channels{kept}; of the changes that training makes, those of colours are "
        "left out, which mean nothing there"
    )
