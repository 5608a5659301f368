"""Scores that compare attribution methods on a set of images.

Deletion and insertion (Petsiuk et al. 2018, "RISE") test whether the regions that a map highlights are important to the
model. The image is divided into a grid of 8 x 8 cells. In descending order of the map's values, cells are deleted from
the image or inserted into a blurred copy of the image, and the probability of the class is measured. If the map is
good, the probability falls early (deletion) or rises early (insertion). Deleted pixels become 0, which is the mean
colour after normalisation. All maps are compared on the same grid, so that a finer map has no advantage.

Pointing tests whether a map finds an object at a known position (Zhang et al. 2018, "Top-down Neural Attention by
Excitation Backprop"; pasted objects as in the grid pointing game of Böhle et al. 2021). Here the object is a
downscaled image of another class, pasted at a random position.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paucal.explain.attribution.methods import RANDOM, attribute, methods_of, random_maps
from paucal.explain.prepared import compute_logits, prepare_for_hooks

STEPS = 10  # number of steps of deletion, and of insertion
CELLS = 8  # number of rows and number of columns of the grid on which maps are compared
BLUR_RADIUS = 8  # half the side, in pixels, of the squares whose mean colours `blur` interpolates


def resize_to_cells(maps: Tensor) -> Tensor:
    """Return (B, h, w) maps resized to 8 x 8 cells; finer maps are averaged, coarser maps are interpolated."""
    if maps.shape[1] >= CELLS and maps.shape[2] >= CELLS:
        return F.adaptive_avg_pool2d(maps[:, None], CELLS)[:, 0]
    return F.interpolate(maps[:, None], (CELLS, CELLS), mode="bilinear", align_corners=False)[:, 0]


def rank_cells(maps: Tensor) -> Tensor:
    """Return the rank of each cell, (B, cells, cells) int64: 0 is the highest value; ties are in row-major order."""
    flat = resize_to_cells(maps.float()).flatten(1)
    order = flat.argsort(dim=1, descending=True, stable=True)
    ranks = torch.empty_like(order).scatter(1, order, torch.arange(flat.shape[1], device=flat.device).expand_as(order))
    return ranks.unflatten(1, (CELLS, CELLS))


def blur(images: Tensor) -> Tensor:
    """Return strongly blurred images (B, C, H, W)."""
    height, width = images.shape[2:]
    means = F.adaptive_avg_pool2d(images, (math.ceil(height / BLUR_RADIUS / 2), math.ceil(width / BLUR_RADIUS / 2)))
    return F.interpolate(means, (height, width), mode="bilinear", align_corners=False)


@torch.no_grad()
def perturbation_curve(
    model: nn.Module, images: Tensor, maps: Tensor, classes: Tensor, insert: bool = False, steps: int = STEPS
) -> Tensor:
    """Return the probability of each image's class as its cells are deleted or inserted, (B, steps + 1).

    Args:
        model: A classifier.
        images: (B, C, H, W) images, normalised.
        maps: (B, h, w) attribution maps of any size.
        classes: (B,) classes whose probabilities are returned.
        insert: Whether cells are inserted into the blurred image; if False, cells are deleted from the image.
        steps: Number of equal steps from no cells to all cells.
    """
    ranks = rank_cells(maps.to(images.device))
    n_cells, base = ranks[0].numel(), blur(images) if insert else torch.zeros_like(images)
    probabilities = []
    with prepare_for_hooks(model) as module:
        for step in range(steps + 1):
            is_changed = (ranks < round(n_cells * step / steps))[:, None].float()
            mask = F.interpolate(is_changed, images.shape[2:], mode="nearest")
            mixed = mask * images + (1 - mask) * base if insert else (1 - mask) * images
            all_classes = compute_logits(module, mixed.to(next(module.parameters()).dtype)).float().softmax(1)
            probabilities.append(all_classes.gather(1, classes.to(all_classes.device)[:, None])[:, 0])
    return torch.stack(probabilities, 1)


def area_under_curve(curve: Tensor) -> Tensor:
    """Return the (B,) areas under curves, which are given by (B, n) values at n equally spaced points from 0 to 1."""
    return (curve[:, 1:] + curve[:, :-1]).mean(1) / 2


PASTED_SIDE = 0.5  # side of the pasted image as a fraction of the image's side, so that it covers a quarter of the area


@dataclass(frozen=True, eq=False)
class CompositeImages:
    """Images into which an image of another class was pasted."""

    images: Tensor  # (B, C, H, W) images after pasting
    classes: Tensor  # (B,) classes of the pasted images
    boxes: Tensor  # (B, 4) top, left, bottom and right of the pasted images in pixels


def paste_objects(
    images: Tensor, classes: Tensor, generator: torch.Generator, side: float = PASTED_SIDE
) -> CompositeImages:
    """Paste a downscaled image of another class into each image, at a random position.

    If all images of a batch belong to the same class, the result is empty.

    Args:
        images: (B, C, H, W) images.
        classes: (B,) labels of the images.
        generator: Random generator that draws the pasted images and their positions.
        side: Side of the pasted image as a fraction of the image's side.
    """
    height, width = images.shape[2:]
    rows, columns = max(1, round(side * height)), max(1, round(side * width))
    downscaled = F.interpolate(images, (rows, columns), mode="bilinear", align_corners=False, antialias=True)
    pasted, labels, boxes = [], [], []
    for index in range(len(images)):
        candidates = (classes != classes[index]).nonzero()[:, 0]
        if not len(candidates):
            continue
        other = int(candidates[_draw_index(len(candidates), generator)])
        top, left = _draw_index(height - rows + 1, generator), _draw_index(width - columns + 1, generator)
        image = images[index].clone()
        image[:, top : top + rows, left : left + columns] = downscaled[other]
        pasted.append(image)
        labels.append(int(classes[other]))
        boxes.append([top, left, top + rows, left + columns])
    if not pasted:
        return CompositeImages(images[:0], classes[:0], torch.zeros(0, 4, dtype=torch.long))
    return CompositeImages(torch.stack(pasted), torch.tensor(labels), torch.tensor(boxes))


def pointing_hits(maps: Tensor, boxes: Tensor, size: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Return whether each map's maximum is inside the box, and the fraction of the map's sum inside the box.

    Both results have the shape (B,). Only positive values count in the sum. If a cell is partly inside the box, the
    cell counts as inside if more than half of its area is inside, and the fraction of its area that is inside weights
    its value.

    Args:
        maps: (B, h, w) attribution maps.
        boxes: (B, 4) top, left, bottom and right of the boxes in pixels.
        size: (height, width) of the images in pixels.
    """
    top, left, bottom, right = boxes.cpu().float().unbind(1)
    row_fractions = _overlap_fractions(top, bottom, maps.shape[1], size[0])
    column_fractions = _overlap_fractions(left, right, maps.shape[2], size[1])
    fraction_inside = (row_fractions[:, :, None] * column_fractions[:, None]).to(maps.device)
    best = maps.flatten(1).argmax(1, keepdim=True)
    hit = fraction_inside.flatten(1).gather(1, best)[:, 0] > 0.5
    positive = maps.clamp(min=0).flatten(1)
    total = positive.sum(1)
    mass = (positive * fraction_inside.flatten(1)).sum(1) / total.clamp_min(1e-30)
    return hit.float(), torch.where(total > 0, mass, fraction_inside.mean((1, 2)))


