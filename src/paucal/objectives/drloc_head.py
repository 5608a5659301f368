"""The small network that predicts the offset between two cells (positions) of a feature map."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paucal.losses.drloc_targets import gather_cells, pair_index


class LocalizationHead(nn.Module):
    """Three linear layers on the concatenated embeddings of a pair of cells (Table 15 of the paper's supplement).

    A ReLU follows each of the first two layers. For regression, the last layer has one output for the row offset and
    one for the column offset. For classification, the last layer has logits for the row offset followed by logits for
    the column offset. The layers have torch's default initialisation. The paper does not specify an initialisation; in
    the authors' code, the initialisation depends on the backbone (truncated normal with a standard deviation of 0.02
    for Swin and T2T-ViT, torch's default for others).

    If a feature map has fewer cells than pairs, the first layer is applied once per cell and the outputs are gathered,
    which gives the same result with less work.

    Args:
        dim: Number of channels of the feature map.
        hidden: Width of the two hidden layers.
        classes: Number of classes of the row offset and number of classes of the column offset; None to regress the
            offsets.
        extra_layer: Whether a head with `classes` has another linear layer before the last, as in the authors' code.
            No non-linearity follows this layer, so it adds parameters but no expressive power.

    Example:
        >>> head = LocalizationHead(768)
        >>> sum(p.numel() for p in head.parameters())
        1050626
        >>> rows, columns = head(torch.rand(2, 768, 7, 7), torch.zeros(2, 64, 2, 2, dtype=torch.int64))
        >>> rows.shape
        torch.Size([2, 64, 1])
    """

    def __init__(
        self, dim: int, hidden: int = 512, *, classes: tuple[int, int] | None = None, extra_layer: bool = False
    ):
        super().__init__()
        self.outputs = (1, 1) if classes is None else classes
        self.first = nn.Linear(2 * dim, hidden)
        self.second = nn.Linear(hidden, hidden)
        self.extra = nn.Linear(hidden, hidden) if extra_layer and classes is not None else nn.Identity()
        self.last = nn.Linear(hidden, sum(self.outputs))

    def forward(self, grid: Tensor, pairs: Tensor) -> tuple[Tensor, Tensor]:
        """Return the predictions for the row offset and for the column offset of each pair.

        Args:
            grid: (B, D, H, W) feature map.
            pairs: (B, m, 2, 2) pairs of cells, see `paucal.losses.drloc_targets`.

        Returns:
            Two (B, m, C) tensors; C is 1 for regression, else the number of classes.
        """
        cells = grid.flatten(2).transpose(1, 2).to(self.first.weight.dtype)
        index = pair_index(pairs, grid.shape[-1])
        # The first layer needs 2 * dim * hidden multiplications per pair, or the same number per cell if the layer is
        # applied to single cells.
        if cells.shape[1] < index.shape[1]:
            first = _apply_per_cell(cells, index, self.first)
        else:
            first = self.first(gather_cells(cells, index.flatten(1)).unflatten(1, index.shape[1:]).flatten(2))
        hidden = self.second(first.relu()).relu()
        rows, columns = self.last(self.extra(hidden)).split(self.outputs, dim=-1)
        return rows, columns


def _apply_per_cell(cells: Tensor, index: Tensor, layer: nn.Linear) -> Tensor:
    """Return the output of a linear layer on the concatenated embeddings of each pair, (B, m, hidden).

    One half of the layer's weight applies to the first cell of a pair and the other half to the second cell, and the
    two results are added. So both halves are applied to every cell, in a single matrix product.
    """
    outputs = F.linear(cells, torch.cat(layer.weight.chunk(2, dim=1)))
    first, second = outputs.chunk(2, dim=-1)
    return gather_cells(first, index[..., 0]) + gather_cells(second, index[..., 1]) + layer.bias
