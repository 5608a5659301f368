"""Extra losses that compare a network with the outputs of a frozen one on the training images."""

from collections.abc import Iterable, Sequence
from typing import Self

import torch
from torch import Tensor, nn

from paucal.objectives.base import Term


class GuidedTerm(Term):
    """An extra loss with a guide: a frozen network that gets images normalised as in its own training."""

    def __init__(self, guide: nn.Module, channels: int = 3) -> None:
        super().__init__()
        self.guide = guide.requires_grad_(False).eval()
        self.register_buffer("scale", torch.ones(1, channels, 1, 1))
        self.register_buffer("shift", torch.zeros(1, channels, 1, 1))

    def see_as(self, scale: Sequence[float], shift: Sequence[float]) -> None:
        """Set the scale and shift per channel that turn this run's normalised images into the guide's."""
        for name, values in (("scale", scale), ("shift", shift)):
            self.get_buffer(name).copy_(torch.tensor(values).reshape(1, -1, 1, 1))

    def shown(self, images: Tensor) -> Tensor:
        """Return this run's normalised images in the guide's normalisation."""
        return images * self.get_buffer("scale") + self.get_buffer("shift")

    def compilable(self) -> Iterable[nn.Module]:
        """Return the guide."""
        return [self.guide]

    def train(self, mode: bool = True) -> Self:
        """Set the mode of all but the guide."""
        super().train(mode)
        self.guide.eval()
        return self
