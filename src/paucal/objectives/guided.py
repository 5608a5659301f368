"""Base class for extra losses that compare a network with a frozen network, the guide, on the training images."""

from collections.abc import Iterable, Sequence
from typing import Self

import torch
from torch import Tensor, nn

from paucal.objectives.base import Term


class GuidedTerm(Term):
    """An extra loss that uses a guide: a frozen network with its own input normalisation.

    Args:
        guide: Network to freeze and to put in evaluation mode.
        channels: Number of channels of the images.
    """

    def __init__(self, guide: nn.Module, channels: int = 3) -> None:
        super().__init__()
        self.guide = guide.requires_grad_(False).eval()
        self.register_buffer("scale", torch.ones(1, channels, 1, 1))
        self.register_buffer("shift", torch.zeros(1, channels, 1, 1))

    def set_renormalisation(self, scale: Sequence[float], shift: Sequence[float]) -> None:
        """Set the factor and the offset per channel that convert this run's image normalisation to the guide's."""
        for name, values in (("scale", scale), ("shift", shift)):
            self.get_buffer(name).copy_(torch.tensor(values).reshape(1, -1, 1, 1))

    def renormalise(self, images: Tensor) -> Tensor:
        """Convert images from this run's normalisation to the guide's."""
        return images * self.get_buffer("scale") + self.get_buffer("shift")

    def compilable(self) -> Iterable[nn.Module]:
        """Return the guide."""
        return [self.guide]

    def train(self, mode: bool = True) -> Self:
        """Set the mode of all modules except the guide, which stays in evaluation mode."""
        super().train(mode)
        self.guide.eval()
        return self
