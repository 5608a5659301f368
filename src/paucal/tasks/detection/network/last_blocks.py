"""The maps of torchvision's MobileNet detectors: outputs of two late blocks, both with a stride of 32 pixels."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from paucal.backbones import FeatureBackbone
from paucal.backbones.stage_maps import StageMaps
from paucal.types import UserError

STRIDE, CHANNELS = 32, (160, 960)
STAGES = 7


class LastBlocks(StageMaps):
    """The first block of the last stage of 160 channels of timm's MobileNetV3-Large, and its last layer of 960."""

    def __init__(self, backbone: FeatureBackbone) -> None:
        nn.Module.__init__(self)
        self.backbone = backbone
        blocks: Any = getattr(backbone.model, "blocks", ())
        if len(blocks) != STAGES or getattr(blocks[-1][-1], "conv", nn.Identity()).out_channels != CHANNELS[1]:
            raise UserError("--maps last-blocks reads mobilenetv3_large_100: give this --model, or leave it out.")
        backbone.model.conv_head = nn.Identity()  # unused, and missing in the published detectors
        self.strides, self.channels = (STRIDE, STRIDE), CHANNELS
        self.levels = nn.ModuleList([nn.Identity(), nn.Identity()])
        self.multiple, self.fixed_size = STRIDE, None
        self._single, self._shrink = False, 1.0
        self._release_unused()

    def grids(self, images: Tensor) -> list[Tensor]:
        """Return the outputs of the two blocks for a batch."""
        model: Any = self.backbone.model
        hidden = model.bn1(model.conv_stem(self._pad_images(images)))
        *earlier_stages, last, final = model.blocks
        for stage in earlier_stages:
            hidden = stage(hidden)
        grid = last[0](hidden)
        return [grid, final(last[1:](grid))]

    def maps_of(self, grids: Sequence[Tensor], size: tuple[int, int]) -> list[Tensor]:
        """Return the maps as they are."""
        return list(grids)
