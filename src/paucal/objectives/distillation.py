"""Distillation as an extra loss for any supervised training (DeiT, Touvron et al., ICML 2021, arXiv:2012.12877)."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paucal.losses.distillation import hard_distillation_loss, soft_distillation_loss
from paucal.objectives.guided import GuidedTerm
from paucal.types import Batch, Features, Progress

# Default weight of the loss. DeiT weights both losses by 0.5, which gives the same steps, since AdamW normalises
# gradients.
WEIGHT = 1.0


class Distillation(GuidedTerm):
    """An extra loss that compares the network's predictions with a teacher's predictions for the same view.

    In a network with a distillation token, such as DeiT's, the class token is trained on the labels and the
    distillation token on the teacher's predictions, and the network predicts with the mean of the two outputs. In other
    networks, the only classifier is trained on the labels and on the teacher's predictions.

    Args:
        teacher: Trained classifier, which stays frozen and in evaluation mode.
        classes: Number of classes of the run.
        weight: Weight of the loss.
        size: (height, width) in pixels to which images are resized for the teacher; None for no resizing.
        soft: Whether the targets are the teacher's probabilities of all classes, instead of its predicted class.
        temperature: Divisor of the teacher's logits.
        channels: Number of channels of the images.
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

    def set_teacher_columns(self, columns: Sequence[int]) -> None:
        """Set the index of each class in the teacher's outputs; `columns` is in the run's class order."""
        self.get_buffer("columns").copy_(torch.tensor(columns))

    def forward(self, features: Features, batch: Batch, progress: Progress) -> Tensor:
        """Return the unweighted loss.

        Raises:
            ValueError: The backbone has no classifier.
        """
        logits = features.logits if features.distilled_logits is None else features.distilled_logits
        if logits is None:
            raise ValueError("distillation needs a backbone with a classifier, but the backbone returned no logits")
        compute_loss = soft_distillation_loss if self.soft else hard_distillation_loss
        return compute_loss(logits, self.teacher_logits(batch.views[0]))

    @torch.no_grad()
    def teacher_logits(self, images: Tensor) -> Tensor:
        """Return the teacher's (B, K) logits, divided by the temperature, in the run's class order.

        `images` are normalised as in the run. This method converts the images to the teacher's normalisation and size.
        """
        images = self.renormalise(images)
        if self._size is not None:
            images = F.interpolate(images, self._size, mode="bicubic", antialias=True)
        return self.guide(images)[:, self.get_buffer("columns")] / self._temperature

    def weight(self, progress: Progress) -> float:
        """Return the weight, which is constant."""
        return self._weight
