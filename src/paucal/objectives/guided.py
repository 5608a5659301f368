"""Extra losses that compare a network with a frozen network, the guide, on the training images.

Distillation (DeiT, Touvron et al., ICML 2021, arXiv:2012.12877) compares predictions, and locality guidance (Li et al.,
ECCV 2022, arXiv:2207.10026) compares feature maps. Both can be added to any supervised training.
"""

from collections.abc import Iterable, Sequence
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paucal.backbones.features import FeatureBackbone
from paucal.losses.distillation import hard_distillation_loss, soft_distillation_loss
from paucal.losses.locality_guidance import guidance_loss, guide_energy
from paucal.objectives.base import Term
from paucal.types import Batch, FeatureRequest, Features, Progress

# Default weight of distillation. DeiT weights both losses by 0.5, which gives the same steps, since AdamW normalises
# gradients.
DISTILLATION_WEIGHT = 1.0
GUIDANCE_WEIGHT = 2.5  # default weight of locality guidance, as in the published code
MAX_LEVELS = 3  # maximum number of stages that locality guidance compares; the paper's ResNet-56 has three stages


class GuidedTerm(Term):
    """An extra loss of constant weight that uses a guide: a frozen network with its own input normalisation."""

    def __init__(self, guide: nn.Module, weight: float, channels: int) -> None:
        super().__init__()
        self.guide, self._weight = guide.requires_grad_(False).eval(), weight
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

    def weight(self, progress: Progress) -> float:
        """Return the weight, which is constant."""
        return self._weight


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
        weight: float = DISTILLATION_WEIGHT,
        size: tuple[int, int] | None = None,
        soft: bool = False,
        temperature: float = 1.0,
        channels: int = 3,
    ) -> None:
        super().__init__(teacher, weight, channels)
        self._size, self.soft, self._temperature = size, soft, temperature
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


class LocalityGuidance(GuidedTerm):
    """A loss with which blocks of a transformer imitate the stages of a small CNN that was trained on the same images.

    A CNN easily learns local features from few images. The transformer learns these features from the CNN (the guide),
    in addition to the labels. Each of the guide's last stages, at most three, is compared with one block of the
    transformer. These blocks are spread evenly over the depth, and the last stage is compared with the last block. (The
    paper chooses the blocks for each model.) A 1 x 1 convolution per stage projects the block's features to the guide's
    channels. If the mean square of a stage's features is above 1, the loss of this stage is divided by the mean square
    (`guide_energy`). With the paper's guides, the mean square is hardly ever above 1.

    Args:
        guide: Trained CNN, which stays frozen and in evaluation mode.
        dims: Number of channels of each of the backbone's blocks, shallow to deep.
        weight: Weight of the loss.
        channels: Number of channels of the images.

    Raises:
        ValueError: The backbone has fewer blocks than there are compared stages.
    """

    request = FeatureRequest("blocks")

    def __init__(
        self, guide: FeatureBackbone, dims: Sequence[int], weight: float = GUIDANCE_WEIGHT, channels: int = 3
    ) -> None:
        super().__init__(guide, weight, channels)
        shapes = guide.shapes(FeatureRequest("stages"))[-MAX_LEVELS:]
        if len(dims) < len(shapes):
            raise ValueError(
                f"locality guidance needs a block for each of the guide's {len(shapes)} stages, but the backbone "
                f"has only {len(dims)}"
            )
        self.blocks = [(number + 1) * len(dims) // len(shapes) - 1 for number in range(len(shapes))]
        self.projections = nn.ModuleList(
            nn.Conv2d(dims[block], shape[0], 1) for block, shape in zip(self.blocks, shapes, strict=True)
        )

    def forward(self, features: Features, batch: Batch, progress: Progress) -> Tensor:
        """Return the unweighted loss, summed over the compared stages of the guide."""
        images = self.renormalise(batch.views[0])
        with torch.no_grad():
            guide_maps = self.guide(images, FeatureRequest("stages")).grids[-len(self.blocks) :]
        losses = []
        for block, project, guide_map in zip(self.blocks, self.projections, guide_maps, strict=True):
            losses.append(guidance_loss(project(features.grids[block]), guide_map) / guide_energy(guide_map))
        return torch.stack(losses).sum()
