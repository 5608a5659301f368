"""Locality guidance as an extra loss for any supervised training (Li et al., ECCV 2022, arXiv:2207.10026)."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from paucal.backbones.features import FeatureBackbone
from paucal.losses.locality_guidance import guidance_loss, guide_energy
from paucal.objectives.guided import GuidedTerm
from paucal.types import Batch, FeatureRequest, Features, Progress

WEIGHT = 2.5  # default weight of the loss, as in the published code
MAX_LEVELS = 3  # maximum number of stages that are compared; the paper's ResNet-56 has three stages


class LocalityGuidance(GuidedTerm):
    """A loss with which blocks of a transformer imitate the stages of a small CNN that was trained on the same images.

    A CNN easily learns local features from few images. The transformer learns these features from the CNN (the guide),
    in addition to the labels. Each of the guide's last stages, at most three, is compared with one block of the
    transformer. These blocks are spread evenly over the depth, and the last stage is compared with the last block. (The
    paper chooses the blocks for each model.) A 1 x 1 convolution per stage projects the block's features to the guide's
    channels. If the mean square of a stage's features is above 1, the loss of this stage is divided by the mean square
    (`guide_energy`). With the paper's guides, the mean square hardly ever is above 1.

    Args:
        guide: Trained CNN, which stays frozen and in evaluation mode.
        dims: Number of channels of each of the backbone's blocks, shallow to deep.
        weight: Weight of the loss.
        channels: Number of channels of the images.

    Raises:
        ValueError: The backbone has fewer blocks than there are compared stages.
    """

    request = FeatureRequest("blocks")

    def __init__(self, guide: FeatureBackbone, dims: Sequence[int], weight: float = WEIGHT, channels: int = 3) -> None:
        super().__init__(guide, channels)
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
        self._weight = weight

    def forward(self, features: Features, batch: Batch, progress: Progress) -> Tensor:
        """Return the unweighted loss, summed over the compared stages of the guide."""
        images = self.renormalise(batch.views[0])
        with torch.no_grad():
            guide_maps = self.guide(images, FeatureRequest("stages")).grids[-len(self.blocks) :]
        losses = []
        for block, project, guide_map in zip(self.blocks, self.projections, guide_maps, strict=True):
            losses.append(guidance_loss(project(features.grids[block]), guide_map) / guide_energy(guide_map))
        return torch.stack(losses).sum()

    def weight(self, progress: Progress) -> float:
        """Return the weight, which is constant."""
        return self._weight
