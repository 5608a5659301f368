"""Distillation as an extra loss on any supervised run (DeiT, Touvron et al., ICML 2021, arXiv 2012.12877)."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paucal.losses.distillation import hard_distillation_loss, soft_distillation_loss
from paucal.objectives.guided import GuidedTerm
from paucal.types import Batch, Features, Progress

WEIGHT = 1.0  # DeiT weights both losses by a half, which gives the same steps with AdamW


class Distillation(GuidedTerm):
    """A loss on a teacher's prediction for the same view, its class or its probabilities, in addition to the labels.

    A network with a distillation token, such as DeiT's, learns the labels with its class token and the teacher's
    classes with the other, and predicts with the mean of both. Other networks learn both with their only classifier.

    Args:
        teacher: The trained classifier; it stays in evaluation mode and never changes.
        classes: Classes of the run.
        weight: Factor on the loss.
        size: (height, width) in pixels to which images are resized for the teacher; None for no resizing.
        soft: Whether the teacher's probabilities are learned in place of its likeliest class.
        temperature: Divisor of the teacher's logits.
        channels: Channels of the images.
    """

    def __init__(
        self,
        teacher: nn.Module,
        classes: int,
        weight: float = WEIGHT,
        size: tuple[int, int] | None = None,
        soft: bool = False,
        temperature: float = 1.0,
        channels: int = 3,
    ) -> None:
        super().__init__(teacher, channels)
        self._weight, self._size, self.soft, self._temperature = weight, size, soft, temperature
        self.register_buffer("columns", torch.arange(classes))

    def answer_in(self, columns: Sequence[int]) -> None:
        """Set the columns of the teacher's outputs that are the run's classes, in the order of the run."""
        self.get_buffer("columns").copy_(torch.tensor(columns))

    def forward(self, features: Features, batch: Batch, progress: Progress) -> Tensor:
        """Return the unweighted loss.

        Raises:
            ValueError: The backbone has no classifier.
        """
        logits = features.logits if features.distilled_logits is None else features.distilled_logits
        if logits is None:
            raise ValueError("distillation needs a network with a classifier")
        learn = soft_distillation_loss if self.soft else hard_distillation_loss
        return learn(logits, self.answers(batch.views[0]))

    @torch.no_grad()
    def answers(self, images: Tensor) -> Tensor:
        """Return the teacher's (B, K) logits, in the run's class order, for images in the run's normalisation."""
        images = self.shown(images)
        if self._size is not None:
            images = F.interpolate(images, self._size, mode="bicubic", antialias=True)
        return self.guide(images)[:, self.get_buffer("columns")] / self._temperature

    def weight(self, progress: Progress) -> float:
        """Return the constant weight."""
        return self._weight
