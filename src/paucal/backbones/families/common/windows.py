"""Cut maps of any size into windows in the order of Swin's papers: pad, shift, cut.

Maps are padded at the right and the bottom to whole windows, then shifted cyclically. Cells that wrap round to the
other border are masked from their new neighbours. (timm shifts before it pads, which makes other cells neighbours: with
timm, Swin in EsViT at 96 pixels and in detection differs from the papers' models.)
"""

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

Size = tuple[int, int]
_CACHED = 32  # masks kept; a model needs up to four per image size, shared by all of its blocks


class Windows(NamedTuple):
    """How a map is cut into windows.

    Attributes:
        size: (rows, columns) of the map.
        window: (rows, columns) of a window.
        shift: Cells by which the padded map is shifted up and to the left.
        hides_padding: Whether the map's own cells must not see padding.
    """

    size: Size
    window: Size
    shift: Size
    hides_padding: bool = False

    @property
    def padded(self) -> Size:
        """(rows, columns) of the map with padding."""
        (height, width), (rows, columns) = self.size, self.window
        return height + -height % rows, width + -width % columns

    @property
    def counts(self) -> Size:
        """(rows, columns) of windows."""
        return self.padded[0] // self.window[0], self.padded[1] // self.window[1]

    @property
    def needs_mask(self) -> bool:
        """Whether some cells of a window must not see each other."""
        return any(self.shift) or (self.hides_padding and self.padded != self.size)

    def shrunk(self) -> "Windows":
        """Return windows no larger than the map, without a shift along a side that one window spans."""
        (height, width), (rows, columns), (down, right) = self.size, self.window, self.shift
        return self._replace(
            window=(min(rows, height), min(columns, width)),
            shift=(down if height > rows else 0, right if width > columns else 0),
        )


def lay_out(x: Tensor, windows: Windows, fill: Tensor | None = None) -> Tensor:
    """Return a map (B, H, W, C) padded and shifted.

    Args:
        x: The map.
        windows: Windows that the map will be cut into.
        fill: (C,), the content of padded cells; None for zeros.
    """
    for axis, padded in zip((1, 2), windows.padded, strict=True):
        if padded > x.shape[axis]:
            shape = [padded - side if index == axis else side for index, side in enumerate(x.shape)]
            filling = x.new_zeros(shape) if fill is None else fill.to(x.dtype).expand(shape)
            x = torch.cat([x, filling], axis)
    down, right = windows.shift
    return x.roll((-down, -right), (1, 2)) if down or right else x


def take_back(x: Tensor, windows: Windows) -> Tensor:
    """Undo `lay_out`: shift back, remove the padding and return the map (B, H, W, C)."""
    x = x.roll(windows.shift, (1, 2)) if any(windows.shift) else x
    return x if windows.padded == windows.size else x[:, : windows.size[0], : windows.size[1]]


def kept_apart(windows: Windows, like: Tensor) -> Tensor:
    """Return which cells of a window must not see each other, (windows, queries, keys), True where hidden.

    Cells that only the cyclic shift has brought together are hidden from each other. Padding may see everything, since
    nothing reads its output; so no query is left without a key. Masks are cached for the most recent sizes, for all
    models of the process.
    """
    # A mask made during tracing, or of another tensor type, must not be reused outside.
    if torch.compiler.is_compiling() or type(like) is not Tensor:
        return _kept_apart(windows, like.device)
    return _cached_index(windows, like.device)


@lru_cache(maxsize=_CACHED)
def _cached_index(windows: Windows, device: torch.device) -> Tensor:
    with torch.inference_mode(False):  # otherwise a mask made for inference could not be used in training
        return _kept_apart(windows, device)


def _kept_apart(windows: Windows, device: torch.device) -> Tensor:
    sides = []
    for size, padded, shift in zip(windows.size, windows.padded, windows.shift, strict=True):
        index = torch.arange(padded, device=device)
        sides.append((index >= padded - shift, (index + shift) % padded >= size))
    (row_region, low), (column_region, far) = sides
    region = _cut_into_windows(row_region[:, None] * 2 + column_region, windows)
    is_separate = region[:, :, None] != region[:, None, :]
    if windows.hides_padding:
        padding = _cut_into_windows(low[:, None] | far, windows)
        is_separate = is_separate | (padding[:, None, :] & ~padding[:, :, None])
    return is_separate


def _cut_into_windows(cells: Tensor, windows: Windows) -> Tensor:
    """Return (H, W) values of the cells as (windows, cells of a window)."""
    (down, across), (rows, columns) = windows.counts, windows.window
    return cells.view(down, rows, across, columns).transpose(1, 2).reshape(down * across, rows * columns)
