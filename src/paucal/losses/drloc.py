"""Dense relative localization: predict the offset between two cells of the final feature map from their embeddings.

A cell is one position of the feature map. Source: Liu et al., "Efficient Training of Visual Transformers with Small
Datasets", NeurIPS 2021, section 4 and the variants in Table 6. `DrLocReading` has an option for each difference between
the paper and the authors' code.
"""

from dataclasses import dataclass
from functools import partial
from typing import Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from paucal.losses.drloc_targets import (
    ClassSet,
    Scale,
    Target,
    class_counts,
    pair_classes,
    pair_targets,
    permuted_pairs,
    require_two_cells,
    sample_pairs,
)
from paucal.losses.precision import at_least_float32

Mode = Literal["l1", "signed", "ce", "reg"]
Pool = Literal["none", "paper", "reference"]


class PairHead(Protocol):
    """Head that predicts the offset between two cells of a feature map from the embeddings of the cells.

    The head is called with a (B, D, H, W) feature map and m pairs of cells per image, (B, m, 2, 2).
    """

    def __call__(self, grid: Tensor, pairs: Tensor, /) -> tuple[Tensor, Tensor]:
        """Return a (B, m, C) prediction of the row offsets and a (B, m, C) prediction of the column offsets.

        C is 1 for regression, and the number of offset classes for classification.
        """
        ...


@dataclass(frozen=True)
class DrLocReading:
    """The variant of the loss, with an option for each point on which the paper and the authors' code differ.

    The defaults are the paper's L_drloc.

    Attributes:
        mode: "l1" regresses absolute offsets (L_drloc), "signed" regresses signed offsets (L*_drloc), "ce" classifies
            the offset (L_ce), "reg" regresses the class of the offset with a predicted variance (L_reg).
        scale: Divisor of the targets in the modes "l1" and "signed", see `pair_targets`. The authors' code does not
            divide the targets ("none"). On a k x k grid, the losses of this code are k times the paper's losses.
        shifted: Whether side - 1 is added to the targets in the mode "signed", as in the authors' code.
        coordinates: "mean" averages the L1 distances along rows and along columns, as in the paper's pseudocode and
            the authors' code; "sum" adds the two distances, as in Eq. 2, which gives twice the loss.
        classes: Set of offset classes in the modes "ce" and "reg", see `class_counts`.
        log_of: Argument of the logarithm in the variance term of the mode "reg": "sigma" (paper) or "variance"
            (authors' code).
        alpha: Weight of the variance term in the mode "reg".
    """

    mode: Mode = "l1"
    scale: Scale = "side"
    shifted: bool = False
    coordinates: Literal["mean", "sum"] = "mean"
    classes: ClassSet = "signed"
    log_of: Literal["sigma", "variance"] = "sigma"
    alpha: float = 0.001

    @property
    def target(self) -> Target:
        """The `target` argument of `pair_targets` for the modes "l1" and "signed"."""
        if self.mode != "signed":
            return "absolute"
        return "shifted" if self.shifted else "signed"

    @property
    def log_variance_factor(self) -> float:
        """The coefficient of log(sigma^2) in the loss of the mode "reg".

        In the paper, the variance term is alpha * log(sigma). The coefficient is then alpha / 2, because log(sigma) is
        log(sigma^2) / 2.
        """
        return self.alpha if self.log_of == "variance" else self.alpha / 2


PAPER = DrLocReading()


