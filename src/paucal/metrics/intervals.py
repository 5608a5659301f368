"""How far a score from few images may lie from the truth."""

from dataclasses import dataclass
from math import sqrt
from statistics import NormalDist

import numpy as np

ROUNDING = 1e-12  # relative spread of draws that are all the same score, summed in another order


@dataclass(frozen=True)
class Score:
    """A measured value and the interval that its truth lies in at the stated level.

    `low` and `high` are None where the images allow no statement: every resampled set gives the same value.
    """

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def ends(self) -> tuple[float, float]:
        """The interval; the value twice where there is none."""
        return self.value if self.low is None else self.low, self.value if self.high is None else self.high

    @property
    def excludes_zero(self) -> bool:
        """Whether there is an interval that leaves out 0."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


def wilson(hits: int, total: int, level: float = 0.95) -> Score:
    """Return the share `hits / total` with the Wilson score interval (Wilson 1927).

    Unlike the bootstrap and the textbook plus-or-minus it still says something when none or all are hits: ten
    of ten right is no proof of perfection.

    >>> score = wilson(10, 10)
    >>> round(score.value, 3), round(score.low, 3), round(score.high, 3)
    (1.0, 0.722, 1.0)
    """
    if not 0 <= hits <= total or total < 1 or not 0 < level < 1:
        raise ValueError(f"expected 0 <= hits <= total, total >= 1, level in (0, 1), got {hits}, {total}, {level}")
    z = NormalDist().inv_cdf(0.5 + level / 2)
    share = hits / total
    centre = (share + z * z / (2 * total)) / (1 + z * z / total)
    half = z / (1 + z * z / total) * sqrt(share * (1 - share) / total + z * z / (4 * total * total))
    # The formula's exact ends; floating point misses them by an ulp.
    low = 0.0 if hits == 0 else max(0.0, centre - half)
    high = 1.0 if hits == total else min(1.0, centre + half)
    return Score(share, low, high)


def percentile(value: float, draws: np.ndarray, level: float = 0.95) -> Score:
    """Return `value` with the percentile interval of its bootstrap draws (Efron 1979).

    The interval is widened to contain `value` where the bias of the draws would exclude it. Draws without a score (not
    a number), such as those that lack a class, do not count.
    """
    draws = draws[np.isfinite(draws)]
    if not len(draws) or np.ptp(draws) <= ROUNDING * np.abs(draws).max() or not np.isfinite(value):
        return Score(value)
    low, high = np.quantile(draws, [0.5 - level / 2, 0.5 + level / 2])
    return Score(value, min(float(low), value), max(float(high), value))


def two_sided(value: float, draws: np.ndarray, level: float = 0.95) -> Score:
    """Return `value`, a share, with the smallest interval that holds the percentile one and its mirror image.

    For scores that resampling shifts: where the draws lie to one side of the value, the truth lies as far
    on the other side, so the mirrored ("basic") interval is the right one in principle; the percentile one
    is better near 0 and 1. Their union is the cautious choice. It is kept in [0, 1].
    """
    direct = percentile(value, draws, level)
    if direct.low is None or direct.high is None:
        return direct
    quantiles = np.quantile(draws[np.isfinite(draws)], [0.5 + level / 2, 0.5 - level / 2])
    low, high = (2 * value - float(quantile) for quantile in quantiles)
    return Score(value, max(0.0, min(direct.low, low)), min(1.0, max(direct.high, high)))
