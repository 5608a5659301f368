"""Mixup and CutMix on a batch, by torchvision."""

from dataclasses import dataclass, replace

import torch
from torchvision.transforms import v2

from paucal.types import Batch, UserError

ALPHAS = (1e-3, 1e3)  # beyond, shares are all 0 or 1, or all a half, and float32 runs out of room


@dataclass(frozen=True)
class Mixing:
    """How images of a batch are mixed (mixup, arXiv:1710.09412; CutMix, arXiv:1905.04899).

    The defaults are those of the DrLoc experiments (DeiT's). Unlike timm, which pairs an image with its
    mirror position and needs even batches, an image is paired with the one before it, so any batch of two or
    more works.

    Attributes:
        mixup: parameter of the Beta distribution of mixup, within `ALPHAS`; 0 for none.
        cutmix: the same for CutMix.
        prob: probability that a batch is mixed at all.
        switch_prob: probability of CutMix where both are on.
    """

    mixup: float = 0.8
    cutmix: float = 1.0
    prob: float = 1.0
    switch_prob: float = 0.5

    def __post_init__(self) -> None:
        if not all(alpha == 0 or ALPHAS[0] <= alpha <= ALPHAS[1] for alpha in (self.mixup, self.cutmix)):
            raise UserError(
                f"mixup is {self.mixup} and cutmix {self.cutmix}; expected 0 (off) or a number from {ALPHAS[0]:g} to "
                f"{ALPHAS[1]:g}"
            )
        for name, value in (("mixing probability", self.prob), ("switch_prob", self.switch_prob)):
            if not 0 <= value <= 1:
                raise UserError(f"{name} is {value}; expected a probability from 0 to 1")

    def mix(self, batch: Batch, num_classes: int) -> Batch:
        """Mix the images and turn the labels into (B, K) shares; a batch that is not mixed stays as it is.

        Everything random is drawn from torch's CPU generator, so the device is never waited for.

        Raises:
            ValueError: the batch has several views, no labels, or dense targets that would not fit any more.
        """
        if self.prob == 0 or self.mixup == self.cutmix == 0 or len(batch) < 2:
            return batch
        if len(batch.views) != 1 or batch.labels is None or batch.label_maps is not None:
            raise ValueError(
                f"mixing needs one view and labels without label maps, got {len(batch.views)} views, "
                f"labels: {batch.labels is not None}, label maps: {batch.label_maps is not None}"
            )
        if torch.rand(()).item() >= self.prob:
            return batch
        mixer = self._mixer(num_classes)
        view, labels = mixer(batch.views[0], batch.labels)
        return replace(batch, views=[view], labels=labels)

    def _mixer(self, num_classes: int) -> v2.MixUp | v2.CutMix:
        cut = self.mixup == 0 or (self.cutmix > 0 and torch.rand(()).item() < self.switch_prob)
        kind, alpha = (v2.CutMix, self.cutmix) if cut else (v2.MixUp, self.mixup)
        return kind(alpha=alpha, num_classes=num_classes)