def drloc_loss(
    grid: Tensor,
    head: PairHead,
    reading: DrLocReading = PAPER,
    *,
    n_pairs: int | None = 64,
    generator: torch.Generator | None = None,
    pairs: Tensor | None = None,
) -> Tensor:
    """Return the dense relative localization loss of one feature map (Eq. 1 and 2), averaged over images and pairs.

    Eq. 2 sums over the batch, but the paper's pseudocode and the authors' code average over the batch, and the
    published loss weights only make sense with the average. Feature maps need not be square (the authors' code assumes
    square ones, see `drloc_targets`). The loss is computed in float32 or better, also under autocast, without
    synchronising with the GPU.

    Args:
        grid: (B, D, H, W) feature map with at least 2 cells.
        head: Function that predicts offsets from the feature map and pairs of cells.
        reading: Variant of the loss.
        n_pairs: Number of pairs per image; None for one pair per cell, whose second cells are a random permutation of
            the cells (`permuted_pairs`).
        generator: Random generator for the pairs, on the device of the feature map; not used if `pairs` are given.
        pairs: (B, m, 2, 2) integer (row, column) of both cells of each pair, used instead of random pairs.

    Returns:
        A scalar tensor.

    Raises:
        ValueError: The feature map has a single cell, neither `generator` nor `pairs` is given, or the head has fewer
            outputs than there are offset classes.

    Example:
        >>> def predict_zero(grid, pairs):
        ...     zeros = torch.zeros(*pairs.shape[:2], 1)
        ...     return zeros, zeros
        >>> generator = torch.Generator().manual_seed(0)
        >>> loss = drloc_loss(torch.rand(8, 4, 7, 7), predict_zero, n_pairs=4096, generator=generator)
        >>> round(loss.item(), 2)
        0.33
    """
    batch, _, height, width = grid.shape
    if pairs is None:
        if generator is None:
            raise ValueError("drloc_loss needs a random generator to draw pairs, or pairs: pass generator= or pairs=")
        pairs = draw_pairs(batch, n_pairs, height, width, generator=generator)
    else:
        require_two_cells(height, width)
    # There is no matrix product from here on, so autocast leaves float32 values unchanged.
    rows, columns = (at_least_float32(output) for output in head(grid, pairs))
    if reading.mode in ("l1", "signed"):
        target = pair_targets(pairs, height, width, target=reading.target, scale=reading.scale)
        return offset_l1(torch.cat((rows, columns), dim=-1), target, coordinates=reading.coordinates)
    if reading.mode not in ("ce", "reg"):
        raise ValueError(f"mode must be 'l1', 'signed', 'ce' or 'reg', got {reading.mode!r}")
    needed_classes, n_outputs = class_counts(height, width, reading.classes), (rows.shape[-1], columns.shape[-1])
    if n_outputs[0] < needed_classes[0] or n_outputs[1] < needed_classes[1]:
        raise ValueError(
            f"a grid of {height} x {width} cells needs {needed_classes} classes (rows, columns), but the head has "
            f"{n_outputs} outputs"
        )
    row_classes, column_classes = pair_classes(pairs, height, width, classes=reading.classes).unbind(-1)
    axis_loss = offset_cross_entropy
    if reading.mode == "reg":
        axis_loss = partial(offset_variance_regression, log_variance_factor=reading.log_variance_factor)
    return axis_loss(rows, row_classes) + axis_loss(columns, column_classes)


def draw_pairs(batch_size: int, n_pairs: int | None, height: int, width: int, *, generator: torch.Generator) -> Tensor:
    """Draw `n_pairs` random pairs of cells per image, or the pairs of `permuted_pairs` if `n_pairs` is None.

    Returns:
        (B, m, 2, 2) int64, see `sample_pairs` and `permuted_pairs`.
    """
    if n_pairs is None:
        return permuted_pairs(batch_size, height, width, generator=generator)
    return sample_pairs(batch_size, n_pairs, height, width, generator=generator)


def offset_l1(prediction: Tensor, target: Tensor, *, coordinates: Literal["mean", "sum"] = "mean") -> Tensor:
    """Return the L1 distance between predicted and true offsets, averaged over images and pairs.

    Args:
        prediction: (B, m, 2) predicted row and column offsets.
        target: (B, m, 2) true row and column offsets.
        coordinates: "mean" also averages over the row and the column offset; "sum" adds the two distances (Eq. 2).
    """
    if coordinates not in ("mean", "sum"):
        raise ValueError(f"coordinates must be 'mean' or 'sum', got {coordinates!r}")
    if prediction.shape != target.shape:
        raise ValueError(f"prediction has shape {tuple(prediction.shape)}, but target has {tuple(target.shape)}")
    factor = prediction.shape[-1] if coordinates == "sum" else 1
    return F.l1_loss(at_least_float32(prediction), at_least_float32(target)) * factor


def offset_cross_entropy(logits: Tensor, classes: Tensor) -> Tensor:
    """Return the cross-entropy along one axis, averaged over images and pairs; L_ce is the sum over rows and columns.

    Args:
        logits: (B, m, C) logits of the offset classes.
        classes: (B, m) int64 true classes, see `pair_classes`.
    """
    return F.cross_entropy(at_least_float32(logits).flatten(0, 1), classes.flatten())


def offset_variance_regression(
    logits: Tensor, classes: Tensor, *, log_variance_factor: float, eps: float = 1e-8
) -> Tensor:
    """Return the variance-aware regression loss along one axis, averaged over images and pairs.

    L_reg is the sum of this loss over rows and columns. With the mean mu and the variance sigma^2 of the predicted
    distribution over class numbers, the loss is (c - mu)^2 / sigma^2 + factor * log(sigma^2). The paper writes
    alpha * log(sigma), so the paper's factor is alpha / 2; the factor in the authors' code is alpha. `eps` is added to
    both occurrences of sigma^2, as in the authors' code.

    Args:
        logits: (B, m, C) logits of the offset classes.
        classes: (B, m) int64 true classes c, see `pair_classes`.
        log_variance_factor: Coefficient of log(sigma^2) in the loss.
        eps: Number that is added to the variance, so that the loss is finite if a class has probability 1.
    """
    logits = at_least_float32(logits)  # half precision would turn `eps` into 0 and round class numbers above 256
    class_numbers = torch.arange(logits.shape[-1], dtype=logits.dtype, device=logits.device)
    probability = logits.softmax(dim=-1)
    mean = (probability * class_numbers).sum(-1)
    variance = (probability * (class_numbers - mean[..., None]).square()).sum(-1) + eps
    return ((classes - mean).square() / variance + log_variance_factor * variance.log()).mean()


