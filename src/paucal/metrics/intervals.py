"""Confidence intervals of scores that are measured on a small number of images."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import ceil, sqrt
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from paucal.metrics.measures import Mean, Measure, Weights, value_of

ROUNDING = 1e-12  # largest relative difference between scores that count as equal, because of rounding errors


@dataclass(frozen=True)
class Score:
    """A measured value and the ends of its confidence interval.

    `low` and `high` are None if all or nearly all resampled sets give the same value.
    """

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def ends(self) -> tuple[float, float]:
        """The ends of the interval; an end is the value itself if there is no interval."""
        return self.value if self.low is None else self.low, self.value if self.high is None else self.high

    @property
    def excludes_zero(self) -> bool:
        """Whether the interval excludes 0; False if there is no interval."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


def wilson(hits: int, total: int, level: float = 0.95) -> Score:
    """Return the fraction `hits / total` with the Wilson score interval (Wilson 1927).

    The interval covers the true fraction with probability `level`. It is also valid for 0 hits and for `total` hits,
    for which the bootstrap and the normal approximation give intervals of width 0.
    """
    if not 0 <= hits <= total or total < 1 or not 0 < level < 1:
        raise ValueError(f"expected 0 <= hits <= total, total >= 1, level in (0, 1), got {hits}, {total}, {level}")
    score = wilson_share(hits / total, total, level)
    # For 0 hits the lower end is 0, and for `total` hits the upper end is 1, which rounding errors might change.
    return Score(score.value, 0.0 if hits == 0 else score.low, 1.0 if hits == total else score.high)


def wilson_share(share: float, total: float, level: float = 0.95) -> Score:
    """Return the fraction `share` with its Wilson score interval; `total`, the number of images, may be fractional."""
    z = NormalDist().inv_cdf(0.5 + level / 2)
    centre = (share + z * z / (2 * total)) / (1 + z * z / total)
    half_width = z / (1 + z * z / total) * sqrt(share * (1 - share) / total + z * z / (4 * total * total))
    return Score(share, max(0.0, centre - half_width), min(1.0, centre + half_width))


def proportion_score(hits: NDArray[np.bool_], level: float = 0.95, groups: NDArray[np.int64] | None = None) -> Score:
    """Return the fraction of hits with the Wilson score interval, which is wider for groups of similar images.

    For groups, such as the frames of a video, the interval is computed for an effective number of independent images.
    With this number of images, the fraction has the same variance as estimated from whole groups. If there are few
    groups, the number is further reduced by quantiles of the t distribution (Korn and Graubard 1998, "Confidence
    intervals for proportions ... from survey data"; they use the interval of Clopper and Pearson). If all images or no
    images are hits, each group counts as one image. `groups` are (N,) group numbers, or None for independent images. If
    there is only one group, there is no interval.
    """
    count, share = len(hits), float(hits.mean())
    if groups is None:
        return wilson(int(hits.sum()), count, level)
    n_groups = len(np.unique(groups))
    if n_groups == 1:
        return Score(share)
    if share in (0.0, 1.0):
        return wilson(round(share * n_groups), n_groups, level)
    return wilson_share(share, effective_images(hits.astype(np.float64), level, groups), level)


def effective_images(
    shares: NDArray[np.float64], level: float = 0.95, groups: NDArray[np.int64] | None = None
) -> float:
    """Return the effective number of independent images (see `proportion_score`); without groups, it is N.

    `shares` are (N,) fractions, such as the fraction of each image's predictions that are correct.
    """
    count, share = len(shares), float(shares.mean())
    if groups is None:
        return count
    group_sums = np.bincount(_renumber(groups), shares - share)
    n_groups = len(group_sums)
    if share in (0.0, 1.0):
        return n_groups
    from scipy import stats  # imported here, since the import takes long

    variance = n_groups / (n_groups - 1) * float(np.square(group_sums).sum()) / count**2
    independent = min(share * (1 - share) / variance, count) if variance > 0 else count
    few_images, few_groups = stats.t.ppf(0.5 + level / 2, [count - 1, n_groups - 1])
    return independent * float(few_images / few_groups) ** 2


def images_needed(share: float, half_width: float) -> int:
    """Return the number of test images for which the 95 % Wilson interval is at most twice `half_width` wide.

    `share` is the expected fraction of correct predictions.

    >>> images_needed(0.9, 0.03), images_needed(0.5, 0.03)
    (388, 1064)
    """
    z = NormalDist().inv_cdf(0.975)
    a = half_width**2
    b = z * z * (2 * a - share * (1 - share))
    c = z**4 * (a - 0.25)
    return max(1, ceil((sqrt(max(0.0, b * b - 4 * a * c)) - b) / (2 * a)))


def cross_validated(
    hits: NDArray[np.bool_], level: float = 0.95, folds: int = 5, groups: NDArray[np.int64] | None = None
) -> Score:
    """Return the accuracy in a repeated cross-validation, with an interval for new images.

    The interval is the Wilson interval for a reduced number of images, since the training sets of the folds overlap.
    For K folds, the variance is 1 + K / (K - 1) times the variance for independent images (Nadeau and Bengio 2003,
    "Inference for the generalization error", section 4). Repeats with other folds reduce the variance of the accuracy,
    which the interval does not take into account. `hits` are (R, N) booleans for R repeats. `groups` are (N,) numbers
    of two or more groups that were not divided between folds (see `proportion_score`), or None for independent images.
    """
    n_images = effective_images(hits.mean(0), level, groups)
    return wilson_share(float(hits.mean()), independent_images(n_images, folds), level)


