"""Division of maps of any size into attention windows, as in the code of Swin's authors: pad, then shift, then divide.

Maps are padded on the right and bottom to a multiple of the window, then shifted cyclically. Cells that are shifted to
the opposite border must not attend to their new neighbours, which a mask prevents. (timm shifts maps before padding
them, which puts other cells into a window. Therefore, timm's Swin differs from EsViT's Swin at 96 pixels, and from the
Swin authors' code for detection.)
"""

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

Size = tuple[int, int]
_MAX_CACHED_MASKS = 32  # a model needs up to four masks per image size, which its blocks share


class Windows(NamedTuple):
    """How a map is divided into windows.

    Attributes:
        size: (rows, columns) of the map.
        window: (rows, columns) of a window.
        shift: (up, left) number of cells by which the padded map is shifted.
        hides_padding: Whether cells must not attend to padding.
    """

    size: Size
    window: Size
    shift: Size
    hides_padding: bool = False

    @property
    def padded_size(self) -> Size:
        """(rows, columns) of the map after padding."""
        (height, width), (rows, columns) = self.size, self.window
        return height + -height % rows, width + -width % columns

    @property
    def counts(self) -> Size:
        """Number of windows along the height and along the width."""
        return self.padded_size[0] // self.window[0], self.padded_size[1] // self.window[1]

    @property
    def needs_mask(self) -> bool:
        """Whether some cells of a window must not attend to each other."""
        return any(self.shift) or (self.hides_padding and self.padded_size != self.size)

    def shrink_to_map(self) -> "Windows":
        """Return windows that are not larger than the map, and are not shifted along sides with a single window."""
        (height, width), (rows, columns), (down, right) = self.size, self.window, self.shift
        return self._replace(
            window=(min(rows, height), min(columns, width)),
            shift=(down if height > rows else 0, right if width > columns else 0),
        )


def pad_and_shift(x: Tensor, windows: Windows, fill: Tensor | None = None) -> Tensor:
    """Pad and shift a map, so that it can be divided into windows.

    Args:
        x: (B, H, W, C) map.
        windows: Windows into which the map will be divided.
        fill: (C,) value of padded cells; None for zeros.
    """
    for axis, padded in zip((1, 2), windows.padded_size, strict=True):
        if padded > x.shape[axis]:
            shape = [padded - side if index == axis else side for index, side in enumerate(x.shape)]
            filling = x.new_zeros(shape) if fill is None else fill.to(x.dtype).expand(shape)
            x = torch.cat([x, filling], axis)
    down, right = windows.shift
    return x.roll((-down, -right), (1, 2)) if down or right else x


def unpad_and_unshift(x: Tensor, windows: Windows) -> Tensor:
    """Undo `pad_and_shift`: return the (B, H, W, C) map shifted back and without padding."""
    x = x.roll(windows.shift, (1, 2)) if any(windows.shift) else x
    return x if windows.padded_size == windows.size else x[:, : windows.size[0], : windows.size[1]]


def window_mask(windows: Windows, like: Tensor) -> Tensor:
    """Return the mask (windows, queries, keys), which is True where a query must not attend to a key.

    Cells that are neighbours only because of the cyclic shift must not attend to each other. Padding may attend to all
    cells, so that every query has a key; the padding's output is not used. Masks are cached for the most recent sizes
    and shared by all models of the process.
    """
    # Do not cache masks made while tracing or for another tensor type, since they cannot be used elsewhere.
    if torch.compiler.is_compiling() or type(like) is not Tensor:
        return _compute_mask(windows, like.device)
    return _cached_mask(windows, like.device)


@lru_cache(maxsize=_MAX_CACHED_MASKS)
def _cached_mask(windows: Windows, device: torch.device) -> Tensor:
    with torch.inference_mode(False):  # otherwise a mask made in inference mode could not be used in training
        return _compute_mask(windows, device)


def _compute_mask(windows: Windows, device: torch.device) -> Tensor:
    sides = []
    for size, padded, shift in zip(windows.size, windows.padded_size, windows.shift, strict=True):
        index = torch.arange(padded, device=device)
        sides.append((index >= padded - shift, (index + shift) % padded >= size))
    (is_wrapped_row, is_padded_row), (is_wrapped_column, is_padded_column) = sides
    region = _divide_into_windows(is_wrapped_row[:, None] * 2 + is_wrapped_column, windows)
    mask = region[:, :, None] != region[:, None, :]
    if windows.hides_padding:
        padding = _divide_into_windows(is_padded_row[:, None] | is_padded_column, windows)
        mask = mask | (padding[:, None, :] & ~padding[:, :, None])
    return mask


def _divide_into_windows(cells: Tensor, windows: Windows) -> Tensor:
    """Divide (H, W) values of cells into (windows, cells per window)."""
    (down, across), (rows, columns) = windows.counts, windows.window
    return cells.view(down, rows, across, columns).transpose(1, 2).reshape(down * across, rows * columns)
