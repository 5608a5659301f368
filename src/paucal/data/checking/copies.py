"""Search for images that look like images of another set, or like an earlier image of the same set."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from paucal.data.images import ImageSet
from paucal.data.sources.joining import join_sets
from paucal.data.splits.groups import DUPLICATES, group_numbers


def find_copies(
    images: ImageSet, reference_images: ImageSet | None = None
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return two (N,) masks: whether each image is a copy of a reference image, or of an earlier image of `images`.

    Raises:
        UserError: One of the sets is streamed from shards.
    """
    sets = [
        replace(image_set, classes=(), labels=np.full(len(image_set), -1), multi_hot=None, columns={})
        for image_set in (reference_images, images)
        if image_set is not None
    ]
    numbers = group_numbers(join_sets(sets, images.location) if len(sets) > 1 else sets[0], DUPLICATES)
    other_numbers, image_numbers = np.split(numbers, [len(numbers) - len(images)])
    is_first = np.zeros(len(image_numbers), dtype=bool)
    is_first[np.unique(image_numbers, return_index=True)[1]] = True
    return np.isin(image_numbers, other_numbers), ~is_first
