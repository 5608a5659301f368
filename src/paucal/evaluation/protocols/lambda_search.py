"""The strength of the L2 penalty by the parametric binary search of the EsViT paper (section 4.1 and appendix).

The grid has 8 points per decade from 1e-6 to 1e6, 97 in all. Seven of them, two decades apart, are tried first; then
the two points at half the distance on both sides of the best one so far, until neighbours on the grid have been
tried. That is at most 7 + 4 * 2 = 15 fits, and finds the best of the grid wherever the score rises to one peak and
falls from it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

PER_DECADE = 8
LOWEST, HIGHEST = -6, 6  # decades
POINTS = (HIGHEST - LOWEST) * PER_DECADE + 1
COARSE = 2 * PER_DECADE


@dataclass(frozen=True)
class Searched:
    """What a search found.

    Attributes:
        best: position on the grid.
        scores: by position, of the points that were tried, in the order of trying.
    """

    best: int
    scores: dict[int, float] = field(default_factory=dict)

    @property
    def strength(self) -> float:
        """The best lambda."""
        return strength_at(self.best)


def strength_at(position: int) -> float:
    """Return lambda at a position of the grid, 0 to 96.

    Example:
        >>> strength_at(0), strength_at(48), round(strength_at(49), 4), strength_at(96)
        (1e-06, 1.0, 1.3335, 1000000.0)
    """
    if not 0 <= position < POINTS:
        raise ValueError(f"expected a position in [0, {POINTS}), got {position}")
    return 10.0 ** (LOWEST + position / PER_DECADE)


def search_strength(score: Callable[[float], float]) -> Searched:
    """Find the lambda of the highest validation score with at most 15 evaluations.

    Of equal scores the larger lambda wins: the simpler model. Scores that are no numbers lose.

    Args:
        score: returns the validation score of a lambda.
    """
    tried: dict[int, float] = {}
    peak = _best(score, tried, list(range(0, POINTS, COARSE)))
    step = COARSE // 2
    while step:
        peak = _best(score, tried, [peak - step, peak + step])
        step //= 2
    return Searched(peak, tried)


def _best(score: Callable[[float], float], tried: dict[int, float], positions: list[int]) -> int:
    """Try the positions that lie on the grid; return the best of all tried so far."""
    for position in positions:
        if 0 <= position < POINTS and position not in tried:
            value = float(score(strength_at(position)))
            tried[position] = value if value == value else float("-inf")
    return max(tried, key=lambda position: (tried[position], position))
