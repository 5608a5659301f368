"""Which cells see each other in MobileViT, which attends among the cells at the same place of all its patches.

Mehta and Rastegari 2022: a map is unfolded into small patches; the first cells of all patches see each other, the
second ones, and so on.
"""

from typing import Any

import torch
from timm.models.mobilevit import MobileVitBlock
from torch import Tensor, nn

from paucal.backbones.layout import grid_sides
from paucal.explain.attention.maps import AttentionMap, Tokens


def place_unfolded(name: str, weights: Tensor, model: nn.Module, images: Tensor) -> AttentionMap | None:
    """Return the attention of a layer of MobileViT with its places; None where the layer is in no such block.

    Args:
        name: of the layer.
        weights: (B * cells of a patch, heads, patches, patches).
        model: the whole.
        images: (B, C, H, W).
    """
    block = _block(name, model)
    patches = grid_sides(weights.shape[-1], (images.shape[-2], images.shape[-1]))
    if block is None or patches is None:
        return None
    sides: Any = block.patch_size
    height, width = int(sides[0]), int(sides[1])
    tokens = Tokens((patches[0] * height, patches[1] * width))
    index = torch.arange(tokens.cells, device=weights.device).view(patches[0], height, patches[1], width)
    places = index.permute(1, 3, 0, 2).reshape(height * width, -1)
    return AttentionMap(name, weights.unflatten(0, (len(images), -1)), tokens, tokens, places, places)


def _block(name: str, model: nn.Module) -> MobileVitBlock | None:
    words = name.split(".")
    above = (model.get_submodule(".".join(words[:end])) for end in range(len(words) - 1, 0, -1))
    return next((part for part in above if isinstance(part, MobileVitBlock)), None)
