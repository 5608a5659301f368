"""One reduced model per family, and what its features must look like."""

from typing import Any, NamedTuple

import timm
import torch
from torch import nn

import paucal.backbones  # noqa: F401 (registers our models)
from paucal.backbones.features import FeatureBackbone


class Family(NamedTuple):
    name: str
    arguments: dict[str, Any]
    size: tuple[int, int]
    dim: int
    grid: tuple[int, int]
    blocks: int
    stages: int

    def build(self, num_classes: int = 5) -> FeatureBackbone:
        with torch.random.fork_rng():
            torch.manual_seed(1)
            model: nn.Module = timm.create_model(self.name, num_classes=num_classes, **self.arguments)
        return FeatureBackbone(model, self.size).eval()

    def images(self, count: int = 2) -> torch.Tensor:
        return torch.randn(count, 3, *self.size, generator=torch.Generator().manual_seed(2))


VIT = {"img_size": (64, 96), "depth": 3, "embed_dim": 48, "num_heads": 3}
SWIN = {
    "img_size": (64, 96),
    "embed_dim": 24,
    "depths": (1, 1, 2, 1),
    "num_heads": (1, 2, 3, 6),
    "window_size": 4,
}
TWINS = {"embed_dims": (16, 32, 64, 128), "num_heads": (1, 2, 4, 8), "depths": (2, 2, 2, 2)}
RESNET = {"layers": (1, 1, 2, 1), "channels": (16, 24, 32, 64)}

FAMILIES = [
    Family("vit_tiny_patch16_224", VIT, (64, 96), 48, (4, 6), 3, 3),
    Family("deit_tiny_distilled_patch16_224", VIT, (64, 96), 48, (4, 6), 3, 3),
    Family("swin_tiny_patch4_window7_224", SWIN, (64, 96), 192, (2, 3), 5, 4),
    Family("pvt_v2_b0", {"depths": (1, 1, 1, 1)}, (64, 96), 256, (2, 3), 4, 4),
    Family("twins_svt_small", TWINS, (64, 96), 128, (2, 3), 8, 4),
    Family("convnext_atto", {"depths": (1, 1, 2, 1)}, (64, 96), 320, (2, 3), 5, 4),
    Family("resnet18", RESNET, (64, 96), 64, (2, 3), 5, 5),
    Family("cait_xxs24_224", {"img_size": 64, "depth": 3}, (64, 64), 192, (4, 4), 3, 3),
    Family("xcit_nano_12_p16_224", {"depth": 2}, (64, 96), 128, (4, 6), 2, 2),
    Family("regnetx_002", {}, (64, 96), 368, (2, 3), 13, 5),
    Family("efficientnet_b0", {}, (64, 96), 1280, (2, 3), 16, 5),
    Family("pit_ti_224", {"img_size": 64, "depth": (1, 1, 2)}, (64, 64), 256, (2, 2), 4, 3),
    Family("coat_lite_tiny", {"img_size": 64}, (64, 64), 320, (2, 2), 8, 4),
    Family("crossvit_tiny_240", {"depth": ((1, 1, 0),)}, (240, 240), 192, (14, 14), 1, 2),
    Family("mixer_s32_224", {"img_size": 128, "mlp_ratio": (0.5, 0.5)}, (128, 128), 512, (4, 4), 8, 8),
    Family("convit_tiny", {"img_size": 64, "depth": 2, "local_up_to_layer": 1}, (64, 64), 192, (4, 4), 2, 2),
    Family("vit_mini", {"img_size": (16, 24), "depth": 2}, (16, 24), 128, (4, 6), 2, 2),
]

BY_NAME = {family.name: family for family in FAMILIES}
