"""Locality guidance as an extra loss on any supervised run (Li et al., ECCV 2022, arXiv 2207.10026)."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from paucal.backbones.features import FeatureBackbone
from paucal.losses.locality_guidance import guidance_loss, guide_energy
from paucal.objectives.guided import GuidedTerm
from paucal.types import Batch, FeatureRequest, Features, Progress

WEIGHT = 2.5  # weight of the loss in the published code
LEVELS = 3  # the stages of the paper's ResNet-56


class LocalityGuidance(GuidedTerm):
    """Blocks of a transformer imitate the stages of a small CNN that was trained on the same images.

    The CNN's local cells are easy to learn from few images; the transformer learns them in addition to its loss on
    labels. The last stages of the guide, at most three, guide blocks spread evenly over the depth, the last stage the
    last block; a linear projection per level matches channels. The paper leaves the choice of blocks to each model.
    If a level of the guide has a mean square above 1, its loss is divided by it (`guide_energy`); the paper's guides
    have hardly any.

    Args:
        guide: Trained CNN, always in evaluation mode and frozen.
        dims: Channels of the backbone's blocks, shallow to deep.
        weight: Weight of the loss.
        channels: Channels of the images.

    Raises:
        ValueError: the backbone has fewer blocks than the guide has levels.
    """

    request = FeatureRequest("blocks")

    def __init__(self, guide: FeatureBackbone, dims: Sequence[int], weight: float = WEIGHT, channels: int = 3) -> None:
        super().__init__(guide, channels)
        shapes = guide.shapes(FeatureRequest("stages"))[-LEVELS:]
        if len(dims) < len(shapes):
            raise ValueError(f"{len(dims)} blocks cannot be guided by {len(shapes)} stages")
        self.blocks = [(number + 1) * len(dims) // len(shapes) - 1 for number in range(len(shapes))]
        self.projections = nn.ModuleList(
            nn.Conv2d(dims[block], shape[0], 1) for block, shape in zip(self.blocks, shapes, strict=True)
        )
        self._weight = weight

    def forward(self, features: Features, batch: Batch, progress: Progress) -> Tensor:
        """Return the unweighted loss, summed over the levels."""
        images = self.shown(batch.views[0])
        with torch.no_grad():
            stages = self.guide(images, FeatureRequest("stages")).grids[-len(self.blocks) :]
        losses = []
        for block, head, guide_map in zip(self.blocks, self.projections, stages, strict=True):
            losses.append(guidance_loss(head(features.grids[block]), guide_map) / guide_energy(guide_map))
        return torch.stack(losses).sum()

    def weight(self, progress: Progress) -> float:
        """Return the constant weight."""
        return self._weight
