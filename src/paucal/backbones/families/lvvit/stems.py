"""The convolutional patch embeddings of LV-ViT: table 3 of the supplement of "All Tokens Matter"."""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from paucal.types import height_and_width

Size = tuple[int, int]


class StemPlan(NamedTuple):
    """The convolutions of a patch embedding.

    Attributes:
        hidden: (kernel, stride) of each convolution before the last; all have the stem's width.
        overlap: kernel of the last convolution over its stride.
    """

    hidden: tuple[tuple[int, int], ...]
    overlap: int = 1


# Rows of the table in its order. Its third row prints kernels 7, 3, 8 and strides 2, 2, 4, which would make the patches
# overlap; the number of parameters beside it (25M) is that of a last kernel of 4. The name ending in "overlap" is the
# row as printed, with the padding that gives the same grid.
STEMS = {
    "1_conv": StemPlan(()),
    "2_conv": StemPlan(((7, 2),)),
    "3_conv_coarse": StemPlan(((7, 2), (3, 2))),
    "3_conv_coarse_overlap": StemPlan(((7, 2), (3, 2)), overlap=2),
    "3_conv": StemPlan(((7, 2), (3, 1))),
    "4_conv": StemPlan(((7, 2), (3, 1), (3, 1))),
    "6_conv": StemPlan(((7, 2), (3, 1), (3, 1), (3, 1), (3, 1))),
}


class LvVitStem(nn.Module):
    """Convolutions with batch norm and ReLU, then one without that cuts the map into patches.

    Names and initialisation (torch's own) are those of the original: `conv1`, `bn1`, ..., `proj`. All but the last
    convolution have no bias.

    Args:
        img_size: side of the images, or (height, width), in pixels.
        patch_size: pixels per cell, along each side.
        in_chans: channels of the images.
        embed_dim: channels of the cells.
        stem: a key of `STEMS`.
        width: channels between the convolutions.

    Attributes:
        img_size: (height, width) in pixels.
        patch_size: (height, width) of a cell in pixels.
        grid_size: (rows, columns) of the cells at `img_size`.
        num_patches: cells at `img_size`.

    Raises:
        ValueError: no such stem, or sizes that are no multiples of each other.
    """

    def __init__(
        self,
        img_size: int | Size = 224,
        patch_size: int = 16,
        in_chans: int = 3,
        embed_dim: int = 384,
        stem: str = "4_conv",
        width: int = 64,
    ) -> None:
        super().__init__()
        plan = _plan(stem, patch_size)
        self.patch_size = (patch_size, patch_size)
        self.set_input_size(img_size)
        self.count, stride = len(plan.hidden), patch_size
        for number, (kernel, step) in enumerate(plan.hidden, 1):
            conv = nn.Conv2d(in_chans, width, kernel, step, kernel // 2, bias=False)
            self.add_module(f"conv{number}", conv)
            self.add_module(f"bn{number}", nn.BatchNorm2d(width))
            in_chans, stride = width, stride // step
        padding = (plan.overlap - 1) * stride // 2
        self.proj = nn.Conv2d(in_chans, embed_dim, plan.overlap * stride, stride, padding)

    def set_input_size(self, img_size: int | Size) -> None:
        """Expect images of another size; nothing is resampled, since convolutions take any.

        Raises:
            ValueError: the size is not a multiple of the patches.
        """
        height, width = height_and_width(img_size)
        self._require_whole_patches(height, width)
        self.img_size = (height, width)
        self.grid_size = (height // self.patch_size[0], width // self.patch_size[1])
        self.num_patches = self.grid_size[0] * self.grid_size[1]

    def forward(self, x: Tensor) -> Tensor:
        """Return the map (B, embed_dim, H / patch, W / patch) of images (B, in_chans, H, W).

        Raises:
            ValueError: H or W is not a multiple of the patches.
        """
        self._require_whole_patches(x.shape[2], x.shape[3])
        # With channels last, as kernels compute and tokens are, a CPU saves a fifth. In training it saves little, and
        # batch norm then sums in single precision there instead of double.
        x = x if self.training else x.contiguous(memory_format=torch.channels_last)
        for number in range(1, self.count + 1):
            conv, norm = getattr(self, f"conv{number}"), getattr(self, f"bn{number}")
            x = functional.relu(norm(conv(x)), inplace=True)
        return self.proj(x)

    def _require_whole_patches(self, height: int, width: int) -> None:
        patch = self.patch_size[0]
        if height < 1 or width < 1 or height % patch or width % patch:
            raise ValueError(
                f"images of {height}x{width} pixels do not divide into patches of {patch}; use multiples of {patch}"
            )


def first_convolution(stem: str) -> str:
    """Return the name of the layer that reads the image, within the model."""
    return "patch_embed.conv1" if STEMS[stem].hidden else "patch_embed.proj"


def _plan(stem: str, patch_size: int) -> StemPlan:
    if stem not in STEMS:
        raise ValueError(f"stem is {stem!r}; choose one of {', '.join(STEMS)}")
    plan, least = STEMS[stem], 1
    for _, step in plan.hidden:
        least *= step
    least *= plan.overlap  # the padding of overlapping patches is half of what is left of the stride
    if patch_size < 1 or patch_size % least:
        raise ValueError(f"patch_size is {patch_size}; the stem {stem!r} takes multiples of {least}")
    return plan
