"""Scores that compare methods of attribution on a set of images.

Deletion and insertion (Petsiuk et al. 2018, "RISE") test whether the regions that a map highlights are important to the
model: pixels are removed from an image in the order of the map, or put into a blurred copy of it, and the
probability of the class is measured. With a good map it falls early, or rises early. Removed pixels become 0, which is
the mean colour after normalisation. All maps are compared on the same grid, so that a finer map has no advantage.

Pointing tests whether a map finds an object at a known position (Zhang et al. 2018, "Top-down Neural Attention by
Excitation Backprop"; pasted objects as in the grid pointing game of Böhle et al. 2021). Here the object is a reduced
image of another class, pasted at a random position.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paucal.explain.attribution.methods import RANDOM, attribute, methods_of, random_maps
from paucal.explain.prepared import explainable, run

STEPS = 10
CELLS = 8  # along each side of the grid on which maps are compared
BLUR = 8  # half the side, in pixels, of the squares whose mean colours `blur` interpolates


def on_cells(maps: Tensor, cells: int = CELLS) -> Tensor:
    """Return maps (B, h, w) resized to (B, cells, cells): averaged if they are finer, bilinear if they are coarser."""
    if maps.shape[1] >= cells and maps.shape[2] >= cells:
        return F.adaptive_avg_pool2d(maps[:, None], cells)[:, 0]
    return F.interpolate(maps[:, None], (cells, cells), mode="bilinear", align_corners=False)[:, 0]


def cells_by_rank(maps: Tensor, cells: int = CELLS) -> Tensor:
    """Return the rank of every cell, (B, cells, cells) int64, 0 for the highest value; ties by position."""
    flat = on_cells(maps.float(), cells).flatten(1)
    order = flat.argsort(dim=1, descending=True, stable=True)
    ranks = torch.empty_like(order).scatter(1, order, torch.arange(flat.shape[1], device=flat.device).expand_as(order))
    return ranks.unflatten(1, (cells, cells))


def blur(images: Tensor) -> Tensor:
    """Return images (B, C, H, W) reduced to their coarse colours."""
    height, width = images.shape[2:]
    reduced = F.adaptive_avg_pool2d(images, (math.ceil(height / BLUR / 2), math.ceil(width / BLUR / 2)))
    return F.interpolate(reduced, (height, width), mode="bilinear", align_corners=False)


@torch.no_grad()
def perturbation_curve(
    model: nn.Module, images: Tensor, maps: Tensor, classes: Tensor, insert: bool = False, steps: int = STEPS
) -> Tensor:
    """Return the probability of each image's class as its cells are deleted or inserted, (B, steps + 1).

    Args:
        model: A classifier.
        images: (B, C, H, W), normalised.
        maps: (B, h, w), of any size.
        classes: (B,).
        insert: Put cells into the blurred image; else remove them from the image.
        steps: Number of equal steps from no cells to all.
    """
    ranks = cells_by_rank(maps.to(images.device))
    total, base = ranks[0].numel(), blur(images) if insert else torch.zeros_like(images)
    probabilities = []
    with explainable(model) as module:
        for step in range(steps + 1):
            is_changed = (ranks < round(total * step / steps))[:, None].float()
            mask = F.interpolate(is_changed, images.shape[2:], mode="nearest")
            mixed = mask * images + (1 - mask) * base if insert else (1 - mask) * images
            shares = run(module, mixed.to(next(module.parameters()).dtype)).float().softmax(1)
            probabilities.append(shares.gather(1, classes.to(shares.device)[:, None])[:, 0])
    return torch.stack(probabilities, 1)


def area(curve: Tensor) -> Tensor:
    """Return the area under (B, points) curves over equal steps from 0 to 1, (B,).

    Example:
        >>> area(torch.tensor([[1.0, 0.5, 0.0]]))
        tensor([0.5000])
    """
    return (curve[:, 1:] + curve[:, :-1]).mean(1) / 2


SIDE = 0.5  # side of the pasted image as a share of the image's; a quarter of the area


@dataclass(frozen=True, eq=False)
class PastedImages:
    """Images with an image of another class in them.

    Attributes:
        images: (B, C, H, W).
        classes: (B,) classes of the pasted images.
        boxes: (B, 4) top, left, bottom, right in pixels.
    """

    images: Tensor
    classes: Tensor
    boxes: Tensor


def paste_objects(images: Tensor, classes: Tensor, generator: torch.Generator, side: float = SIDE) -> PastedImages:
    """Paste a reduced image of another class into each image, at a random position.

    Images of a batch with a single class are left out.

    Args:
        images: Images (B, C, H, W).
        classes: (B,) true classes of the images.
        generator: Generator for partners and positions.
        side: Side of the pasted image, as a share of the image's.
    """
    height, width = images.shape[2:]
    rows, columns = max(1, round(side * height)), max(1, round(side * width))
    reduced = F.interpolate(images, (rows, columns), mode="bilinear", align_corners=False, antialias=True)
    pasted, labels, boxes = [], [], []
    for index in range(len(images)):
        candidates = (classes != classes[index]).nonzero()[:, 0]
        if not len(candidates):
            continue
        other = int(candidates[_draw_index(len(candidates), generator)])
        top, left = _draw_index(height - rows + 1, generator), _draw_index(width - columns + 1, generator)
        picture = images[index].clone()
        picture[:, top : top + rows, left : left + columns] = reduced[other]
        pasted.append(picture)
        labels.append(int(classes[other]))
        boxes.append([top, left, top + rows, left + columns])
    if not pasted:
        return PastedImages(images[:0], classes[:0], torch.zeros(0, 4, dtype=torch.long))
    return PastedImages(torch.stack(pasted), torch.tensor(labels), torch.tensor(boxes))


def pointing_hits(maps: Tensor, boxes: Tensor, size: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Return whether each map has its maximum in the box, and the share of its positive values inside it; both (B,).

    Args:
        maps: (B, h, w) cells of equal size; a cell is weighted by the share of its area in the box.
        boxes: (B, 4) in pixels.
        size: (height, width) of the images in pixels.
    """
    share_inside = torch.stack([_share_inside(box, (maps.shape[1], maps.shape[2]), size) for box in boxes.tolist()])
    share_inside = share_inside.to(maps.device)
    best = maps.flatten(1).argmax(1, keepdim=True)
    hit = share_inside.flatten(1).gather(1, best)[:, 0] > 0.5
    positive = maps.clamp(min=0).flatten(1)
    total = positive.sum(1)
    mass = (positive * share_inside.flatten(1)).sum(1) / total.clamp_min(1e-30)
    return hit.float(), torch.where(total > 0, mass, share_inside.mean((1, 2)))