def independent_images(images: float, folds: int) -> float:
    """Return the number of independent test images whose accuracy has the same variance as in a cross-validation.

    See `cross_validated`.
    """
    return images / (1 + folds / (folds - 1))


def percentile(value: float, draws: np.ndarray, level: float = 0.95) -> Score:
    """Return `value` with the percentile interval of its bootstrap draws (Efron 1979).

    If the draws are so biased that the interval excludes `value`, the interval is extended to `value`. Draws that are
    NaN, for example because a class is missing from the resampled set, are ignored.
    """
    draws = draws[np.isfinite(draws)]
    if not len(draws) or not np.isfinite(value):
        return Score(value)
    low, high = np.quantile(draws, [0.5 - level / 2, 0.5 + level / 2])
    low, high = min(float(low), value), max(float(high), value)
    # If nearly all draws give the same value, their spread does not show how much other images would vary.
    is_constant = np.ptp(draws) <= ROUNDING * np.abs(draws).max() or high - low <= ROUNDING * abs(value)
    return Score(value) if is_constant else Score(value, low, high)


def mirrored_percentile(value: float, draws: np.ndarray, level: float = 0.95) -> Score:
    """Return `value`, a fraction, with the smallest interval that contains the percentile interval and its mirror.

    This function is for scores that are biased by resampling. If the draws are mostly lower than `value`, then `value`
    is lower than the true score by about the same amount. The mirrored ("basic") interval corrects this bias, but near
    0 and 1 the percentile interval is more accurate. The result covers both intervals and is clipped to [0, 1].
    """
    direct = percentile(value, draws, level)
    if direct.low is None or direct.high is None:
        return direct
    quantiles = np.quantile(draws[np.isfinite(draws)], [0.5 + level / 2, 0.5 - level / 2])
    low, high = (2 * value - float(quantile) for quantile in quantiles)
    return Score(value, max(0.0, min(direct.low, low)), min(1.0, max(direct.high, high)))


def _renumber(groups: NDArray[np.int64]) -> NDArray[np.int64]:
    """Number the groups from 0 in the order of their first images, so that equal groupings give equal draws."""
    _, first, numbers = np.unique(groups, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[numbers]


WEIGHTS_PER_CHUNK = 4_000_000  # number of weights in memory at a time, which take up 32 MB


@dataclass(frozen=True)
class Bootstrap:
    """Settings for resampling images and computing intervals from the scores of the resampled sets.

    Draws depend only on the seed, not on the machine, and no global random state is touched.
    """

    seed: int = 0  # seed of the draws; models with the same seed are compared on the same draws
    draws: int = 1000  # number of resampled sets of images
    level: float = 0.95  # probability that an interval covers the true value
    # Whether the counts of the images come from one multinomial draw instead of one draw per image. The two methods
    # have the same distribution. Segmentation uses True, so that stored intervals can be reproduced.
    multinomial: bool = False
    # (N,) group numbers of similar images, which are resampled as a whole; None for independent images.
    groups: NDArray[np.int64] | None = field(default=None, compare=False)

    def weights(self, n_images: int) -> Iterator[Weights]:
        """Yield (d, N) counts of how often each of N images is drawn, in chunks that have `draws` rows in total."""
        generator = np.random.default_rng(self.seed)
        max_rows = max(1, WEIGHTS_PER_CHUNK // n_images)
        group_of_image = None if self.groups is None else _renumber(self.groups)
        count = n_images if group_of_image is None else int(group_of_image.max()) + 1
        for start in range(0, self.draws, max_rows):
            rows = min(max_rows, self.draws - start)
            if self.multinomial:
                counts = generator.multinomial(count, np.full(count, 1 / count), size=rows)
            else:
                drawn = generator.integers(count, size=(rows, count)) + np.arange(rows)[:, None] * count
                counts = np.bincount(drawn.ravel(), minlength=rows * count).reshape(rows, count)
            yield (counts if group_of_image is None else counts[:, group_of_image]).astype(np.float64)

    def scores(self, measures: Sequence[Measure], n_images: int) -> list[NDArray[np.float64]]:
        """Return the (draws, ...) scores of each measure; all measures use the same resampled sets."""
        chunks = [[measure(weights) for measure in measures] for weights in self.weights(n_images)]
        return [np.concatenate(column) for column in zip(*chunks, strict=True)]

    def interval(self, measure: Measure, n_images: int) -> Score:
        """Return a score with its percentile interval (Efron 1979).

        If the score is a mean of exactly 0 or 1, resampling gives no interval, so the Wilson interval is used.
        """
        value = value_of(measure, n_images)
        score = percentile(value, self.scores([measure], n_images)[0], self.level)
        if score.low is None and isinstance(measure, Mean) and value in (0.0, 1.0):
            return proportion_score(np.full(n_images, value == 1.0), self.level, self.groups)
        return score

    def difference(self, first: Measure, second: Measure, n_images: int) -> Score:
        """Return `first` minus `second` on the same images, with the interval of the difference.

        Both measures use the same resampled sets, so images that are hard for both models do not widen the interval.
        """
        value = value_of(first, n_images) - value_of(second, n_images)
        first_draws, second_draws = self.scores([first, second], n_images)
        return percentile(value, first_draws - second_draws, self.level)
