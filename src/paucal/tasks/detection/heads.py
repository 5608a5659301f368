"""The heads that judge a region: a table of layers between the cells of a region and a few numbers.

A new head is one entry of `HEADS`. The table is light to import; torch is loaded when a head is built.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

CONVOLUTIONS = 4


@dataclass(frozen=True)
class RegionHead:
    """Layers that judge a region.

    Attributes:
        words: One phrase for people.
        build: Makes the layers; takes the channels and the side in cells of a region, and the width of the result.
    """

    words: str
    build: "Callable[[int, int, int], nn.Module]"


def _two_layers(channels: int, cells: int, dim: int) -> "nn.Module":
    from torchvision.models.detection.faster_rcnn import TwoMLPHead

    return TwoMLPHead(channels * cells**2, dim)


def _four_convolutions(channels: int, cells: int, dim: int) -> "nn.Module":
    from torch import nn
    from torchvision.models.detection.faster_rcnn import FastRCNNConvFCHead

    return FastRCNNConvFCHead((channels, cells, cells), [channels] * CONVOLUTIONS, [dim], nn.BatchNorm2d)


HEADS: Mapping[str, RegionHead] = {
    "2fc": RegionHead("two fully connected layers", _two_layers),
    "4conv1fc": RegionHead("four convolutions with batch norms and one fully connected layer", _four_convolutions),
}
