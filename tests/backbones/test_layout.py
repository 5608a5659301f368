"""Reading tensors of any layout as grids."""

import pytest
import torch

from paucal.backbones.layout import Layout, LayoutHints, grid_sides, last_tensor, read_layout, to_grid


@pytest.mark.parametrize("size", [(224, 224), (64, 96), (96, 64), (48, 160), (250, 250), (100, 36)])
@pytest.mark.parametrize("stride", [1, 2, 4, 8, 16, 32])
@pytest.mark.parametrize("prefix", [0, 1, 2])
def test_read_layout__recovers_every_grid_of_a_stride(size: tuple[int, int], stride: int, prefix: int) -> None:
    height, width = (-(-side // stride) for side in size)
    tokens, bare = (2, prefix + height * width, 7), (2, height * width, 7)
    assert read_layout(tokens, size, (prefix,)) == Layout("tokens", prefix, height, width)
    # Inside CaiT the class token is left out; the last grid tells which reading is right.
    hints = LayoutHints(sides=(height, width))
    assert read_layout(tokens, size, (prefix, 0), hints) == Layout("tokens", prefix, height, width)
    assert read_layout(bare, size, (prefix, 0), hints) == Layout("tokens", 0, height, width)


@pytest.mark.parametrize("cells", [197, 198, 0, -1])
def test_grid_sides__refuses_what_is_no_grid(cells: int) -> None:
    assert grid_sides(cells, (224, 224)) is None


def test_read_layout__tells_maps_apart_and_follows_the_hint_where_both_fit() -> None:
    assert read_layout((2, 7, 7, 768), (224, 224)) == Layout("nhwc", 0, 7, 7)
    assert read_layout((2, 768, 7, 7), (224, 224), hints=LayoutHints(channels_last=True)) == Layout("nchw", 0, 7, 7)
    assert read_layout((2, 24, 24, 24), (96, 96), hints=LayoutHints(channels_last=True)) == Layout("nhwc", 0, 24, 24)
    assert read_layout((2, 24, 24, 24), (96, 96)) == Layout("nchw", 0, 24, 24)
    assert read_layout((2, 16, 196, 192), (224, 224)) is None
    assert read_layout((2, 768), (224, 224)) is None


def test_to_grid__puts_each_token_in_its_cell() -> None:
    tokens = torch.arange(2 * 7 * 5.0).reshape(2, 7, 5)  # one class token and 2x3 cells
    grid = to_grid(tokens, (32, 48), (1, 0))
    assert grid is not None
    for row in range(2):
        for column in range(3):
            assert torch.equal(grid[:, :, row, column], tokens[:, 1 + 3 * row + column])
    assert torch.equal(
        to_grid(tokens[:, 1:].reshape(2, 2, 3, 5), (32, 48), hints=LayoutHints(channels_last=True)), grid
    )


def test_last_tensor__is_the_deepest_branch() -> None:
    small, large = torch.zeros(1), torch.ones(1)
    assert last_tensor([small, (small, large)]) is large
    assert to_grid({"x": small}, (32, 32)) is None
