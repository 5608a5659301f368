"""Cutting maps into windows: against padding and rolling in one go, and against loops over cells."""

import itertools

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

from paucal.backbones.families.swin_esvit import Windows, pad_and_shift, relative_bias, unpad_and_unshift, window_mask

CUTS = [
    Windows((8, 8), (4, 4), (0, 0)),
    Windows((8, 8), (4, 4), (2, 2)),
    Windows((6, 9), (4, 4), (0, 0)),
    Windows((6, 9), (4, 4), (2, 2)),
    Windows((3, 3), (7, 7), (3, 3)),
    Windows((2, 6), (7, 7), (3, 3)),  # the shift leads into the padding of two rows
    Windows((1, 10), (7, 7), (3, 3)),
    Windows((5, 7), (3, 4), (1, 0)),
]
every_cut = pytest.mark.parametrize("windows", CUTS, ids=str)


@every_cut
def test_lay_out__pads_then_shifts(windows: Windows) -> None:
    x, fill = torch.randn(2, *windows.size, 3), torch.randn(3)
    (height, width), (rows, columns) = windows.size, windows.padded_size
    expected = fill.expand(2, rows, columns, 3).clone()
    expected[:, :height, :width] = x
    expected = expected.roll((-windows.shift[0], -windows.shift[1]), (1, 2))
    assert torch.equal(pad_and_shift(x, windows, fill), expected)
    padded = functional.pad(x, (0, 0, 0, columns - width, 0, rows - height))
    assert torch.equal(pad_and_shift(x, windows), padded.roll((-windows.shift[0], -windows.shift[1]), (1, 2)))


@every_cut
def test_take_back__undoes_it(windows: Windows) -> None:
    x = torch.randn(2, *windows.size, 3)
    assert torch.equal(unpad_and_unshift(pad_and_shift(x, windows, torch.full((3,), 9.0)), windows), x)


@every_cut
@pytest.mark.parametrize("hides", [False, True])
def test_kept_apart__keeps_what_was_no_neighbour_and_padding_apart(windows: Windows, hides: bool) -> None:
    """A cell's side of the seam, and whether it is padding, told cell by cell."""
    windows = windows._replace(hides_padding=hides)
    (height, width), (padded_rows, padded_columns) = windows.size, windows.padded_size
    (rows, columns), (down, right) = windows.window, windows.shift

    def described(row: int, column: int) -> tuple[tuple[bool, bool], bool]:
        side = row + down >= padded_rows, column + right >= padded_columns  # wrapped round
        place = (row + down) % padded_rows, (column + right) % padded_columns
        return side, place[0] >= height or place[1] >= width

    found = window_mask(windows, torch.zeros(1))
    corners = itertools.product(range(0, padded_rows, rows), range(0, padded_columns, columns))
    for window, (top, left) in enumerate(corners):
        cells = [described(top + i, left + j) for i in range(rows) for j in range(columns)]
        for query, key in itertools.product(range(len(cells)), repeat=2):
            hidden = hides and cells[key][1] and not cells[query][1]
            assert found[window, query, key].item() == (cells[query][0] != cells[key][0] or hidden)
    assert found.shape[0] == window + 1
    assert not found.all(-1).any()  # every query sees something
    assert windows.needs_mask == (any(down_right for down_right in windows.shift) or bool(found.any()))


def test_kept_apart__is_made_once_and_fits_training() -> None:
    windows, like = Windows((13, 11), (4, 4), (2, 2)), torch.zeros(1)
    with FakeTensorMode():
        window_mask(windows, torch.zeros(1))  # while something is traced
    with torch.inference_mode():
        first = window_mask(windows, torch.zeros(1))
    assert type(first) is torch.Tensor
    assert not first.is_inference()
    assert window_mask(windows, like) is first


@pytest.mark.parametrize("window", [(3, 4), (2, 4), (3, 1), (1, 1)])
def test_relative_bias__looks_up_offsets_in_the_table_of_a_larger_window(window: tuple[int, int]) -> None:
    of, heads = (3, 4), 2
    table = torch.randn((2 * of[0] - 1) * (2 * of[1] - 1), heads)
    bias = relative_bias(table, of, window)
    cells = list(itertools.product(range(window[0]), range(window[1])))
    assert bias.shape == (heads, len(cells), len(cells))
    for (i, query), (j, key) in itertools.product(enumerate(cells), repeat=2):
        row, column = query[0] - key[0] + of[0] - 1, query[1] - key[1] + of[1] - 1
        assert torch.equal(bias[:, i, j], table[row * (2 * of[1] - 1) + column])


def test_shrunk__fits_windows_to_the_map_and_keeps_the_shift_of_larger_maps() -> None:
    windows = Windows((3, 24), (7, 7), (3, 3)).shrink_to_map()
    assert windows == Windows((3, 24), (3, 7), (0, 3))
    assert windows.padded_size == (3, 28)
    assert Windows((7, 7), (7, 7), (3, 3)).shrink_to_map().shift == (0, 0)
