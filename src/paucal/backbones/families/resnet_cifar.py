"""ResNets for images of 32 pixels, the convolutional baseline: timm's `ResNet` with a stem that keeps the resolution.

timm's ResNets begin with a stride of 4, which reduces 32 pixels to a single cell in the end; DHVT's authors withdrew
CNN results obtained that way. Here the stem is one 3x3 convolution of stride 1 without pooling (He et al., CVPR 2016,
section 4.2), followed by the four stages of the ImageNet networks, as is usual for "ResNet-18" on CIFAR: 32 pixels give
4x4 cells in the end, as do 64 pixels with `stem_stride=2`. timm's ConvNeXts need no variant, since `patch_size=1` or 2
sets the stride of their stem.
"""

from typing import Any

from timm.models import generate_default_cfgs
from timm.models.resnet import BasicBlock, ResNet
from torch import nn

from paucal.backbones.families.common.contract import configuration, register_variants

STEM_STRIDE = 4  # stride of the stem of timm's ResNets

default_cfgs = generate_default_cfgs(
    {"resnet18_cifar": configuration("conv1", "fc", num_classes=100, input_size=(3, 32, 32), crop_pct=1.0)}
)


class ResNetCifar(ResNet):
    """A ResNet of timm with a stem of stride 1.

    Args:
        block: Block class, as for `ResNet`.
        layers: Blocks per stage.
        in_chans: Channels of the images.
        channels: Channels of the stages; the stem has as many as the first.
        stem_stride: Pixels per cell of the stem, 1 or 2.
        output_stride: Pixels per cell of the last stage: 8, 4 or 2 times `stem_stride`.
        arguments: Further arguments of `ResNet`, apart from those of its stem.
    """

    def __init__(
        self,
        block: Any,
        layers: tuple[int, ...],
        in_chans: int = 3,
        channels: tuple[int, ...] = (64, 128, 256, 512),
        stem_stride: int = 1,
        output_stride: int | None = None,
        **arguments: Any,
    ) -> None:
        if stem_stride not in (1, 2):
            raise ValueError(f"stem_stride is {stem_stride!r}; give 1 or 2")
        allowed = {factor * stem_stride: factor * STEM_STRIDE for factor in (8, 4, 2)}  # our stride: timm's stride
        stride = 8 * stem_stride if output_stride is None else output_stride
        if stride not in allowed:
            raise ValueError(f"output_stride is {output_stride!r}; give one of {', '.join(map(str, allowed))}")
        if channels[0] % 2:
            raise ValueError(f"the first stage has {channels[0]} channels; give an even number")
        # timm only allows choosing the width of a deep stem; the stem is replaced below.
        stem = {"stem_type": "deep", "stem_width": channels[0] // 2}
        sizes = {"in_chans": in_chans, "channels": channels, "output_stride": allowed[stride]}
        super().__init__(block, layers, **sizes, **stem, **arguments)
        self.conv1 = nn.Conv2d(in_chans, channels[0], 3, stem_stride, padding=1, bias=False)
        nn.init.kaiming_normal_(self.conv1.weight, mode="fan_out", nonlinearity="relu")
        self.maxpool = nn.Identity()
        for level in self.feature_info:
            level["reduction"] = max(1, int(level["reduction"]) // STEM_STRIDE) * stem_stride


# 11.2M parameters with 100 classes.
register_variants(__name__, ResNetCifar, {"resnet18_cifar": {"block": BasicBlock, "layers": (2, 2, 2, 2)}})
