"""Columns that are made of a row's other columns: its average over sets of images, and on how many of them it wins."""

from collections.abc import Mapping, Sequence

BySeed = Mapping[int, float]
DIGITS = 1  # after the point, in percent, at which a win is told from a tie, as the tables print


def average(sets: Sequence[BySeed]) -> dict[int, float]:
    """Return the mean over sets of images of every seed that all of them have.

    Args:
        sets: scores by seed.

    Example:
        >>> average([{0: 80.0, 1: 70.0}, {0: 60.0}])
        {0: 70.0}
    """
    seeds = [seed for seed in sets[0] if all(seed in one for one in sets)]
    return {seed: sum(one[seed] for one in sets) / len(sets) for seed in seeds}


def wins(sets: Sequence[BySeed], others: Sequence[BySeed]) -> dict[int, float]:
    """Return on how many sets of images a row is above another at the digits that are printed, by seed.

    Args:
        sets: scores by seed in percent.
        others: those of what it is compared with, on the same sets.

    Example:
        >>> wins([{0: 80.0}, {0: 60.04}], [{0: 79.0}, {0: 60.0}])
        {0: 1}
    """
    seeds = [seed for seed in sets[0] if all(seed in one for one in (*sets, *others))]
    pairs = list(zip(sets, others, strict=True))
    return {seed: sum(round(a[seed], DIGITS) > round(b[seed], DIGITS) for a, b in pairs) for seed in seeds}