def _overlap_fractions(starts: Tensor, ends: Tensor, cells: int, length: int) -> Tensor:
    """Divide [0, length] into equal intervals; return the (B, cells) fractions of each interval in [start, end]."""
    edges = torch.arange(cells + 1) * (length / cells)
    shared = torch.minimum(edges[1:], ends[:, None]) - torch.maximum(edges[:-1], starts[:, None])
    return shared.clamp(min=0) / (length / cells)


def _draw_index(count: int, generator: torch.Generator) -> int:
    return int(torch.randint(count, (1,), generator=generator))


Z_95 = 1.96  # half the width of a 95 % confidence interval, in standard errors


@dataclass(frozen=True)
class MethodScore:
    """The scores of an attribution method over a set of images; areas and fractions are from 0 to 1."""

    deletion: float  # mean area under the curve of the class probability while cells are deleted; lower is better
    insertion: float  # mean area under the curve of the class probability while cells are inserted; higher is better
    faithfulness: float  # insertion minus deletion; higher is better
    faithfulness_error: float  # half the width of the faithfulness's 95 % confidence interval over images
    pointing: float  # fraction of maps whose highest value is on the pasted object; 0.25 at chance level
    mass: float  # mean fraction of a map's positive values that is on the pasted object; 0.25 at chance level
    images: int
    pasted: int  # number of images with a pasted object


