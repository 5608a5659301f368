"""Learning-rate schedules as pure functions of the step, so that checkpoints need not store them."""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from paucal.types import half_cosine


@dataclass(frozen=True)
class _WarmupAndDecay:
    """Linear warm-up, then a decay that begins at step 0, so that the warm-up replaces the first steps of the decay."""

    peak: float  # learning rate with which the decay would begin at step 0
    horizon: int  # step at which the decay reaches the floor
    warmup: int = 0  # steps of linear warm-up
    start: float = 0.0  # learning rate at step 0
    floor: float = 0.0  # learning rate at the horizon and beyond

    def __call__(self, step: float) -> float:
        """Return the learning rate of the step after `step` completed steps."""
        if step < self.warmup:
            return self.start + (self.peak - self.start) * step / self.warmup
        return self.decayed_rate(step)

    @abstractmethod
    def decayed_rate(self, step: float) -> float:
        """Return the learning rate at a step after the warm-up."""


@dataclass(frozen=True)
class CosineWarmup(_WarmupAndDecay):
    """Linear warm-up, then one half cosine, evaluated at every step.

    The cosine begins at step 0, so the warm-up replaces the first steps of the cosine. The horizon is independent of
    the length of the run. DrLoc's published code does the same: the paper's "100 epochs" (section 4) are
    the first third of a 300-epoch cosine.

    Example:
        >>> schedule = CosineWarmup(peak=1e-3, horizon=300, warmup=20, start=1e-6, floor=1e-5)
        >>> [f"{schedule(epoch):.3e}" for epoch in (0, 1, 20, 100)]
        ['1.000e-06', '5.095e-05', '9.892e-04', '7.525e-04']
    """

    def decayed_rate(self, step: float) -> float:
        """Return the learning rate of the half cosine."""
        return half_cosine(self.peak, self.floor, step, self.horizon)


@dataclass(frozen=True)
class LinearWarmup(_WarmupAndDecay):
    """Linear warm-up, then a linear decay ("poly" with power 1) that begins at step 0.

    This is the schedule of Swin's, DrLoc's and LV-ViT's segmentation code. As in `CosineWarmup`, the warm-up
    replaces the first steps of the decay.

    Example:
        >>> schedule = LinearWarmup(peak=6e-5, horizon=160_000, warmup=1500)
        >>> [f"{schedule(step):.2e}" for step in (0, 750, 1500, 80_000, 160_000)]
        ['0.00e+00', '3.00e-05', '5.94e-05', '3.00e-05', '0.00e+00']
    """

    def decayed_rate(self, step: float) -> float:
        """Return the learning rate of the linear decay."""
        return self.floor + (self.peak - self.floor) * max(0.0, 1 - step / max(self.horizon, 1))


@dataclass(frozen=True)
class WarmupThenSteps:
    """Linear warm-up, then a constant rate that drops to a tenth at each milestone, as used for detectors.

    This is the schedule of Swin's and DrLoc's detection code: "1x" is 12 epochs with drops after epochs 8 and 11,
    and "3x" is 36 epochs with drops after epochs 27 and 33.

    Example:
        >>> schedule = WarmupThenSteps(peak=1e-4, milestones=(8000, 11_000), warmup=500, start=1e-7)
        >>> [f"{schedule(step):.2e}" for step in (0, 100, 500, 7999, 8000, 11_000)]
        ['1.00e-07', '2.01e-05', '1.00e-04', '1.00e-04', '1.00e-05', '1.00e-06']
    """

    peak: float  # learning rate after the warm-up
    milestones: tuple[int, ...]  # numbers of completed steps after which the rate is multiplied by `factor`
    warmup: int = 0  # steps of linear warm-up
    start: float = 0.0  # learning rate at step 0
    factor: float = 0.1  # factor at each milestone

    def __call__(self, step: float) -> float:
        """Return the learning rate of the step after `step` completed steps."""
        rate = self.peak * self.factor ** sum(step >= milestone for milestone in self.milestones)
        if step < self.warmup:
            return self.start + (rate - self.start) * step / self.warmup
        return rate


@dataclass(frozen=True)
class WarmupThenCosine:
    """Linear warm-up that reaches the peak at its last step, then a half cosine from the peak.

    This is the schedule of DINO's and EsViT's code (EsViT, section 4: 10 epochs of warm-up). In `CosineWarmup`, the
    cosine begins at step 0; here, the cosine begins after the warm-up.

    Example:
        >>> schedule = WarmupThenCosine(peak=2e-3, horizon=140, warmup=21, floor=1e-5)
        >>> [f"{schedule(step):.3e}" for step in (0, 1, 20, 21, 22, 139)]
        ['0.000e+00', '1.000e-04', '2.000e-03', '2.000e-03', '2.000e-03', '1.035e-05']
    """

    peak: float  # highest learning rate
    horizon: int  # steps of the whole schedule; afterwards the rate stays at the floor
    warmup: int = 0  # steps of linear warm-up; the rate is 0 at the first of these steps and the peak at the last
    floor: float = 0.0  # learning rate at the end of the cosine

    def __call__(self, step: float) -> float:
        """Return the learning rate of the step after `step` completed steps."""
        if step < self.warmup:
            return self.peak * step / max(self.warmup - 1, 1)
        return half_cosine(self.peak, self.floor, step - self.warmup, self.horizon - self.warmup)


@dataclass(frozen=True)
class LaggingEpochs:
    """A schedule that changes the rate once per epoch, one epoch late, as in the code of DeiT and DHVT.

    After epoch n, counted from 0, the rate for the next epoch is set to the schedule's value at the first step of epoch
    n. So the first two epochs have the rate of step 0, and the last epoch does not reach the floor.

    Example:
        >>> late = LaggingEpochs(CosineWarmup(peak=1e-3, horizon=3000, warmup=50, start=1e-6), steps_per_epoch=10)
        >>> [f"{late(step):.1e}" for step in (0, 10, 19, 20, 29, 30)]
        ['1.0e-06', '1.0e-06', '1.0e-06', '2.0e-04', '2.0e-04', '4.0e-04']
    """

    schedule: Callable[[float], float]  # returns the learning rate from the number of completed steps
    steps_per_epoch: int

    def __call__(self, step: float) -> float:
        """Return the learning rate of the step after `step` completed steps."""
        return self.schedule(max(0, int(step) // self.steps_per_epoch - 1) * self.steps_per_epoch)