def _share_inside(box: list[int], grid: tuple[int, int], size: tuple[int, int]) -> Tensor:
    """Return the share of each cell of a grid that lies inside a box (top, left, bottom, right) in pixels."""
    top, left, bottom, right = box
    down = _overlap(top, bottom, grid[0], size[0])
    across = _overlap(left, right, grid[1], size[1])
    return down[:, None] * across


def _overlap(start: float, end: float, cells: int, length: int) -> Tensor:
    """Return the share of each of `cells` equal parts of a length that lies between two points on it."""
    edges = torch.arange(cells + 1) * (length / cells)
    shared = torch.minimum(edges[1:], torch.tensor(float(end))) - torch.maximum(edges[:-1], torch.tensor(float(start)))
    return shared.clamp(min=0) / (length / cells)


def _draw_index(count: int, generator: torch.Generator) -> int:
    return int(torch.randint(count, (1,), generator=generator))


ERROR = 1.96  # standard errors on either side of a 95 % interval


@dataclass(frozen=True)
class MethodScore:
    """The scores of a method over a set of images; areas and shares are from 0 to 1.

    Attributes:
        deletion: Mean area under the probability while cells are deleted, important ones first; lower is better.
        insertion: Mean area under the probability while cells are inserted, important ones first; higher is better.
        faithfulness: Insertion - deletion, higher is better.
        faithfulness_error: Half the width of the 95 % interval of the faithfulness over images.
        pointing: Share of pasted objects that the highest cell hits; a quarter by chance.
        mass: Mean share of a map that lies on the object; a quarter by chance.
        images: Number of images.
        pasted: Number of images into which another class could be pasted.
    """

    deletion: float
    insertion: float
    faithfulness: float
    faithfulness_error: float
    pointing: float
    mass: float
    images: int
    pasted: int


