"""Learning-rate schedules as pure functions of the step, so that nothing about them needs saving."""

from collections.abc import Callable
from dataclasses import dataclass

from paucal.types import half_cosine


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
        return half_cosine(self.peak, self.floor, step, self.horizon)


@dataclass(frozen=True)
class WarmupThenCosine:
    """Linear warm-up that reaches the peak in its last step, then a half cosine that begins there.

    The schedule of DINO's and EsViT's programs (EsViT, section 4: 10 epochs of warm-up). Unlike `CosineWarmup`, the
    cosine starts after the warm-up.

    Attributes:
        peak: the highest learning rate.
        horizon: steps of the whole schedule; afterwards the rate stays at the floor.
        warmup: steps of linear warm-up from 0, the peak included.
        floor: what the cosine goes to.

    Example:
        >>> schedule = WarmupThenCosine(peak=2e-3, horizon=140, warmup=21, floor=1e-5)
        >>> [f"{schedule(step):.3e}" for step in (0, 1, 20, 21, 22, 139)]
        ['0.000e+00', '1.000e-04', '2.000e-03', '2.000e-03', '2.000e-03', '1.035e-05']
    """

    peak: float
    horizon: int
    warmup: int = 0
    floor: float = 0.0

    def __call__(self, step: float) -> float:
        """Return the learning rate of the step that follows `step` completed ones."""
        if step < self.warmup:
            return self.peak * step / max(self.warmup - 1, 1)
        return half_cosine(self.peak, self.floor, step - self.warmup, self.horizon - self.warmup)


@dataclass(frozen=True)
class LaggingEpochs:
    """A schedule that is read once an epoch and an epoch late, as by DeiT's program and those made from it (DHVT's).

    They set the rate after an epoch from that epoch's own number, so the first two epochs run at the rate of step 0,
    and the last does not come down to the floor.

    Attributes:
        schedule: learning rate per step.
        steps_per_epoch: steps of an epoch.

    Example:
        >>> late = LaggingEpochs(CosineWarmup(peak=1e-3, horizon=3000, warmup=50, start=1e-6), steps_per_epoch=10)
        >>> [f"{late(step):.1e}" for step in (0, 10, 19, 20, 29, 30)]
        ['1.0e-06', '1.0e-06', '1.0e-06', '2.0e-04', '2.0e-04', '4.0e-04']
    """

    schedule: Callable[[float], float]
    steps_per_epoch: int

    def __call__(self, step: float) -> float:
        """Return the learning rate of the step that follows `step` completed ones."""
        return self.schedule(max(0, int(step) // self.steps_per_epoch - 1) * self.steps_per_epoch)
