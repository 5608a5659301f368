"""Confidence intervals of scores that are measured on few images."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import ceil, sqrt
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from paucal.metrics.measures import Mean, Measure, Weights, value_of

ROUNDING = 1e-12  # relative spread of equal scores that were summed in different orders


@dataclass(frozen=True)
class Score:
    """A measured value and its confidence interval.

    `low` and `high` are None if every resampled set, or nearly every one, gives the same value.
    """

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def ends(self) -> tuple[float, float]:
        """The ends of the interval; the value twice if there is no interval."""
        return self.value if self.low is None else self.low, self.value if self.high is None else self.high

    @property
    def excludes_zero(self) -> bool:
        """Whether there is an interval and it excludes 0."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


def wilson(hits: int, total: int, level: float = 0.95) -> Score:
    """Return the share `hits / total` with the Wilson score interval (Wilson 1927).

    Unlike the bootstrap and the normal approximation, it remains meaningful without hits or with only hits: ten of ten
    do not prove perfection.

    >>> score = wilson(10, 10)
    >>> round(score.value, 3), round(score.low, 3), round(score.high, 3)
    (1.0, 0.722, 1.0)
    """
    if not 0 <= hits <= total or total < 1 or not 0 < level < 1:
        raise ValueError(f"expected 0 <= hits <= total, total >= 1, level in (0, 1), got {hits}, {total}, {level}")
    score = wilson_share(hits / total, total, level)
    # The formula gives these ends exactly, but floating point may be off by an ulp.
    return Score(score.value, 0.0 if hits == 0 else score.low, 1.0 if hits == total else score.high)


def wilson_share(share: float, total: float, level: float = 0.95) -> Score:
    """Return a share with the Wilson score interval for a possibly fractional number of images."""
    z = NormalDist().inv_cdf(0.5 + level / 2)
    centre = (share + z * z / (2 * total)) / (1 + z * z / total)
    half_width = z / (1 + z * z / total) * sqrt(share * (1 - share) / total + z * z / (4 * total * total))
    return Score(share, max(0.0, centre - half_width), min(1.0, centre + half_width))


def share_of_hits(hits: NDArray[np.bool_], level: float = 0.95, groups: NDArray[np.int64] | None = None) -> Score:
    """Return the share of true values with the Wilson score interval, or with one for groups of alike images.

    Images of one group, such as the frames of a video, count as fewer: as many independent images as give the share the
    variance that it has over whole groups, reduced for few groups by quantiles of the t distribution (Korn and
    Graubard 1998, "Confidence intervals for proportions ... from survey data"; they use the interval of Clopper and
    Pearson). If all images or none are right, each group counts as one image.

    Args:
        hits: (N,) booleans.
        level: Probability that the interval covers the truth.
        groups: (N,) numbers of the groups; None for independent images. There is no interval for a single group.
    """
    count, share = len(hits), float(hits.mean())
    if groups is None:
        return wilson(int(hits.sum()), count, level)
    n_groups = len(np.unique(groups))
    if n_groups == 1:
        return Score(share)
    if share in (0.0, 1.0):
        return wilson(round(share * n_groups), n_groups, level)
    return wilson_share(share, _images_in_groups(hits.astype(np.float64), level, groups), level)


def _images_in_groups(shares: NDArray[np.float64], level: float, groups: NDArray[np.int64]) -> float:
    """Return how many independent images count as much as (N,) images in two or more groups, see `share_of_hits`."""
    count, share, group_sums = len(shares), float(shares.mean()), np.bincount(_numbered(groups), shares - shares.mean())
    n_groups = len(group_sums)
    if share in (0.0, 1.0):
        return n_groups
    from scipy import stats  # takes long to import

    variance = n_groups / (n_groups - 1) * float(np.square(group_sums).sum()) / count**2
    independent = min(share * (1 - share) / variance, count) if variance > 0 else count
    few_images, few_groups = stats.t.ppf(0.5 + level / 2, [count - 1, n_groups - 1])
    return independent * float(few_images / few_groups) ** 2


def images_needed(share: float, half_width: float, level: float = 0.95) -> int:
    """Return how many test images give a Wilson interval of at most twice `half_width`, if `share` are right.

    >>> images_needed(0.9, 0.03), images_needed(0.5, 0.03)
    (388, 1064)
    """
    z = NormalDist().inv_cdf(0.5 + level / 2)
    a = half_width**2
    b = z * z * (2 * a - share * (1 - share))
    c = z**4 * (a - 0.25)
    return max(1, ceil((sqrt(max(0.0, b * b - 4 * a * c)) - b) / (2 * a)))


def cross_validated(
    hits: NDArray[np.bool_], level: float = 0.95, folds: int = 5, groups: NDArray[np.int64] | None = None
) -> Score:
    """Return the accuracy in a repeated cross-validation, with an interval for further images.

    It is Wilson's interval for a reduced number of images, since the fits of the folds share training images. The
    variance is that of independent images times 1 + K / (K - 1) for K folds (Nadeau and Bengio 2003, "Inference for
    the generalization error", section 4). Repeats with other folds make the share more stable; the interval ignores
    that.

    Args:
        hits: (R, N) booleans, whether each image was classified correctly in each of R repeats.
        level: Share of intervals that contain the truth.
        folds: Number of folds K.
        groups: (N,) numbers of two or more groups that folds kept whole, see `share_of_hits`; None for independent
            images.
    """
    return wilson_share(float(hits.mean()), independent_images(hits, folds, level, groups), level)


