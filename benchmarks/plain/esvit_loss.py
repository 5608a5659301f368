"""EsViT's view and region loss as its published program computes them: all scores at once, pair by pair."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class PlainHead(nn.Module):
    """The projection head that gives the scores of all prototypes for all rows."""

    def __init__(self, dim: int, out_dim: int, hidden: int = 2048, bottleneck: int = 256) -> None:
        super().__init__()
        self.mlp = nn.Sequential(
            nn.Linear(dim, hidden), nn.GELU(), nn.Linear(hidden, hidden), nn.GELU(), nn.Linear(hidden, bottleneck)
        )
        self.last_layer = nn.utils.parametrizations.weight_norm(nn.Linear(bottleneck, out_dim, bias=False))

    def forward(self, rows: Tensor) -> Tensor:
        """Return (N, K) scores of (N, P) features."""
        return self.last_layer(F.normalize(self.mlp(rows), dim=-1))


def plain_losses(
    student: tuple[Tensor, Tensor, Tensor],
    teacher: tuple[Tensor, Tensor, Tensor],
    counts: Sequence[int],
    images: int,
    centres: tuple[Tensor, Tensor],
    temperatures: tuple[float, float],
) -> tuple[Tensor, Tensor]:
    """Return the view loss and the region loss.

    Args:
        student: (V * B, K) scores of crops, (B * sum of T, K) scores of cells, (B * sum of T, P) features of cells,
            crop by crop, then image by image.
        teacher: The same for the two global crops.
        counts: Cells T of each of the student's crops.
        images: B.
        centres: (K,) centres of crops and of cells.
        temperatures: Temperatures of student and teacher.
    """
    low, high = temperatures
    cells = [count * images for count in counts]
    views = (student[0] / low).chunk(len(counts))
    regions, features = (student[1] / low).split(cells), student[2].split(cells)
    goals = F.softmax((teacher[0] - centres[0]) / high, dim=-1).detach().chunk(2)
    dense_goals = F.softmax((teacher[1] - centres[1]) / high, dim=-1).detach().chunk(2)
    goal_features = teacher[2].chunk(2)
    view = region = torch.zeros((), device=student[0].device)
    pairs = 0
    for q in range(2):
        for v in range(len(counts)):
            if v == q:
                continue
            view = view + torch.sum(-goals[q] * F.log_softmax(views[v], dim=-1), dim=-1).mean()
            similar = torch.bmm(
                F.normalize(features[v].view(images, counts[v], -1), dim=-1),
                F.normalize(goal_features[q].view(images, counts[0], -1), dim=-1).mT,
            )
            nearest = similar.argmax(2)[:, :, None].expand(-1, -1, dense_goals[q].shape[-1])
            target = torch.gather(dense_goals[q].view(images, counts[0], -1), 1, nearest)
            likely = F.log_softmax(regions[v].view(images, counts[v], -1), dim=-1)
            region = region + torch.sum(-target * likely, dim=-1).mean(-1).mean()
            pairs += 1
    return view / pairs, region / pairs
