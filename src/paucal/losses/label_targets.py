"""Targets for every token from a teacher's label map, without a tensor over all classes.

A label map keeps, for each cell of the teacher's grid, the logits of its top k classes; the others count as zero.
Even with a thousand classes, the map of a photograph names only some dozens, so targets are stored for these classes,
and one probability for each of the others. Source: Jiang et al. 2021, "All Tokens Matter", section 3, and the
target builder of the authors' code, which scatters everything into (B, K, H, W) first.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from paucal.losses.precision import precise


@dataclass(frozen=True)
class SparseTargets:
    """Probabilities over K classes for T places of each image.

    Attributes:
        classes: (B, U) int64, classes named in the image's map; -1 pads.
        named: (B, T, U) probabilities of these classes; 0 for padding.
        other: (B, T) probability of each class that is not named.
        num_classes: Number of classes K.
        known: (B, T) share of each place that the label map covers; None for all of it.
    """

    classes: Tensor
    named: Tensor
    other: Tensor
    num_classes: int
    known: Tensor | None = None

    def dense(self) -> Tensor:
        """Return (B, T, K)."""
        dense = self.other[..., None].repeat(1, 1, self.num_classes)
        index = self.classes.clamp(min=0)[:, None].expand_as(self.named)
        # Padding points at class 0 and adds nothing there.
        difference = (self.named - self.other[..., None]) * (self.classes >= 0)[:, None]
        return dense.scatter_add(-1, index, difference)

    def smoothed(self, amount: float) -> "SparseTargets":
        """Return (1 - amount) * target + amount / K, which sums to one.

        The factor in the authors' code is 1 - amount + amount / K instead; see `smoothed_like_program`.
        """
        return self._scaled(1 - amount, amount / self.num_classes)

    def smoothed_like_program(self, amount: float) -> "SparseTargets":
        """Return the targets smoothed as in the authors' code, which sum to 1 + amount / K."""
        add = amount / self.num_classes
        return self._scaled(1 - amount + add, add)

    def _scaled(self, factor: float, shift: float) -> "SparseTargets":
        named = (self.named * factor + shift) * (self.classes >= 0)[:, None]
        return replace(self, named=named, other=self.other * factor + shift)


def compact_maps(values: Tensor, slots: Tensor, named: int) -> Tensor:
    """Return maps (B, U, H, W) of the named classes' logits from top-k values and slots (B, k, H, W)."""
    batch, _, height, width = values.shape
    maps = values.new_zeros(batch, named, height, width, dtype=torch.float32)
    return maps.scatter_add(1, slots, values.float())


