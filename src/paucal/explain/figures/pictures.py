"""Functions for figures: panels, maps drawn over images, colour bars and readable class names."""

import io
import math
import re
from collections.abc import Sequence
from functools import cache
from typing import Any

import matplotlib
import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image
from timm.data.imagenet_info import ImageNetInfo
from torch import Tensor

PANEL = 2.4  # longer side of a panel in inches
PICTURE_SIDE = 336  # longer side of a drawn image in pixels
HEAT = "inferno"  # matplotlib colour map for attribution and attention
MAX_TITLE_LENGTH = 34  # characters per line of a panel's title

Picture = NDArray[np.float32]  # (H, W, 3) RGB image in [0, 1], the region that the model sees


def visible_region(image: Image.Image, geometry: Tensor, size: tuple[int, int]) -> Picture:
    """Return the region of an upright image that a model sees, (H, W, 3) in [0, 1], with a longer side of 336 pixels.

    `geometry` is the (2, 3) affine matrix from the model's view to the image, see `types.Batch.geometry`. `size` is the
    (height, width) of the model's input, which determines the aspect ratio.
    """
    scale = PICTURE_SIDE / max(size)
    height, width = max(1, round(size[0] * scale)), max(1, round(size[1] * scale))
    image = image.convert("RGB")
    image.thumbnail((3 * PICTURE_SIDE, 3 * PICTURE_SIDE))  # so that `grid_sample` does not alias large images
    pixels = torch.from_numpy(np.asarray(image, dtype=np.float32) / 255).permute(2, 0, 1)[None]
    grid = F.affine_grid(geometry[None].float(), [1, 3, height, width], align_corners=False)
    view = F.grid_sample(pixels, grid, mode="bilinear", padding_mode="border", align_corners=False)
    return view[0].permute(1, 2, 0).clamp(0, 1).numpy()


def make_panels(
    rows: int, columns: int, shape: tuple[int, int], extra: float = 0.0, scale: float = 1.0
) -> tuple[Figure, list[list[Axes]]]:
    """Return a figure with a grid of panels for images of the same shape, with room for titles.

    `shape` is the (height, width) of the images; only its ratio matters. `extra` is additional height of the
    figure in inches. Panels are larger than usual by the factor `scale`.
    """
    longest = max(shape)
    width, height = scale * PANEL * shape[1] / longest, scale * PANEL * shape[0] / longest
    figure = Figure(
        figsize=(columns * max(width, 1.5 * scale) + 0.5, rows * (height + 0.45 * scale) + extra), layout="compressed"
    )
    axes = figure.subplots(rows, columns, squeeze=False)
    for panel in axes.flat:
        panel.set_axis_off()
    return figure, [list(row) for row in axes]


def draw_title(axes: Axes, text: str, size: float = 9) -> None:
    """Write a title above a panel; long lines are truncated, and "$" does not start a formula."""
    lines = [line if len(line) <= MAX_TITLE_LENGTH else line[: MAX_TITLE_LENGTH - 1] + "…" for line in text.split("\n")]
    axes.set_title("\n".join(lines), fontsize=size, loc="left", parse_math=False)


def draw_caption(figure: Figure, text: str, size: float = 8, x: float = 0.02) -> None:
    """Write text below the panels, aligned left."""
    figure.supxlabel(text, fontsize=size, x=x, ha="left")


def draw_heat(axes: Axes, picture: Picture, values: NDArray[Any] | Tensor, low: float, high: float) -> None:
    """Draw an interpolated (h, w) map over a greyscale image."""
    draw_grey(axes, picture)
    style = {"cmap": HEAT, "vmin": low, "vmax": high, "alpha": 0.6, "interpolation": "nearest"}
    axes.imshow(_enlarge(values, picture), **style)


