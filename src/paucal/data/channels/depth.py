"""Images of another depth than those that a model was trained on: 8 bits a channel, or more."""

from paucal.data.channels.decoding import deep_channel_values
from paucal.data.decode import ImageSource, Reading, UnreadableImage
from paucal.data.images import ImageSet, locate_original
from paucal.data.sources.stores import EncodedStore

LOOKED_AT = 16  # images of a set


def has_other_depth(source: ImageSource, name: str, reading: Reading) -> bool:
    """Return whether an image has more bits a channel than the images of a model's training, or fewer.

    Args:
        source: Encoded bytes, or path of the file.
        name: Name of the image.
        reading: How the model's images are read: with ranges of values where they had more than 8 bits.
    """
    try:
        values = deep_channel_values(source, name, reading.channels)
    except UnreadableImage:
        return False
    return (values is not None) != _is_deep(reading)


def depth_notes(images: ImageSet, reading: Reading) -> list[str]:
    """Return a sentence where images of a set have another depth than those of a model's training; else nothing.

    Args:
        images: The set, of which up to 16 images are looked at.
        reading: How the model's images are read.
    """
    other, looked = 0, images.sample(LOOKED_AT)
    for index in looked:
        store, place = locate_original(images.store, int(index))
        if isinstance(store, EncodedStore):
            other += has_other_depth(store.source(place), store.name(place), reading)
    return [f"{describe_depth(reading)} ({other} of {len(looked)} looked at): the answers mean little"] if other else []


def describe_depth(reading: Reading, subject: str = "images have") -> str:
    """Return what is said of images whose depth is not that of a model's training."""
    own, trained = ("8", "more") if _is_deep(reading) else ("more than 8", "8")
    return f"{subject} {own} bits a channel, and the model was trained on images with {trained}"


def _is_deep(reading: Reading) -> bool:
    return reading.value_range is not None or reading.channel_ranges is not None
