"""The pairs that are drawn are those that the protocol scores."""

import math

import pytest
import torch

from paucal.evaluation.protocols.correspondence import TOP, match_cells, true_positions
from paucal.explain.features import Correspondence
from paucal.verbs.eval.frozen import scored_matches

PLAIN = torch.tensor([[1.0, 0, 0], [0, 1, 0]])
MIRROR = torch.tensor([[-1.0, 0, 0], [0, 1, 0]])
CROP = torch.tensor([[0.5, 0, 0.3], [0, 0.6, -0.2]])


@pytest.mark.parametrize("second", [MIRROR, CROP])
@pytest.mark.parametrize("seed", range(4))
def test_scored_pairs__are_those_of_the_protocol(second, seed):
    draw = torch.Generator().manual_seed(seed)
    ours, theirs = torch.randn(1, 8, 4, 6, generator=draw), torch.randn(1, 8, 5, 3, generator=draw)
    matches = match_cells(ours, theirs, true_positions(PLAIN[None], second[None], (4, 6)), (50, 30))
    cells, order = matches.cells[0], matches.similarity[0].argsort(descending=True, stable=True)
    both = [torch.stack((index // columns, index % columns), 1) for index, columns in ((order, 6), (cells[order], 3))]
    marks = torch.zeros(2, 2, dtype=torch.long)
    found = Correspondence(*both, matches.similarity[0][order], ((4, 6), (5, 3)), marks, marks)
    kept, right = scored_matches(found, [PLAIN, second])
    assert 1 <= len(right) <= TOP
    scored = matches.order[0][: len(right)]
    assert torch.equal(kept.first, torch.stack((scored // 6, scored % 6), 1))
    assert torch.equal(kept.second, torch.stack((cells[scored] // 3, cells[scored] % 3), 1))
    assert math.isclose(right.float().mean().item(), matches.accuracy[0].item(), abs_tol=1e-6)


def test_scored_pairs__of_a_mirror_image_are_right_where_columns_are_mirrored():
    cells = torch.tensor([[row, column] for row in range(2) for column in range(3)])
    taken = torch.stack((cells[:, 0], 2 - cells[:, 1]), 1)
    taken[4] = cells[4] * 0
    marks = torch.zeros(2, 2, dtype=torch.long)
    found = Correspondence(cells, taken, torch.linspace(1, 0, 6), ((2, 3), (2, 3)), marks, marks)
    kept, right = scored_matches(found, [PLAIN, MIRROR])
    assert right.tolist() == [True, True, True, True, False, True]
    assert torch.equal(kept.first, cells)