def sample_maps(
    maps: Tensor, geometry: Tensor, size: tuple[int, int], covered: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """Average label maps over the cells of a view.

    For views that are boxes this is RoIAlign with adaptive sampling (as many points along a side of a cell as it
    spans cells of the map, rounded up), as in the authors' code; here a view may also be mirrored, turned or sheared.
    Points outside the image count as zero; points in the image but outside the map are left out of the average.

    Half precision is avoided inside autocast: positions would be off by some hundredths of a cell, which moves
    probabilities by up to 0.1.

    Args:
        maps: (B, U, H, W).
        geometry: (B, 2, 3) from points of the view to points of the image, see `types.Batch.geometry`.
        size: (rows, columns) of cells in the view.
        covered: (B, 2) shares of the image's width and height, about its centre, that the maps cover; None where they
            cover whole images.

    Returns:
        The averages (B, U, rows, columns), zero where nothing is known, and the known share (B, rows, columns) of each
        cell; the share is None where `covered` is None.
    """
    with torch.autocast(maps.device.type, enabled=False):
        return _cell_averages(precise(maps), precise(geometry), size, None if covered is None else precise(covered))


def _cell_averages(
    maps: Tensor, geometry: Tensor, size: tuple[int, int], covered: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    rows, columns = size
    to_map = geometry if covered is None else geometry / covered[:, :, None]
    down, across = _points_per_cell(to_map, maps.shape[-2:], size)
    most_down, most_across = _max_points(maps.shape[-2], rows), _max_points(maps.shape[-1], columns)
    y, weight_y = _point_positions(down, most_down, rows)
    x, weight_x = _point_positions(across, most_across, columns)
    points = torch.stack((x[:, None, :].expand(-1, y.shape[1], -1), y[:, :, None].expand(-1, -1, x.shape[1])), -1)
    ones = torch.ones_like(points[..., :1])
    map_points = torch.cat((points, ones), -1) @ to_map[:, None].transpose(-1, -2)
    inside = _within_view(map_points)
    sampled = functional.grid_sample(maps, map_points, padding_mode="border", align_corners=False)
    weight = weight_y[:, :, None] * weight_x[:, None, :]

    def over_cells(values: Tensor, chosen: Tensor) -> Tensor:
        weighted = values * (chosen * weight)[:, None]
        return functional.avg_pool2d(weighted, (most_down, most_across), divisor_override=1)  # sums

    average = over_cells(sampled, inside)
    if covered is None:
        return average, None
    in_image = _within_view(map_points * covered[:, None, None])
    known = 1 - over_cells(torch.ones_like(sampled[:, :1]), in_image & ~inside)
    return average / known.clamp(min=1e-6), known.squeeze(1).clamp(min=0)


def map_targets(
    maps: Tensor,
    classes: Tensor,
    geometry: Tensor,
    size: tuple[int, int],
    num_classes: int,
    covered: Tensor | None = None,
    teacher_classes: Tensor | None = None,
) -> SparseTargets:
    """Return the targets of a view's cells: the softmax, over all classes, of the averaged logits.

    A teacher may know classes beyond the K of the run. Their probability says only that something else is there, not
    which of the K classes it resembles, so it is spread over all K alike, as in label smoothing.

    Args:
        maps: (B, U, H, W) logits of the named classes, as `compact_maps` gives them.
        classes: (B, U) numbers of the named classes, -1 for padding; classes beyond the run's K have numbers from K on.
        geometry: (B, 2, 3), as for `sample_maps`.
        size: (rows, columns) of the cells, which come row by row; (1, 1) for the target of the whole view.
        num_classes: Number of classes K.
        covered: (B, 2), as for `sample_maps`.
        teacher_classes: (B,) number of classes that the teacher knows, the K included; None if it knows no others.
    """
    average, known_share = sample_maps(maps, geometry, size, covered)
    logits = average.flatten(2).transpose(1, 2)
    is_listed = (classes >= 0)[:, None]
    top = logits.masked_fill(~is_listed, 0.0).amax(-1, keepdim=True).clamp(min=0)  # the other classes' logit is 0
    weights = (logits - top).exp() * is_listed
    other_weight = (-top).exp()
    teachers = num_classes if teacher_classes is None else teacher_classes[:, None, None]
    unnamed = teachers - is_listed.sum(-1, keepdim=True)
    total = weights.sum(-1, keepdim=True) + unnamed * other_weight
    share = None if known_share is None else known_share.flatten(1)
    targets = SparseTargets(classes, weights / total, (other_weight / total).squeeze(-1), num_classes, share)
    return targets if teacher_classes is None else _spread_other_classes(targets)


def _spread_other_classes(targets: SparseTargets) -> SparseTargets:
    """Return targets over the K classes alone, with the others' probability spread over them in equal parts."""
    is_own = (targets.classes >= 0) & (targets.classes < targets.num_classes)
    own_probabilities = targets.named * is_own[:, None]
    unnamed = targets.num_classes - is_own.sum(-1, keepdim=True)
    share_of_each = (1 - own_probabilities.sum(-1) - unnamed * targets.other) / targets.num_classes
    return replace(
        targets,
        classes=targets.classes.masked_fill(~is_own, -1),
        named=(own_probabilities + share_of_each[..., None]) * is_own[:, None],
        other=targets.other + share_of_each,
    )


def transpose_geometry(geometry: Tensor) -> Tensor:
    """Exchange rows and columns of a view's box, as the authors' code does by mistake to look up a crop's labels."""
    return geometry[:, [1, 0]][:, :, [1, 0, 2]]


def _within_view(points: Tensor) -> Tensor:
    return (points.abs() <= 1 + 1e-6).all(-1)


def _points_per_cell(geometry: Tensor, sides: torch.Size, size: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Return how many points (B,) to take along the height and the width of a cell."""
    scale = _new_vector(geometry, sides[1], sides[0])
    # A view is two units wide, and so is the map.
    spans = (geometry[:, :, :2] * scale[:, None]).norm(dim=1)  # the view's width and height, in cells of the map
    counts = (spans / _new_vector(spans, size[1], size[0]) - 1e-4).ceil()
    max_points = _new_vector(counts, _max_points(sides[1], size[1]), _max_points(sides[0], size[0]))
    counts = counts.clamp(min=1).minimum(max_points)
    return counts[:, 1], counts[:, 0]


def _new_vector(like: Tensor, *values: float) -> Tensor:
    """Return a vector made on the device: a copy from the CPU would wait for all queued work of the device."""
    return torch.stack([like.new_full((), value) for value in values])


def _max_points(cells: int, bins: int) -> int:
    """Return the largest number of points along a cell: 1.5 times that of a whole image's view, for turned views."""
    return -(-3 * cells // (2 * bins))


def _point_positions(counts: Tensor, max_points: int, bins: int) -> tuple[Tensor, Tensor]:
    """Return positions (B, bins * most) in [-1, 1] along a side of the view, and the weight of each."""
    point = torch.arange(max_points, device=counts.device)
    offsets = (point + 0.5) / counts[:, None]
    starts = torch.arange(bins, device=counts.device)
    positions = (starts[None, :, None] + offsets[:, None]) / bins * 2 - 1
    weights = (point < counts[:, None]) / counts[:, None]
    return positions.flatten(1), weights[:, None].expand(-1, bins, -1).flatten(1)
