"""Matches between two images whose truth is known."""

import numpy as np
import pytest
import timm
import torch
from matplotlib.colors import to_hex
from matplotlib.patches import ConnectionPatch

from paucal.explain.features import Correspondence, match_images, nearest_cells
from paucal.explain.figures.cells import RED, YELLOW, MatchedPair, matches_figure
from paucal.types import UserError


def patches_only() -> torch.nn.Module:
    """A network whose cells know nothing but their own patch of 8x8 pixels."""
    torch.manual_seed(0)
    options = {"depth": 0, "pos_embed": "none", "class_token": False, "global_pool": "avg", "embed_dim": 32}
    return timm.create_model("vit_tiny_patch16_224", img_size=(32, 48), patch_size=8, num_classes=3, **options)


def test_matches__of_a_moved_image_are_the_moved_cells() -> None:
    image = torch.randn(3, 32, 48, generator=torch.Generator().manual_seed(0))
    moved = image.roll((8, -16), (1, 2))  # one cell down, two to the left
    found = match_images(patches_only(), image, moved, top=24)
    assert found.grids == ((4, 6), (4, 6))
    assert sorted(map(tuple, found.first.tolist())) == [(row, column) for row in range(4) for column in range(6)]
    expected = torch.stack(((found.first[:, 0] + 1) % 4, (found.first[:, 1] - 2) % 6), 1)
    assert torch.equal(found.second, expected)
    torch.testing.assert_close(found.similarity, torch.ones(24))
    assert torch.equal(found.own[1], torch.tensor([(found.own[0, 0] + 1) % 4, (found.own[0, 1] - 2) % 6]))


def test_nearest_cells__are_row_and_column() -> None:
    grid = torch.randn(2, 5, 3, 4, generator=torch.Generator().manual_seed(1))
    pooled = torch.stack((grid[0, :, 2, 1] * 3, grid[1, :, 0, 3] * 0.1))
    assert nearest_cells(grid, pooled).tolist() == [[2, 1], [0, 3]]


def test_matches__refuse_images_that_do_not_fit() -> None:
    image = torch.zeros(3, 32, 48)
    with pytest.raises(UserError, match="does not support an image of 48x32 pixels"):
        match_images(patches_only(), image, image.transpose(1, 2))


def test_sheet__draws_true_pairs_and_wrong_ones_apart_in_the_right_places() -> None:
    cells = torch.tensor([[0, 0], [1, 2]])
    marks = torch.zeros(2, 2, dtype=torch.long)
    found = Correspondence(cells, cells.flip(0), torch.ones(2), ((2, 3), (2, 3)), marks, marks)
    picture = np.zeros((20, 30, 3), dtype=np.float32)
    pair = MatchedPair((picture, picture), found, ("one", "other"), torch.tensor([True, False]))
    figure = matches_figure([pair, pair])
    lines = [artist for artist in figure.artists if isinstance(artist, ConnectionPatch)]
    assert [(line.xy1, line.xy2) for line in lines] == [((4.5, 4.5), (24.5, 14.5)), ((24.5, 14.5), (4.5, 4.5))] * 2
    assert [to_hex(line.get_edgecolor()) for line in lines] == [YELLOW, RED] * 2
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["one", "other"] * 2
