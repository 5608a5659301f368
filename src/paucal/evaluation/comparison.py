"""Differences between two training methods, paired by seed and by test image."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, hypot

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from paucal.metrics.intervals import Bootstrap, Score, percentile
from paucal.metrics.measures import Weights

LEVEL = 0.95
POWER = 0.8  # required probability of detecting a difference
MAX_SEEDS = 1000  # largest number of seeds that `count_seeds_needed` considers


@dataclass(frozen=True)
class ScoreOverSeeds:
    """The scores of several seeds and their mean.

    Attributes:
        values: One score for each seed.
        score: Mean score with the t-interval (Student 1908). If there is a single seed, or if all values are equal,
            there is no interval, since the scores do not show how much other seeds would vary.
        deviation: Standard deviation with n - 1 in the denominator; None for a single seed.
    """

    values: tuple[float, ...]
    score: Score
    deviation: float | None


@dataclass(frozen=True)
class Difference:
    """The gain of one training method over another, in the unit of the score.

    Attributes:
        by_seed: Difference between the two methods for each seed, and the mean difference with the paired t-interval.
        over_images: Mean difference with the interval of a paired bootstrap over test images.
        both: Mean difference with the combined interval over seeds and test images (see `difference`).
        images: Number of different test images.
        groups: Number of groups of test images (the bootstrap resampled whole groups); None if the images have no
            groups.
        seeds_needed: Number of seeds needed to detect a difference as large as the mean difference; None if this number
            cannot be computed or is above 1000 (see `count_seeds_needed`).
        images_needed: Number of test images that would be needed to detect a difference as large as the mean difference
            if seeds had no effect; None if the mean difference is 0.
    """

    by_seed: ScoreOverSeeds
    over_images: Score
    both: Score
    images: int
    groups: int | None
    seeds_needed: int | None
    images_needed: int | None

    @property
    def value(self) -> float:
        """The mean difference."""
        return self.both.value

    @property
    def clear(self) -> bool:
        """Whether the interval over seeds and images excludes 0; False if there is no interval over seeds."""
        return self.by_seed.score.low is not None and self.both.excludes_zero


def score_over_seeds(values: Sequence[float], level: float = LEVEL) -> ScoreOverSeeds:
    """Return the mean over seeds, its t-interval and the standard deviation."""
    if not len(values):
        raise ValueError("expected the scores of at least one seed")
    mean = float(np.mean(values))
    if len(values) == 1 or np.ptp(values) == 0:  # scipy would divide by a deviation of zero
        return ScoreOverSeeds(tuple(values), Score(mean), None if len(values) == 1 else 0.0)
    interval = stats.ttest_1samp(values, 0.0).confidence_interval(level)
    score = Score(mean, float(interval.low), float(interval.high))
    return ScoreOverSeeds(tuple(values), score, float(np.std(values, ddof=1)))


def difference(
    first: NDArray[np.float64],
    second: NDArray[np.float64],
    level: float = LEVEL,
    draws: int = 2000,
    seed: int = 0,
    groups: Sequence[object] | None = None,
) -> Difference:
    """Return the gain of the first method over the second, with intervals over seeds and over test images.

    The interval over seeds shows how the gain would vary with other seeds on the same test images. The interval over
    images shows how the gain of the same runs would vary with other test images. The combined interval adds the two
    half-widths in quadrature (MOVER: Zou and Donner 2008, "Construction of confidence limits about effect measures"),
    so the combined interval is wider than each of the two. With few seeds, the combined interval is wide, unlike
    intervals from resampled seeds or from pooled degrees of freedom. Both half-widths include the interaction of seeds
    and images.

    `first` and `second` are (S, N) scores of S seeds on N test images, such as 1 for a correct and 0 for a wrong
    prediction; NaN if an image was not tested with a seed. `groups` has the group of each image, such as a patient's
    name; the bootstrap resamples whole groups, since their images are similar.
    """
    if first.shape != second.shape or not first.size or not np.array_equal(np.isnan(first), np.isnan(second)):
        raise ValueError(f"expected the same images and seeds, got {first.shape} and {second.shape}")
    gaps = first - second
    is_tested = ~np.isnan(gaps)
    gaps, tested = np.where(is_tested, gaps, 0.0), is_tested.astype(np.float64)
    over_seeds = score_over_seeds((gaps.sum(1) / is_tested.sum(1)).tolist(), level)
    group_numbers = None if groups is None else np.unique(np.asarray(groups), return_inverse=True)[1]

    def mean_gap(weights: Weights) -> NDArray[np.float64]:
        """Return the (D,) mean differences over seeds on D resampled sets of images."""
        counts = weights @ tested.T
        return np.divide(weights @ gaps.T, counts, out=np.zeros_like(counts), where=counts > 0).mean(1)

    drawn_gaps = Bootstrap(seed, draws, groups=group_numbers).scores([mean_gap], gaps.shape[1])[0]
    over_images = percentile(over_seeds.score.value, drawn_gaps, level)
    images = int(is_tested.any(0).sum())
    image_error = float(drawn_gaps.std(ddof=1))
    combined, value = _combine_intervals(over_seeds.score, over_images), over_seeds.score.value
    # The number of images with which the difference would be detected if only the choice of images added uncertainty.
    z_sum = float(stats.norm.ppf(0.5 + level / 2)) + float(stats.norm.ppf(POWER))
    images_needed = max(1, ceil(images * (z_sum * image_error / abs(value)) ** 2)) if value != 0 else None
    return Difference(
        over_seeds,
        over_images,
        combined,
        images,
        None if group_numbers is None else int(group_numbers.max()) + 1,
        count_seeds_needed(value, over_seeds.deviation, level),
        images_needed,
    )


def _combine_intervals(over_seeds: Score, over_images: Score) -> Score:
    """Return the mean with the half-widths of both intervals combined in quadrature, separately above and below.

    If there is no interval over seeds, the interval over images is used. If there is no interval over images (every
    test image gives the same difference), the result has no interval unless the difference is 0.
    """
    value, ends = over_seeds.value, []
    if over_images.low is None and value != 0:
        return Score(value)
    for side in ("low", "high"):
        half_widths = [end - value for score in (over_seeds, over_images) if (end := getattr(score, side)) is not None]
        ends.append(hypot(*half_widths) if half_widths else None)
    below, above = ends
    return Score(value) if below is None or above is None else Score(value, value - below, value + above)


def count_seeds_needed(value: float, deviation: float | None, level: float = LEVEL) -> int | None:
    """Return the number of seeds with which a paired t-test detects a difference with a probability of 80 %.

    The power is computed from the noncentral t distribution (Cohen 1988) with the measured standard deviation of the
    differences over seeds. The result is None if the deviation is unknown, the difference is 0, or 1000 seeds are not
    enough.
    """
    if not deviation or value == 0:
        return None
    counts = np.arange(2, MAX_SEEDS + 1)
    shift = abs(value) / deviation * np.sqrt(counts)
    bound = stats.t.ppf(0.5 + level / 2, counts - 1)
    power = stats.nct.sf(bound, counts - 1, shift)
    enough = np.flatnonzero(power >= POWER)
    return int(counts[enough[0]]) if len(enough) else None
