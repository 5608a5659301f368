"""The stem of T2T-ViT: tokens of overlapping windows in three steps (Yuan et al., ICCV 2021, section 3.1)."""

from timm.models import checkpoint
from torch import Tensor, nn
from torch.nn import functional

from paucal.backbones.families.t2t.layers import (
    FIRST,
    NEXT,
    PerformerLayer,
    TransformerLayer,
    cells_last,
    cut_windows,
    padding,
)
from paucal.types import height_and_width

Size = tuple[int, int]
TOKENS = ("performer", "transformer")
_LAST_STRIDES = 4  # the second and third step halve the grid


class TokensToToken(nn.Module):
    """Windows of 7 pixels, a token layer, windows of 3 cells, a token layer, windows of 3 cells, a projection.

    Windows overlap, so that an image need not divide into patches; at its right and bottom border up to a stride of
    pixels is left out where it does not.

    Args:
        img_size: side of the images, or (height, width), in pixels.
        patch_size: pixels per cell of the result, along each side: 16 in the published program, where the first
            windows are 4 pixels apart. Others move them apart by a quarter of it, with the same weights.
        in_chans: channels of the images.
        embed_dim: channels of the result.
        tokens: "performer" for linear attention, "transformer" for softmax attention in the token layers.
        token_dim: channels between the steps.
        kernel_ratio: random features of the performer over `token_dim`.
        drop: dropout in the token layers; None for the published program's, 0.1 in the performer and 0 in the
            transformer.

    Attributes:
        img_size: (height, width) in pixels.
        patch_size: (height, width) of a cell in pixels.
        grid_size: (rows, columns) of the cells at `img_size`.
        grad_checkpointing: whether the token layers are computed again in the backward pass.

    Raises:
        ValueError: a value that makes no stem.
    """

    def __init__(
        self,
        img_size: int | Size = 224,
        patch_size: int = 16,
        in_chans: int = 3,
        embed_dim: int = 384,
        tokens: str = "performer",
        token_dim: int = 64,
        kernel_ratio: float = 0.5,
        drop: float | None = None,
    ) -> None:
        super().__init__()
        if tokens not in TOKENS:
            raise ValueError(f"tokens_type is {tokens!r}; choose one of {', '.join(TOKENS)}")
        self.set_input_size(img_size, patch_size)
        self.grad_checkpointing = False
        if tokens == "performer":
            rate = 0.1 if drop is None else drop
            self.attention1 = PerformerLayer(in_chans, FIRST**2, token_dim, kernel_ratio, rate)
            self.attention2 = PerformerLayer(token_dim, NEXT**2, token_dim, kernel_ratio, rate)
        else:
            self.attention1 = TransformerLayer(in_chans, FIRST**2, token_dim, drop or 0.0)
            self.attention2 = TransformerLayer(token_dim, NEXT**2, token_dim, drop or 0.0)
        self.project = nn.Linear(token_dim * NEXT**2, embed_dim)

    def set_input_size(self, img_size: int | Size, patch_size: int) -> None:
        """Expect images of a size and give cells of a size, both in pixels; no weights depend on them.

        Raises:
            ValueError: the cells are no multiple of 4 up to 28 pixels, or the images too small for one.
        """
        if patch_size not in range(_LAST_STRIDES, _LAST_STRIDES * FIRST + 1, _LAST_STRIDES):
            raise ValueError(
                f"patch_size is {patch_size}; it must be a multiple of {_LAST_STRIDES} up to {_LAST_STRIDES * FIRST}"
            )
        self.stride = patch_size // _LAST_STRIDES
        self.patch_size = (int(patch_size), int(patch_size))
        height, width = height_and_width(img_size)
        self.grid_size = self.grid_of(height, width)
        self.img_size = (height, width)

    def grid_of(self, height: int, width: int) -> Size:
        """Return (rows, columns) of the cells of images of that size in pixels.

        Raises:
            ValueError: the images are too small for one window.
        """
        least = FIRST - 2 * padding(FIRST, self.stride)
        if min(height, width) < least:
            raise ValueError(f"images of {height}x{width} pixels hold no window; give {least} pixels or more")
        rows, columns = ((side - least) // self.stride + 1 for side in (height, width))
        return -(-rows // _LAST_STRIDES), -(-columns // _LAST_STRIDES)

    def forward(self, x: Tensor) -> tuple[Tensor, Size]:
        """Return the tokens (B, H' * W', embed_dim) of images (B, C, H, W), row by row, and (H', W')."""
        x = x.permute(0, 2, 3, 1).contiguous()
        x = self._step(self.attention1, x, FIRST, self.stride)
        x = self._step(self.attention2, x, NEXT, 2)
        # A convolution would do the same, but in TF32 on GPUs where a product of matrices is in float32.
        windows = cut_windows(x, NEXT, 2)
        channels = windows.shape[-1] // NEXT**2
        cells = functional.linear(windows, cells_last(self.project.weight, channels), self.project.bias)
        return cells.flatten(1, 2), (cells.shape[1], cells.shape[2])

    def _step(self, layer: nn.Module, cells: Tensor, side: int, stride: int) -> Tensor:
        if self.grad_checkpointing and self.training:
            return checkpoint(_mix, layer, cells, side, stride)
        return _mix(layer, cells, side, stride)


def _mix(layer: nn.Module, cells: Tensor, side: int, stride: int) -> Tensor:
    return layer(cut_windows(cells, side, stride))
