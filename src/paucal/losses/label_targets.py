"""Targets for every token from a teacher's label map, without a tensor over all classes.

For each cell (position) of the teacher's output grid, a label map stores the k largest logits and their classes; the
logits of all other classes count as 0. Even with a thousand classes, the map of a photograph names only a few dozen
different classes. So the targets have one probability for each of these named classes, and one probability that every
other class has. Source: Jiang et al. 2021, "All Tokens Matter", section 3, and the authors' code, which expands maps to
(B, K, H, W).
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from paucal.losses.precision import at_least_float32


@dataclass(frozen=True)
class SparseTargets:
    """Probabilities over K classes for T tokens of each image."""

    classes: Tensor  # (B, U) int64 numbers of the classes that are named in the image's label map, padded with -1
    named: Tensor  # (B, T, U) probabilities of the named classes; 0 for padding
    unnamed_probability: Tensor  # (B, T) probability of each class that is not named (not the sum over these classes)
    num_classes: int
    # (B, T) fraction of each token's area that the label map covers, from 0 to 1; None if it covers the whole image.
    coverage: Tensor | None = None

    def dense(self) -> Tensor:
        """Return the probabilities of all classes, (B, T, K)."""
        dense = self.unnamed_probability[..., None].repeat(1, 1, self.num_classes)
        index = self.classes.clamp(min=0)[:, None].expand_as(self.named)
        # Padding gets the index of class 0, but adds 0 to the probability of class 0.
        difference = (self.named - self.unnamed_probability[..., None]) * (self.classes >= 0)[:, None]
        return dense.scatter_add(-1, index, difference)

    def smoothed(self, amount: float, like_authors: bool = False) -> "SparseTargets":
        """Return the targets with label smoothing, (1 - amount) * target + amount / K; they sum to 1.

        With `like_authors`, targets are multiplied by 1 - amount + amount / K instead, as in the authors' code, so they
        sum to 1 + amount / K.
        """
        shift = amount / self.num_classes
        factor = 1 - amount + shift if like_authors else 1 - amount
        named = (self.named * factor + shift) * (self.classes >= 0)[:, None]
        return replace(self, named=named, unnamed_probability=self.unnamed_probability * factor + shift)


def compact_maps(values: Tensor, slots: Tensor, n_named: int) -> Tensor:
    """Return one map of logits per named class, (B, U, H, W) in float32, from the k largest logits of each cell.

    `slots` has the index of each logit's class among the image's `n_named` named classes, a number that includes the
    padding; both tensors are (B, k, H, W). The logit is 0 where a class is not among the k largest of the cell.
    """
    batch, _, height, width = values.shape
    maps = values.new_zeros(batch, n_named, height, width, dtype=torch.float32)
    return maps.scatter_add(1, slots, values.float())


def sample_maps(
    maps: Tensor, geometry: Tensor, size: tuple[int, int], covered: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """Average label maps (B, U, H, W) over each cell of a view's token grid, whose (rows, columns) are `size`.

    If the view is an axis-aligned box of the image, this is RoIAlign with adaptive sampling, as in the authors' code:
    the number of sample points along a side of a view cell is the number of map cells that the side spans, rounded up.
    Here, a view may also be mirrored, rotated or sheared. Sample points outside the image count as 0. Points inside the
    image but outside the map are left out of the average.

    The averages are computed in float32 even under autocast, since half precision would move the sample points by some
    hundredths of a cell and change probabilities by up to 0.1.

    `geometry` has (B, 2, 3) affine maps from points of the view to points of the image, see `types.Batch.geometry`.
    `covered` has (B, 2) fractions of the image's width and height that the map covers, around the image's centre; None
    if maps cover whole images. The results are the averages (B, U, rows, columns), which are 0 for cells that the map
    does not cover, and the covered fractions (B, rows, columns) of the cells' areas; None if `covered` is None.
    """
    with torch.autocast(maps.device.type, enabled=False):
        covered = None if covered is None else at_least_float32(covered)
        return _cell_averages(at_least_float32(maps), at_least_float32(geometry), size, covered)


def _cell_averages(
    maps: Tensor, geometry: Tensor, size: tuple[int, int], covered: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    rows, columns = size
    to_map = geometry if covered is None else geometry / covered[:, :, None]
    down, across = _points_per_cell(to_map, maps.shape[-2:], size)
    max_down, max_across = _max_points(maps.shape[-2], rows), _max_points(maps.shape[-1], columns)
    y, weight_y = _point_positions(down, max_down, rows)
    x, weight_x = _point_positions(across, max_across, columns)
    points = torch.stack((x[:, None, :].expand(-1, y.shape[1], -1), y[:, :, None].expand(-1, -1, x.shape[1])), -1)
    ones = torch.ones_like(points[..., :1])
    map_points = torch.cat((points, ones), -1) @ to_map[:, None].transpose(-1, -2)
    in_map = _is_inside(map_points)
    sampled = functional.grid_sample(maps, map_points, padding_mode="border", align_corners=False)
    weight = weight_y[:, :, None] * weight_x[:, None, :]

    def sum_over_cells(values: Tensor, point_mask: Tensor) -> Tensor:
        weighted = values * (point_mask * weight)[:, None]
        return functional.avg_pool2d(weighted, (max_down, max_across), divisor_override=1)  # divisor 1 gives sums

    average = sum_over_cells(sampled, in_map)
    if covered is None:
        return average, None
    in_image = _is_inside(map_points * covered[:, None, None])
    coverage = 1 - sum_over_cells(torch.ones_like(sampled[:, :1]), in_image & ~in_map)
    return average / coverage.clamp(min=1e-6), coverage.squeeze(1).clamp(min=0)


def map_targets(
    maps: Tensor,
    classes: Tensor,
    geometry: Tensor,
    size: tuple[int, int],
    num_classes: int,
    covered: Tensor | None = None,
    teacher_classes: Tensor | None = None,
) -> SparseTargets:
    """Return the targets of a view's cells, which are the softmax over all classes of the averaged logits.

    A teacher may have classes that are not among the K classes of the run. The probability of these classes does not
    tell which of the K classes an area resembles, so it is spread evenly over all K classes, as in label smoothing.

    The logits `maps` are from `compact_maps`, the number (B, U) of each named class is in `classes`: -1 for padding,
    and K or more for classes of the teacher that are not classes of the run. See `sample_maps` for `geometry`, `size`
    and `covered`. `teacher_classes` (B,) counts the teacher's classes, including the K classes of the run; None if the
    teacher has exactly these.
    """
    average, coverage = sample_maps(maps, geometry, size, covered)
    logits = average.flatten(2).transpose(1, 2)
    is_named = (classes >= 0)[:, None]
    # The maximum is at least 0, which is the logit of every class that is not named.
    max_logits = logits.masked_fill(~is_named, 0.0).amax(-1, keepdim=True).clamp(min=0)
    weights = (logits - max_logits).exp() * is_named
    other_weight = (-max_logits).exp()
    n_classes = num_classes if teacher_classes is None else teacher_classes[:, None, None]
    n_unnamed = n_classes - is_named.sum(-1, keepdim=True)
    total = weights.sum(-1, keepdim=True) + n_unnamed * other_weight
    token_coverage = None if coverage is None else coverage.flatten(1)
    targets = SparseTargets(classes, weights / total, (other_weight / total).squeeze(-1), num_classes, token_coverage)
    if teacher_classes is None:
        return targets
    # Spread the probability of classes that are not in the run evenly over the run's K classes.
    is_in_run = (classes >= 0) & (classes < num_classes)
    run_probabilities = targets.named * is_in_run[:, None]
    n_unnamed = num_classes - is_in_run.sum(-1, keepdim=True)
    added_probability = (1 - run_probabilities.sum(-1) - n_unnamed * targets.unnamed_probability) / num_classes
    return replace(
        targets,
        classes=classes.masked_fill(~is_in_run, -1),
        named=(run_probabilities + added_probability[..., None]) * is_in_run[:, None],
        unnamed_probability=targets.unnamed_probability + added_probability,
    )


def transpose_geometry(geometry: Tensor) -> Tensor:
    """Swap rows and columns of a view's box in the image, to reproduce a mistake of the authors' code."""
    return geometry[:, [1, 0]][:, :, [1, 0, 2]]


def _is_inside(points: Tensor) -> Tensor:
    """Return whether normalised (x, y) points are in [-1, 1] x [-1, 1], up to rounding."""
    return (points.abs() <= 1 + 1e-6).all(-1)


def _points_per_cell(to_map: Tensor, map_sides: torch.Size, size: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Return the number of sample points along the height and along the width of a view's cell, (B,) each."""

    def on_device(across: float, down: float) -> Tensor:
        # A copy of the two numbers from the CPU would synchronise with the GPU.
        return torch.stack([to_map.new_full((), across), to_map.new_full((), down)])

    # No other factor is needed, because the normalised coordinates of view and map both range from -1 to 1.
    scale = on_device(map_sides[1], map_sides[0])
    spans = (to_map[:, :, :2] * scale[:, None]).norm(dim=1)  # the view's width and height, in cells of the map
    counts = (spans / on_device(size[1], size[0]) - 1e-4).ceil()
    max_points = on_device(_max_points(map_sides[1], size[1]), _max_points(map_sides[0], size[0]))
    counts = counts.clamp(min=1).minimum(max_points)
    return counts[:, 1], counts[:, 0]


def _max_points(map_cells: int, view_cells: int) -> int:
    """Return the largest number of sample points along a side of a view's cell.

    This is 1.5 times the number for a view of the whole image, since a rotated view may need more.
    """
    return -(-3 * map_cells // (2 * view_cells))


def _point_positions(counts: Tensor, max_points: int, view_cells: int) -> tuple[Tensor, Tensor]:
    """Return the positions in [-1, 1] of sample points along a side of the view, and the weights of these points.

    Both are (B, view_cells * max_points). Surplus points have weight 0.
    """
    point = torch.arange(max_points, device=counts.device)
    offsets = (point + 0.5) / counts[:, None]
    starts = torch.arange(view_cells, device=counts.device)
    positions = (starts[None, :, None] + offsets[:, None]) / view_cells * 2 - 1
    weights = (point < counts[:, None]) / counts[:, None]
    return positions.flatten(1), weights[:, None].expand(-1, view_cells, -1).flatten(1)