def score_methods(
    model: nn.Module,
    batches: Iterable[tuple[Tensor, Tensor]],
    methods: Sequence[str] | None = None,
    seed: int = 0,
    steps: int = STEPS,
    progress: Callable[[int], None] | None = None,
) -> dict[str, MethodScore]:
    """Score attribution methods: deletion and insertion for the predicted class, pointing for a pasted class.

    Args:
        model: A classifier.
        batches: Pairs of (B, C, H, W) normalised images and (B,) labels. A batch needs images of several classes, since
            the pasted images are drawn from the same batch.
        methods: Keys of `METHODS`; None for all methods that work with the model. Random maps are added as a baseline.
        seed: Seed of the random maps and of the pasting.
        steps: Number of steps of deletion and of insertion.
        progress: Function called with the number of images processed so far.

    Raises:
        UserError: a method does not work with the model, or needs a package that is not installed.
    """
    names = [*(methods_of(model) if methods is None else methods), RANDOM]
    # For each method and batch, (4, B): deletion, insertion, pointing and mass.
    scores: dict[str, list[Tensor]] = {name: [] for name in names}
    n_done = 0
    for images, labels in batches:
        batch_seed, size = seed + n_done, (images.shape[2], images.shape[3])
        with prepare_for_hooks(model) as module, torch.no_grad():
            predicted = compute_logits(module, images).argmax(1)
        pasted = paste_objects(images, labels, torch.Generator().manual_seed(batch_seed))
        for name in names:
            maps = _class_maps(model, name, images, predicted, batch_seed)
            deletion = area_under_curve(perturbation_curve(model, images, maps, predicted, steps=steps))
            insertion = area_under_curve(perturbation_curve(model, images, maps, predicted, insert=True, steps=steps))
            pointing = torch.full((2, len(images)), torch.nan)  # pointing and mass; NaN beyond the pasted objects
            if len(pasted.images):
                pasted_maps = _class_maps(model, name, pasted.images, pasted.classes, batch_seed + 1)
                pointing[:, : len(pasted_maps)] = torch.stack(pointing_hits(pasted_maps, pasted.boxes, size)).cpu()
            scores[name].append(torch.cat((torch.stack((deletion, insertion)).cpu(), pointing)))
        n_done += len(images)
        if progress is not None:
            progress(n_done)
    return {name: _mean_scores(torch.cat(batch_scores, 1)) for name, batch_scores in scores.items()}


def _class_maps(model: nn.Module, name: str, images: Tensor, classes: Tensor, seed: int) -> Tensor:
    if name == RANDOM:
        return random_maps(len(images), (CELLS, CELLS), seed).to(images.device)
    return attribute(model, images, classes, name)


def _mean_scores(scores: Tensor) -> MethodScore:
    deletion, insertion, hit, mass = scores.double()
    faithfulness = insertion - deletion
    n_images = len(faithfulness)
    error = Z_95 * float(faithfulness.std()) / n_images**0.5 if n_images > 1 else 0.0
    values = (deletion.mean(), insertion.mean(), faithfulness.mean(), error, hit.nanmean(), mass.nanmean())
    pasted = int(hit.isfinite().sum())
    return MethodScore(*(float(value) for value in values), images=n_images, pasted=pasted)


def as_table_rows(scores: dict[str, MethodScore]) -> list[dict[str, float | str]]:
    """Return the scores of each method as rows of a table, in descending order of faithfulness."""
    ordered = sorted(scores.items(), key=lambda item: -item[1].faithfulness)
    return [{"method": name, **{f.name: getattr(score, f.name) for f in fields(score)}} for name, score in ordered]
