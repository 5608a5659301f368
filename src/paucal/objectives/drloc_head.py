"""The small network that predicts the offset between two cells of a grid."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paucal.losses.drloc_targets import gather_cells, pair_index


class LocalizationHead(nn.Module):
    """Three linear layers on the concatenated embeddings of a pair (Table 15 of the paper's supplement).

    A ReLU follows each of the first two. The last layer has an output per coordinate, or for classification
    the classes of the row offset followed by those of the column offset. Its layers keep torch's own
    initialisation; the paper names none, and in the authors' code it follows the backbone (truncated normal
    of 0.02 in Swin and T2T-ViT, torch's own elsewhere).

    If a grid has fewer cells than pairs, the first layer is applied once per cell and the results
    are gathered: the same function of the same parameters, with less work.

    Args:
        dim: Channels of the grid.
        hidden: Width of both hidden layers.
        classes: Number of classes of the row and of the column offset; None regresses one number each.
        extra_layer: Whether to put one more linear layer before the last, with `classes`, as the authors' code does.
            No non-linearity follows it, so it adds parameters but no expressive power.

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
            grid: (B, D, H, W).
            pairs: (B, m, 2, 2) cells, see `paucal.losses.drloc_targets`.

        Returns:
            Two tensors (B, m, C), with C = 1 for regression.
        """
        cells = grid.flatten(2).transpose(1, 2).to(self.first.weight.dtype)
        index = pair_index(pairs, grid.shape[-1])
        # Per image the first layer costs 2 * dim * hidden multiplications per pair or, if applied to cells, per cell.
        if cells.shape[1] < index.shape[1]:
            first = _apply_per_cell(cells, index, self.first)
        else:
            first = self.first(gather_cells(cells, index.flatten(1)).unflatten(1, index.shape[1:]).flatten(2))
        hidden = self.second(first.relu()).relu()
        rows, columns = self.last(self.extra(hidden)).split(self.outputs, dim=-1)
        return rows, columns


def _apply_per_cell(cells: Tensor, index: Tensor, layer: nn.Linear) -> Tensor:
    # The layer on (a; b) is the sum of a part that reads a and a part that reads b: one product gives both parts
    # for every cell.
    parts = F.linear(cells, torch.cat(layer.weight.chunk(2, dim=1)))
    first, second = parts.chunk(2, dim=-1)
    return gather_cells(first, index[..., 0]) + gather_cells(second, index[..., 1]) + layer.bias
