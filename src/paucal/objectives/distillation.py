"""Hard distillation as an extra loss on any supervised run (DeiT, Touvron et al., ICML 2021, arXiv 2012.12877)."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paucal.losses.distillation import hard_distillation_loss
from paucal.objectives.guided import GuidedTerm
from paucal.types import Batch, Features, Progress

WEIGHT = 1.0  # DeiT weights both losses by a half, for which AdamW's steps are the same


class Distillation(GuidedTerm):
    """Hard distillation: beside the labels, the network learns the class that a teacher predicts for the same view.

    A network with a distillation token, such as DeiT's, learns the labels with its class token and the teacher's
    classes with the other, and answers with the mean of both. Any other learns both with its one classifier.

    Args:
        teacher: The trained classifier; it stays in evaluation mode and never changes.
        classes: Classes of the run.
        weight: Factor on the loss.
        size: (height, width) in pixels that images are brought to for the teacher; None to show them as they are.
    """

    def __init__(
        self, teacher: nn.Module, classes: int, weight: float = WEIGHT, size: tuple[int, int] | None = None
    ) -> None:
        super().__init__(teacher)
        self._weight, self._size = weight, size
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
        images = self.shown(batch.views[0])
        if self._size is not None:
            images = F.interpolate(images, self._size, mode="bicubic", antialias=True)
        with torch.no_grad():
            answers = self.guide(images)
        return hard_distillation_loss(logits, answers[:, self.get_buffer("columns")])

    def weight(self, progress: Progress) -> float:
        """Return the constant weight."""
        return self._weight
