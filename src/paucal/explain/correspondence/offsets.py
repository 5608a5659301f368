"""DrLoc's view: what the extra head believes about the offset between two cells, beside the truth."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class OffsetView:
    """Predicted and true offsets between all pairs of cells of one image, in cells.

    Attributes:
        predicted: (N, N, 2) rows and columns, first cell minus second.
        true: (N, N, 2) likewise; sizes where the head predicts sizes.
        grid: (rows, columns), N of them.
        signed: whether the head predicts directions as well.
    """

    predicted: Tensor
    true: Tensor
    grid: tuple[int, int]
    signed: bool

    def error_map(self) -> Tensor:
        """Return the mean error in cells of the pairs with each cell as the first, (rows, columns)."""
        return (self.predicted - self.true).abs().sum(2).mean(1).unflatten(0, self.grid)

    def mean_error(self) -> float:
        """Return the mean error over all pairs, in cells."""
        return float((self.predicted - self.true).abs().sum(2).mean())

    def chance_error(self) -> float:
        """Return the mean error of the best constant answer, the median of the true offsets: what no image gives."""
        flat = self.true.flatten(0, 1)
        return float((flat - flat.median(0).values).abs().sum(1).mean())


def all_pairs(grid: tuple[int, int]) -> Tensor:
    """Return all ordered pairs of cells (1, N * N, 2, 2), as `paucal.losses.drloc_targets` defines them.

    Example:
        >>> all_pairs((1, 2))[0].tolist()
        [[[0, 0], [0, 0]], [[0, 0], [0, 1]], [[0, 1], [0, 0]], [[0, 1], [0, 1]]]
    """
    rows, columns = grid
    index = torch.arange(rows * columns)
    cells = torch.stack((index // columns, index % columns), 1)
    count = len(cells)
    first, second = cells[:, None].expand(count, count, 2), cells[None].expand(count, count, 2)
    return torch.stack((first, second), 2).flatten(0, 1)[None]
