"""Images of one set that look like images of another, or like an earlier one of their own set."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from paucal.data.images import ImageSet
from paucal.data.sources.joining import join_sets
from paucal.data.splits.groups import DUPLICATES, group_numbers


def copies_among(images: ImageSet, known: ImageSet | None = None) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return two (N,) masks: images that look like one of another set, and those like an earlier one of their own.

    Raises:
        UserError: A set is streamed from shards.
    """
    sets = [
        replace(image_set, classes=(), labels=np.full(len(image_set), -1), multi_hot=None, columns={})
        for image_set in (known, images)
        if image_set is not None
    ]
    numbers = group_numbers(join_sets(sets, images.location) if len(sets) > 1 else sets[0], DUPLICATES)
    other_numbers, own_numbers = np.split(numbers, [len(numbers) - len(images)])
    first = np.zeros(len(own_numbers), dtype=bool)
    first[np.unique(own_numbers, return_index=True)[1]] = True
    return np.isin(own_numbers, other_numbers), ~first
