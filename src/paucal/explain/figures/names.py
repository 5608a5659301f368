"""Classes as people name them."""

import re
from functools import cache

from timm.data.imagenet_info import ImageNetInfo

_SYNSET = re.compile(r"n\d{8}")  # of WordNet, by which ImageNet names its classes


def spoken(name: str) -> str:
    """Return the first word for a class of ImageNet, which is named by a number; any other name as it is.

    Example:
        >>> spoken("n03680355"), spoken("cat")
        ('Loafer', 'cat')
    """
    return _word(name) if _SYNSET.fullmatch(name) else name


@cache
def _word(synset: str) -> str:
    try:
        return _words().label_name_to_description(synset, detailed=False).split(",")[0]
    except (KeyError, IndexError):  # none of ImageNet's
        return synset


@cache
def _words() -> ImageNetInfo:
    return ImageNetInfo("imagenet-22k")