def blend_heat(picture: Picture, values: NDArray[Any] | Tensor, low: float, high: float) -> Image.Image:
    """Return the image that `draw_heat` draws, without axes: an interpolated (h, w) map over a greyscale image."""
    colours = matplotlib.colormaps[HEAT](Normalize(low, high, clip=True)(_enlarge(values, picture)))[..., :3]
    blended = 0.6 * colours + 0.4 * picture.mean(2, keepdims=True)
    return Image.fromarray((255 * blended).round().astype(np.uint8))


def _enlarge(values: NDArray[Any] | Tensor, picture: Picture) -> NDArray[np.float32]:
    maps = torch.as_tensor(np.asarray(values), dtype=torch.float32)[None, None]
    return F.interpolate(maps, picture.shape[:2], mode="bilinear")[0, 0].numpy()


def draw_cell_heat(axes: Axes, picture: Picture, values: NDArray[Any] | Tensor, low: float, high: float) -> None:
    """Draw an (h, w) map over a greyscale image, with each cell as a square."""
    draw_grey(axes, picture)
    draw_cells(axes, picture, np.asarray(values), cmap=HEAT, vmin=low, vmax=high, alpha=0.6)


def draw_grey(axes: Axes, picture: Picture) -> None:
    """Draw an image in greyscale."""
    axes.imshow(np.repeat(picture.mean(2, keepdims=True), 3, 2), interpolation="nearest")


def draw_cells(axes: Axes, picture: Picture, values: NDArray[Any], **style: Any) -> None:
    """Draw (h, w) values or (h, w, 3 or 4) colours over the area of an image; `style` is passed to `Axes.imshow`."""
    height, width = picture.shape[:2]
    axes.imshow(values, interpolation="nearest", extent=(-0.5, width - 0.5, height - 0.5, -0.5), **style)


def draw_colour_bar(figure: Figure, axes: Any, low: float, high: float, label: str = "", shrink: float = 0.75) -> None:
    """Draw the colour bar of maps from `draw_heat`, from `low` to `high`, beside one or more panels."""
    colours = ScalarMappable(Normalize(low, high), HEAT)
    figure.colorbar(colours, ax=axes, shrink=shrink, label=label).ax.tick_params(labelsize=7)


def cell_centre(cell: tuple[int, int], grid: tuple[int, int], shape: Sequence[int]) -> tuple[float, float]:
    """Return the centre (x, y) in pixels of a cell (row, column) of a grid over an image of `shape` (height, width).

    >>> cell_centre((0, 1), (2, 2), (100, 200))
    (149.5, 24.5)
    """
    row, column = cell
    return (column + 0.5) * shape[1] / grid[1] - 0.5, (row + 0.5) * shape[0] / grid[0] - 0.5


def figure_to_bytes(figure: Figure, file_format: str) -> bytes:
    """Return a figure as PNG or SVG (`file_format` is "png" or "svg"); equal figures give identical SVG files."""
    buffer = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "paucal", "svg.fonttype": "none"}):
        metadata = {"Date": None} if file_format == "svg" else {}
        figure.savefig(buffer, format=file_format, dpi=110, metadata=metadata, bbox_inches="tight", pad_inches=0.12)
    return buffer.getvalue()


def choose_columns(count: int, max_columns: int = 6) -> int:
    """Return a suitable number of columns for a figure of `count` panels.

    >>> choose_columns(3), choose_columns(24), choose_columns(8)
    (3, 6, 4)
    """
    return count if count <= 4 else min(max_columns, math.ceil(math.sqrt(count) * 1.25))


_SYNSET = re.compile(r"n\d{8}")  # WordNet id, such as the names of ImageNet's class folders


@cache
def readable_name(name: str) -> str:
    """Return the first English name of an ImageNet class given its WordNet id; other names are returned unchanged.

    >>> readable_name("n03680355"), readable_name("cat")
    ('Loafer', 'cat')
    """
    if not _SYNSET.fullmatch(name):
        return name
    try:
        return _imagenet_info("imagenet-22k").label_name_to_description(name, detailed=False).split(",")[0]
    except (KeyError, IndexError):  # not a class of ImageNet
        return name


_imagenet_info = cache(ImageNetInfo)