def independent_images(
    hits: NDArray[np.bool_], folds: int, level: float = 0.95, groups: NDArray[np.int64] | None = None
) -> float:
    """Return the effective number of independent test images of a cross-validation, see `cross_validated`."""
    images = hits.shape[1] if groups is None else _images_in_groups(hits.mean(0), level, groups)
    return images / (1 + folds / (folds - 1))


def percentile(value: float, draws: np.ndarray, level: float = 0.95) -> Score:
    """Return `value` with the percentile interval of its bootstrap draws (Efron 1979).

    The interval is widened to contain `value` if the bias of the draws would exclude it. Draws whose score is NaN, for
    example because they lack a class, do not count.
    """
    draws = draws[np.isfinite(draws)]
    if not len(draws) or not np.isfinite(value):
        return Score(value)
    low, high = np.quantile(draws, [0.5 - level / 2, 0.5 + level / 2])
    low, high = min(float(low), value), max(float(high), value)
    # Draws that nearly always give the same value say nothing about other images.
    is_constant = np.ptp(draws) <= ROUNDING * np.abs(draws).max() or high - low <= ROUNDING * abs(value)
    return Score(value) if is_constant else Score(value, low, high)


def two_sided(value: float, draws: np.ndarray, level: float = 0.95) -> Score:
    """Return `value`, a share, with the smallest interval that contains the percentile interval and its mirror image.

    For scores that resampling biases: if the draws lie to one side of the value, the truth lies as far on the other
    side, so the mirrored ("basic") interval is right in principle; the percentile interval is better near 0 and 1.
    Their union is cautious. It is clipped to [0, 1].
    """
    direct = percentile(value, draws, level)
    if direct.low is None or direct.high is None:
        return direct
    quantiles = np.quantile(draws[np.isfinite(draws)], [0.5 + level / 2, 0.5 - level / 2])
    low, high = (2 * value - float(quantile) for quantile in quantiles)
    return Score(value, max(0.0, min(direct.low, low)), min(1.0, max(direct.high, high)))


def _numbered(groups: NDArray[np.int64]) -> NDArray[np.int64]:
    """Number groups from 0 by their first image, so that draws do not depend on how they were numbered before."""
    _, first, numbers = np.unique(groups, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[numbers]


CHUNK = 4_000_000  # weights in memory at once, 32 MB


@dataclass(frozen=True)
class Bootstrap:
    """Settings for resampling images and computing intervals from the scores of the resampled sets.

    Draws depend only on the seed, not on the machine, and no global random state is touched.

    Attributes:
        seed: Seed of the draws; the same for every model, which makes comparisons paired.
        draws: Number of resampled sets of images.
        level: Share of intervals that contain the truth.
        multinomial: Whether the counts of the images come from one multinomial draw instead of one draw per image. Both
            have the same distribution; the stored intervals of segmentation were drawn with True.
        groups: (N,) numbers of groups of alike images, which are drawn whole; None for independent images.
    """

    seed: int = 0
    draws: int = 1000
    level: float = 0.95
    multinomial: bool = False
    groups: NDArray[np.int64] | None = field(default=None, compare=False)

    def weights(self, n_images: int) -> Iterator[Weights]:
        """Yield (d, N) counts of how often each image is drawn, in chunks that have `draws` rows in total."""
        generator = np.random.default_rng(self.seed)
        at_once = max(1, CHUNK // n_images)
        group_of_image = None if self.groups is None else _numbered(self.groups)
        count = n_images if group_of_image is None else int(group_of_image.max()) + 1
        for start in range(0, self.draws, at_once):
            rows = min(at_once, self.draws - start)
            if self.multinomial:
                counts = generator.multinomial(count, np.full(count, 1 / count), size=rows)
            else:
                drawn = generator.integers(count, size=(rows, count)) + np.arange(rows)[:, None] * count
                counts = np.bincount(drawn.ravel(), minlength=rows * count).reshape(rows, count)
            yield (counts if group_of_image is None else counts[:, group_of_image]).astype(np.float64)

    def scores(self, measures: Sequence[Measure], n_images: int) -> list[NDArray[np.float64]]:
        """Return the (draws, ...) scores of each measure, all on the same resampled sets."""
        chunks = [[measure(weights) for measure in measures] for weights in self.weights(n_images)]
        return [np.concatenate(column) for column in zip(*chunks, strict=True)]

    def interval(self, measure: Measure, n_images: int) -> Score:
        """Return a score with its percentile interval (Efron 1979).

        If every image is right, or no image is, resampling gives no interval; a share then has its Wilson interval.
        """
        value = value_of(measure, n_images)
        score = percentile(value, self.scores([measure], n_images)[0], self.level)
        if score.low is None and isinstance(measure, Mean) and value in (0.0, 1.0):
            return share_of_hits(np.full(n_images, value == 1.0), self.level, self.groups)
        return score

    def difference(self, first: Measure, second: Measure, n_images: int) -> Score:
        """Return `first` minus `second` on the same images, with the interval of the difference.

        Both are scored on the same resampled sets, so that images that are hard for both do not widen the interval.
        """
        value = value_of(first, n_images) - value_of(second, n_images)
        a, b = self.scores([first, second], n_images)
        return percentile(value, a - b, self.level)
