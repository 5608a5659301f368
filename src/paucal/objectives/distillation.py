"""Distillation as an extra loss on any supervised run (DeiT, Touvron et al., ICML 2021, arXiv 2012.12877)."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paucal.losses.distillation import hard_distillation_loss, soft_distillation_loss
from paucal.objectives.guided import GuidedTerm
from paucal.types import Batch, Features, Progress

WEIGHT = 1.0  # DeiT weights both losses by a half, for which AdamW's steps are the same


class Distillation(GuidedTerm):
    """Beside the labels, the network learns what a teacher predicts for the same view: the class, or probabilities.

    A network with a distillation token, such as DeiT's, learns the labels with its class token and the teacher's
    classes with the other, and answers with the mean of both. Any other learns both with its one classifier.

    Args:
        teacher: The trained classifier; it stays in evaluation mode and never changes.
        classes: Classes of the run.
        weight: Factor on the loss.
        size: (height, width) in pixels that images are brought to for the teacher; None to show them as they are.
        soft: Whether the teacher's probabilities are learned in place of its likeliest class.
        temperature: What the teacher's logits are divided by.
    """

    def __init__(
        self,
        teacher: nn.Module,
        classes: int,
        weight: float = WEIGHT,
        size: tuple[int, int] | None = None,
        soft: bool = False,
        temperature: float = 1.0,
    ) -> None:
        super().__init__(teacher)
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
            raise ValueError("a network without a classifier has nothing to learn from a teacher's classes")
        learn = soft_distillation_loss if self.soft else hard_distillation_loss
        return learn(logits, self.answers(batch.views[0]))

    @torch.no_grad()
    def answers(self, images: Tensor) -> Tensor:
        """Return the teacher's (B, K) logits, in the order of the run's classes, for images as the run shows them."""
        images = self.shown(images)
        if self._size is not None:
            images = F.interpolate(images, self._size, mode="bicubic", antialias=True)
        return self.guide(images)[:, self.get_buffer("columns")] / self._temperature

    def weight(self, progress: Progress) -> float:
        """Return the constant weight."""
        return self._weight
