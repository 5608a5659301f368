"""Learning-rate schedules as pure functions of the step, so that nothing about them needs saving."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class CosineWarmup:
    """Linear warm-up, then one half cosine, evaluated at every step.

    The cosine's position counts from step 0, so it is not restarted after the warm-up, and its horizon is
    independent of the steps a run makes. Both are the published program's ways (DrLoc, section 4 of the paper's
    protocol): its "100 epochs" are the first third of a 300-epoch cosine. Beyond the horizon the rate stays at
    the floor.

    Attributes:
        peak: the highest learning rate.
        horizon: step at which the cosine reaches the floor.
        warmup: steps of linear warm-up.
        start: learning rate at step 0.
        floor: learning rate at the horizon.

    Example:
        >>> schedule = CosineWarmup(peak=1e-3, horizon=300, warmup=20, start=1e-6, floor=1e-5)
        >>> [f"{schedule(epoch):.3e}" for epoch in (0, 1, 20, 100)]
        ['1.000e-06', '5.095e-05', '9.892e-04', '7.525e-04']
    """

    peak: float
    horizon: int
    warmup: int = 0
    start: float = 0.0
    floor: float = 0.0

    def __call__(self, step: float) -> float:
        """Return the learning rate of the step that follows `step` completed ones."""
        if step < self.warmup:
            return self.start + (self.peak - self.start) * step / self.warmup
        position = min(step / max(self.horizon, 1), 1.0)
        return self.floor + (self.peak - self.floor) * 0.5 * (1 + math.cos(math.pi * position))
