"""The training objective: pixel-wise cross-entropy of the head and of an auxiliary head."""

from collections.abc import Sequence

from torch import nn

from paucal.backbones.features import FeatureBackbone
from paucal.data.masks.coding import IGNORED
from paucal.losses import pixel_loss
from paucal.objectives.finetuning import BackboneTuner, FineTuning, TunedObjective
from paucal.tasks.segmentation.crops import MASK
from paucal.tasks.segmentation.network import SegmentationNetwork
from paucal.types import Batch, DataRequest, LossTerms, Progress

BACKBONE_PREFIX = "network.maps.backbone.model."  # prefix of the backbone's parameter names in the objective


class PixelObjective(TunedObjective):
    """Pixel-wise cross-entropy of a segmentation network and, with weight `auxiliary` (0 for none), its auxiliary head.

    `dropout` is the dropout probability of the auxiliary head, and `backbone_lr` a factor on the backbone's learning
    rate.
    """

    # A feature map that is pooled to 1x1 has one value per image and channel, so batch norms need several images.
    data_request = DataRequest(label_maps=True, mixing=False, labels=False, smallest_batch=2)

    def __init__(
        self,
        network: SegmentationNetwork,
        auxiliary: float = 0.4,
        tuning: FineTuning | None = None,
        backbone_lr: float = 1.0,
        auxiliary_width: int = 256,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        self.network = network
        self.auxiliary = network.make_auxiliary_head(auxiliary_width, dropout) if auxiliary > 0 else None
        self.weight = auxiliary
        self.tuner = BackboneTuner(network.maps.backbone.model, tuning or FineTuning(), BACKBONE_PREFIX, backbone_lr)

    def forward(self, batch: Batch, progress: Progress) -> LossTerms:
        """Return the losses "pixels" and "auxiliary" of a batch; the masks are in the batch's label maps."""
        self.tuner.set_modes(progress)
        images, mask = batch.views[0], (batch.label_maps or {})[MASK]
        maps = self.network.maps(images)
        logits = self.network.to_pixels(self.network.head(maps), images)
        losses, weights = {"pixels": pixel_loss(logits, mask, IGNORED)}, {}
        if self.auxiliary is not None:
            auxiliary_logits = self.network.to_pixels(self.auxiliary(maps[self.network.auxiliary_level]), images)
            losses["auxiliary"], weights["auxiliary"] = pixel_loss(auxiliary_logits, mask, IGNORED), self.weight
        return LossTerms(losses, weights)

    def deployable(self) -> nn.Module:
        """Return the network without the auxiliary head."""
        return self.network

    def backbones(self) -> Sequence[FeatureBackbone]:
        """Return the only backbone, in a list."""
        return [self.network.maps.backbone]

    def compilable(self) -> Sequence[nn.Module]:
        """Return the head; the backbone is not compiled, since the network does not call the backbone's `forward`."""
        return [self.network.head]
