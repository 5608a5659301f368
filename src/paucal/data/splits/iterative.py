"""Shares of images that have several labels, so that every part has its share of every class.

Iterative stratification (Sechidis, Tsoumakas and Vlahavas, "On the stratification of multi-label data", ECML PKDD 2011,
figure 2): the class with the fewest images left is dealt out first, image by image, each to the part that still lacks
most of that class. Images without a label come last, to the part that lacks most images. Differs from the paper in how
ties end: for the part that comes first, not by chance; chance orders the images.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from paucal.data.images import UNKNOWN, Targets


def iterative_parts(multi_hot: Targets, shares: Sequence[float], seed: int) -> NDArray[np.int64]:
    """Return the (N,) number of the part of each image.

    The rarest classes get their shares most exactly. Every part with a share gets an image where there are as many.

    Args:
        multi_hot: (N, K) of 1, 0 and -1; what is unknown counts as 0.
        shares: of each part; they sum to 1.
        seed: of the order of the images.
    """
    if abs(sum(shares) - 1) > 1e-6 or min(shares) < 0:
        raise ValueError(f"expected shares that sum to 1, got {list(shares)}")
    rows = np.where(multi_hot == UNKNOWN, 0, multi_hot).astype(bool)
    order = np.random.default_rng(seed).permutation(len(rows))
    parts = np.full(len(rows), -1, dtype=np.int64)
    wanted_images = np.asarray(shares, dtype=np.float64) * len(rows)
    wanted = np.outer(shares, rows.sum(0))  # (P, K)
    left = rows.sum(0)
    while left.any():
        label = int(np.where(left > 0, left, len(rows) + 1).argmin())
        for place in order[(parts[order] < 0) & rows[order, label]]:
            part = max(range(len(shares)), key=lambda one: (wanted[one, label], wanted_images[one]))
            parts[place] = part
            wanted[part] -= rows[place]
            wanted_images[part] -= 1
            left = left - rows[place]
    for place in order[parts[order] < 0]:
        part = int(wanted_images.argmax())
        parts[place], wanted_images[part] = part, wanted_images[part] - 1
    return parts
