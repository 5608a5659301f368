"""EsViT's correspondence protocol: how well features match the patches of two views of an image.

A "cell" is one grid position of a feature map, such as a patch of a ViT. Each cell of the first view is matched with
the cell of the second view whose feature has the highest cosine similarity. The "true cell" is the cell of the second
view that shows the same part of the image. Only the most similar pairs are scored. The accuracy is the fraction of
pairs whose matched cell is the true cell. The distance error is the distance in pixels between the centres of the
matched cell and the true cell. The published code supports only a mirrored image as the second view, and square feature
maps. Here, the true cells are computed from the geometry of any two views, and feature maps may have any shape.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor
from torchvision.transforms import v2

from paucal.backbones.features import FeatureBackbone
from paucal.data.views.augmentation import RESAMPLING, Augmentation
from paucal.data.views.transforms import EvalTransform, TrainTransform, cover_size
from paucal.evaluation.protocols.classifier import to_double
from paucal.types import Batch, UserError

TOP = 10  # number of pairs that are scored per image; the most similar pairs are chosen
Size = tuple[int, int]  # (height, width), or (rows, columns)


@dataclass(frozen=True)
class Matches:
    """The matched cells of two views of B images and their scores; cells are numbered row by row."""

    cells: Tensor  # (B, N) index of the second view's most similar cell for each of the N cells of the first view
    similarity: Tensor  # (B, N) cosine similarities of the matched cells
    order: Tensor  # (B, N) cells of the first view by descending similarity; those outside the second view come last
    accuracy: Tensor  # (B,) fraction of the scored pairs that are correct; NaN if no cell is inside the second view
    distance: Tensor  # (B,) mean distance of the scored pairs from the true cells, in pixels of the second view


def true_positions(first: Tensor, second: Tensor, grid: Size) -> Tensor:
    """Return the (B, N, 2) positions (x, y) in the second view of the centres of the first view's cells.

    `first` and `second` are the (B, 2, 3) geometry of the views, as `types.Batch.geometry` defines it. Coordinates
    outside [-1, 1] are outside the view.
    """
    y, x = torch.meshgrid(*((2 * torch.arange(count) + 1) / count - 1 for count in grid), indexing="ij")
    centres = torch.stack([x.flatten(), y.flatten()], 1).to(first)
    source = centres @ first[:, :, :2].transpose(1, 2) + first[:, None, :, 2]
    return torch.linalg.solve(second[:, None, :, :2], (source - second[:, None, :, 2])[..., None])[..., 0]


def match_cells(first: Tensor, second: Tensor, positions: Tensor, image_size: Size, top: int = TOP) -> Matches:
    """Match the cells of two views and score the `top` most similar pairs of every image.

    The features of the views are (B, D, h, w) and (B, D, H, W). `positions` are the (B, h * w, 2) positions of the
    first view's cells in the second view, from `true_positions`; a true cell is the second view's cell at this
    position. Cells whose position is outside the second view are not scored. `image_size` is the size of the second
    view in pixels.
    """
    rows, columns = second.shape[2:]
    first_cells, second_cells = (F.normalize(grid.flatten(2).transpose(1, 2), dim=2) for grid in (first, second))
    cosine = first_cells @ second_cells.transpose(1, 2)
    similarity, cells = cosine.max(2)
    true_column, true_row = (
        ((positions[..., axis] + 1) / 2 * count).floor().long() for axis, count in ((0, columns), (1, rows))
    )
    is_visible = (true_column >= 0) & (true_column < columns) & (true_row >= 0) & (true_row < rows)
    order = similarity.masked_fill(~is_visible, -2.0).argsort(dim=1, descending=True, stable=True)
    top_rows = order[:, :top]
    is_scored = is_visible.gather(1, top_rows)
    x_error = (cells % columns - true_column).gather(1, top_rows) * (image_size[1] / columns)
    y_error = (cells // columns - true_row).gather(1, top_rows) * (image_size[0] / rows)
    distance = torch.hypot(to_double(x_error), to_double(y_error))
    is_scored = is_scored.to(distance.device)
    count = is_scored.sum(1)
    accuracy = ((distance == 0) & is_scored).sum(1) / count
    return Matches(cells, similarity, order, accuracy, (distance * is_scored).sum(1) / count)


def measure_correspondence(
    backbone: FeatureBackbone,
    loader: Iterable[Batch],
    device: torch.device | str,
    top: int = TOP,
    progress: Callable[[int], None] | None = None,
) -> tuple[Tensor, Tensor]:
    """Match two views of each image; return the accuracies and the distance errors in pixels.

    The features are the last feature map, after the final norm, of the backbone, which is in evaluation mode and on
    `device`. `progress` is called with the number of images processed so far. Returns (N,) float64 tensors on the CPU.
    """
    if backbone.grid == (1, 1):
        raise UserError("the last feature map is 1x1, so there is nothing to match: give a larger --img-size.")
    accuracy, distance, n_done = [], [], 0
    with torch.inference_mode():
        for batch in loader:
            if batch.geometry is None or len(batch.views) != 2:
                raise ValueError("expected two views with their geometry")
            first, second = (backbone(view).grids[-1].float() for view in batch.to(device).views)
            if not bool(torch.isfinite(first).all() & torch.isfinite(second).all()):
                raise UserError("the features are not finite numbers: the weights are damaged; check the model.")
            # Computed on the CPU, since not every device can solve the 2 x 2 systems.
            positions = true_positions(batch.geometry[0], batch.geometry[1], (first.shape[2], first.shape[3]))
            size = (batch.views[1].shape[2], batch.views[1].shape[3])
            matches = match_cells(first, second, positions.to(first.device), size, top)
            accuracy.append(to_double(matches.accuracy).cpu())
            distance.append(matches.distance.cpu())
            n_done += len(batch)
            if progress is not None:
                progress(n_done)
    if not accuracy:
        raise UserError("there are no images to match: give at least one image.")
    return torch.cat(accuracy), torch.cat(distance)


Change = Literal["mirror", "crop"]
# Strengths of brightness, contrast, saturation and hue, and probability of the jitter, as in the published code.
_JITTER, _JITTER_PROBABILITY = (0.4, 0.4, 0.2, 0.1), 0.8
_CROP_AREA = (0.4, 0.6)  # smallest and largest crop as a fraction of the image's area


class SecondView:
    """Transform of the second view; the first view is not augmented. Random numbers come from torch's global generator.

    "mirror" is the published view, which is always mirrored and greyscale, with colours jittered with probability 0.8.
    (The published code always converts to greyscale; the paper does not mention this.) "crop" is a crop of 40 to 60 %
    of the image's area, mirrored with probability 0.5, jittered with probability 0.8 and greyscale with probability
    0.2.
    """

    def __init__(self, change: Change, first: EvalTransform) -> None:
        self._mirrors, self._first = change == "mirror", first
        grey = v2.RandomGrayscale(1.0 if self._mirrors else 0.2)
        self._colours = v2.Compose([v2.RandomApply([v2.ColorJitter(*_JITTER)], p=_JITTER_PROBABILITY), grey])
        crop = Augmentation(scale=_CROP_AREA, rand_augment=None, erase_prob=0.0, interpolation=first.interpolation)
        self._crop = TrainTransform(first.size, crop, first.normalisation, resize=first.resize)

    def __call__(self, image: Image.Image) -> tuple[Tensor, Tensor]:
        """Return the (3, H, W) view, and the (2, 3) affine matrix that maps the view to the image."""
        # A large photo is reduced to twice the size of the view, which makes colour jitter about ten times as fast.
        height, width = cover_size(image, (2 * self._first.size[0], 2 * self._first.size[1]))
        if height < image.height:
            image = image.resize((width, height), RESAMPLING[self._first.interpolation])
        image = self._colours(image)
        if not self._mirrors:
            return self._crop(image)
        view, theta = self._first(image)
        theta[0, 0] = -theta[0, 0]
        return torch.flip(view, [2]), theta