def pool_grid(grid: Tensor, pool: Pool | int) -> Tensor:
    """Average-pool a feature map to a smaller size, before pairs of cells are drawn.

    Args:
        grid: (B, D, H, W) feature map.
        pool: "none" returns the map unchanged. "paper" averages 2 x 2 cells of a 14 x 14 map, which gives 7 x 7, and
            returns maps of other sizes unchanged. "reference" does the same with the overlapping windows of the
            authors' code (3 x 3 cells, stride 2; padding is left out of the averages). An integer is the number of
            cells along the shorter side of the result of (adaptive) average pooling. The aspect ratio is kept. A map
            whose shorter side does not have more cells is returned unchanged.

    Returns:
        (B, D, H', W') pooled feature map.

    Example:
        >>> [tuple(pool_grid(torch.rand(1, 1, 14, 28), p).shape[2:]) for p in ("paper", 7, 5)]
        [(14, 28), (7, 14), (5, 10)]
    """
    height, width = grid.shape[-2:]
    if pool == "none":
        return grid
    if isinstance(pool, int):
        if pool < 1:
            raise ValueError(f"the pooled side must be at least 1 cell, got {pool}")
        shorter = min(height, width)
        if shorter <= pool:
            return grid
        rows, columns = round(height * pool / shorter), round(width * pool / shorter)
        if height % rows == 0 and width % columns == 0:
            # If all windows have the same size, both functions give the same result, but only avg_pool2d is
            # deterministic on GPUs.
            return F.avg_pool2d(grid, (height // rows, width // columns))
        return F.adaptive_avg_pool2d(grid, (rows, columns))
    if pool not in ("paper", "reference"):
        raise ValueError(f"pool must be 'none', 'paper', 'reference' or a number of cells, got {pool!r}")
    if (height, width) != (14, 14):
        return grid
    if pool == "paper":
        return F.avg_pool2d(grid, 2)
    return F.avg_pool2d(grid, 3, stride=2, padding=1, count_include_pad=False)


def drloc_chance_level(height: int, width: int, reading: DrLocReading = PAPER) -> float:
    """Return the smallest expected loss over random pairs that a constant prediction can reach.

    If the loss of a run stays at this level, the features contain no information about positions. The best constant
    prediction is the median of the targets in the modes "l1" and "signed", and the distribution of the targets in the
    mode "ce". In the mode "reg", the best prediction gives only the first and the last class a probability above 0,
    because this maximises the variance by which the error is divided.

    Example:
        >>> round(drloc_chance_level(7, 7), 4), round(drloc_chance_level(7, 7, DrLocReading(mode="ce")), 4)
        (0.1924, 4.8583)
    """
    total = _lowest_axis_loss(height, reading) + _lowest_axis_loss(width, reading)
    is_mean = reading.mode in ("l1", "signed") and reading.coordinates == "mean"
    return (total / 2 if is_mean else total).item()


def _lowest_axis_loss(side: int, reading: DrLocReading) -> Tensor:
    # All pairs of cells (1, side^2, 2, 2) of one column, since the two axes of a pair are drawn independently.
    rows = torch.arange(side)
    cells = torch.cartesian_prod(rows, rows)
    pairs = torch.stack((cells, torch.zeros_like(cells)), dim=-1)[None]
    if reading.mode not in ("ce", "reg"):
        offsets = pair_targets(pairs, side, 1, target=reading.target, scale=reading.scale)[0, :, 0].double()
        return (offsets - offsets.median()).abs().mean()
    classes = pair_classes(pairs, side, 1, classes=reading.classes)[0, :, 0]
    if reading.mode == "ce":
        counts = classes.bincount().double()
        return torch.distributions.Categorical(counts / counts.sum()).entropy()
    last = class_counts(side, side, reading.classes)[0] - 1
    mean = torch.linspace(0, last, 10_001, dtype=torch.float64)
    error = (classes.double()[:, None] - mean).square().mean(0)
    # A distribution on {0, ..., last} has a variance of at most mean * (last - mean). The loss decreases as the
    # variance grows up to error / factor, a bound that matters only if the factor is far above its usual 0.001.
    factor = reading.log_variance_factor
    # 1e-8 is the default `eps` of `offset_variance_regression`.
    variance = torch.minimum(mean * (last - mean), error / max(factor, 1e-12)) + 1e-8
    return (error / variance + factor * variance.log()).min()