def score_methods(
    model: nn.Module,
    batches: Iterable[tuple[Tensor, Tensor]],
    methods: Sequence[str] | None = None,
    seed: int = 0,
    steps: int = STEPS,
    progress: Callable[[int], None] | None = None,
) -> dict[str, MethodScore]:
    """Score methods on images: deletion and insertion for the predicted class, pointing for a pasted class.

    Args:
        model: A classifier.
        batches: (images (B, C, H, W) normalised, labels (B,)), several classes in each: partners for pasting are taken
            from the same batch.
        methods: Keys of `METHODS`, by default all that work with the model; a random map is added.
        seed: Seed of the random maps and of the pasting.
        steps: Steps of deletion and insertion.
        progress: Function that is called with the number of images done.

    Raises:
        UserError: the model lacks what a method needs, or its extra is not installed.
    """
    names = [*(methods_of(model) if methods is None else methods), RANDOM]
    rows: dict[str, list[Tensor]] = {name: [] for name in names}
    n_done = 0
    for images, labels in batches:
        generator = torch.Generator().manual_seed(seed + n_done)
        with explainable(model) as module, torch.no_grad():
            predicted = run(module, images).argmax(1)
        pasted = paste_objects(images, labels, generator)
        for name in names:
            rows[name].append(_scores_of(model, name, images, predicted, pasted, seed + n_done, steps))
        n_done += len(images)
        if progress is not None:
            progress(n_done)
    return {name: _mean_scores(torch.cat(parts, 1)) for name, parts in rows.items()}


def _scores_of(model: nn.Module, name: str, images: Tensor, predicted: Tensor, pasted, seed: int, steps: int) -> Tensor:
    """Return (4, B): deletion, insertion, hit, mass; NaN where nothing could be pasted."""
    maps = _class_maps(model, name, images, predicted, seed)
    deletion = area(perturbation_curve(model, images, maps, predicted, steps=steps))
    insertion = area(perturbation_curve(model, images, maps, predicted, insert=True, steps=steps))
    points = torch.full((2, len(images)), torch.nan)
    if len(pasted.images):
        pasted_maps = _class_maps(model, name, pasted.images, pasted.classes, seed + 1)
        size = (images.shape[2], images.shape[3])
        points[:, : len(pasted_maps)] = torch.stack(pointing_hits(pasted_maps, pasted.boxes, size)).cpu()
    return torch.cat((torch.stack((deletion, insertion)).cpu(), points))


def _class_maps(model: nn.Module, name: str, images: Tensor, classes: Tensor, seed: int) -> Tensor:
    if name == RANDOM:
        return random_maps(len(images), (CELLS, CELLS), seed).to(images.device)
    return attribute(model, images, classes, name)


def _mean_scores(rows: Tensor) -> MethodScore:
    deletion, insertion, hit, mass = rows.double()
    gain = insertion - deletion
    error = ERROR * float(gain.std()) / max(1, len(gain)) ** 0.5 if len(gain) > 1 else 0.0
    values = (deletion.mean(), insertion.mean(), gain.mean(), error, hit.nanmean(), mass.nanmean())
    pasted = int(hit.isfinite().sum())
    return MethodScore(*(float(value) for value in values), images=len(gain), pasted=pasted)


def as_rows(scores: dict[str, MethodScore]) -> list[dict[str, float | str]]:
    """Return the scores as rows of a table, the most faithful first."""
    ordered = sorted(scores.items(), key=lambda item: -item[1].faithfulness)
    return [{"method": name, **{f.name: getattr(score, f.name) for f in fields(score)}} for name, score in ordered]
