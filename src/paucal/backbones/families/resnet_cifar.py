"""ResNets for images of 32 pixels, a convolutional baseline: timm's `ResNet` with a stem that keeps the resolution.

timm's ResNets begin with a stride of 4, so an image of 32 pixels becomes a single cell in the last stage; DHVT's
authors withdrew CNN results obtained in this way. Here the stem is a 3x3 convolution with stride 1 without pooling (He
et al., CVPR 2016, section 4.2), followed by the four stages of the ImageNet networks, as is usual for "ResNet-18" on
CIFAR. The last stage has 4x4 cells for 32 pixels, or for 64 pixels with `stem_stride=2`. For timm's ConvNeXts no
variant is needed, since `patch_size=1` or 2 sets the stride of the stem.
"""

from typing import Any

from timm.models import generate_default_cfgs
from timm.models.resnet import BasicBlock, ResNet
from torch import nn

from paucal.backbones.families.common.contract import make_default_cfg, register_variants

TIMM_STEM_STRIDE = 4  # stride of the stem of timm's ResNets, in pixels

default_cfgs = generate_default_cfgs(
    {"resnet18_cifar": make_default_cfg("conv1", "fc", num_classes=100, input_size=(3, 32, 32), crop_pct=1.0)}
)


class ResNetCifar(ResNet):
    """timm's ResNet with a stem with stride 1 or 2 and as many channels as the first stage.

    `output_stride` is the stride of the last stage in pixels: 8, 4 or 2 times `stem_stride`; None for 8 times.
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
        # Output strides of timm's ResNet, by the output strides of this model.
        timm_strides = {factor * stem_stride: factor * TIMM_STEM_STRIDE for factor in (8, 4, 2)}
        stride = 8 * stem_stride if output_stride is None else output_stride
        if stride not in timm_strides:
            raise ValueError(f"output_stride is {output_stride!r}; give one of {', '.join(map(str, timm_strides))}")
        if channels[0] % 2:
            raise ValueError(f"the first stage has {channels[0]} channels; give an even number")
        # timm only allows setting the width of its deep stem, which is replaced below.
        stem = {"stem_type": "deep", "stem_width": channels[0] // 2}
        sizes = {"in_chans": in_chans, "channels": channels, "output_stride": timm_strides[stride]}
        super().__init__(block, layers, **sizes, **stem, **arguments)
        self.conv1 = nn.Conv2d(in_chans, channels[0], 3, stem_stride, padding=1, bias=False)
        nn.init.kaiming_normal_(self.conv1.weight, mode="fan_out", nonlinearity="relu")
        self.maxpool = nn.Identity()
        for level in self.feature_info:
            level["reduction"] = max(1, int(level["reduction"]) // TIMM_STEM_STRIDE) * stem_stride


# 11.2M parameters with 100 classes.
register_variants(
    __name__,
    "ResNet (He et al. 2016), stem for small images",
    ResNetCifar,
    {"resnet18_cifar": {"block": BasicBlock, "layers": (2, 2, 2, 2)}},
)
