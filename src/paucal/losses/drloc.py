"""Dense relative localization: predict how far apart two cells of the final grid are, from their embeddings.

Source: Liu et al., "Efficient Training of Visual Transformers with Small Datasets", NeurIPS 2021, section 4
and the variants of Table 6. Where the paper and the authors' code disagree, `DrLocReading` has an option.
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
    sample_pairs,
)
from paucal.losses.precision import precise

Mode = Literal["l1", "signed", "ce", "reg"]
Pool = Literal["none", "paper", "reference"]


class PairHead(Protocol):
    """Reads a (B, D, H, W) grid at (B, m, 2, 2) pairs of cells.

    Returns the outputs for the row and for the column offset, each (B, m, C): C = 1 for regression, the
    number of classes otherwise.
    """

    def __call__(self, grid: Tensor, pairs: Tensor, /) -> tuple[Tensor, Tensor]:
        """Return the outputs for the row and for the column offset."""
        ...


@dataclass(frozen=True)
class DrLocReading:
    """One of the published forms of the loss. The defaults are the paper's L_drloc.

    Attributes:
        mode: "l1" regresses absolute offsets (L_drloc), "signed" signed ones (L*_drloc), "ce" classifies the
            offset (L_ce), "reg" regresses the class under a predicted variance (L_reg).
        scale: Divisor of the targets of "l1" and "signed", see `pair_targets`. The authors' code trains on
            raw cells ("none"), so that its losses are k times those of the paper on a k x k grid.
        shifted: Move the targets of "signed" by side - 1, as the authors' code does.
        coordinates: "mean" averages the L1 norm over both coordinates, as the paper's pseudocode and the
            authors' code do; "sum" is Eq. 2, twice as large.
        classes: The classes of "ce" and "reg", see `class_counts`.
        log_of: Argument of the logarithm in the variance term of "reg", "sigma" (paper) or "variance"
            (authors' code).
        alpha: Factor of the variance term.
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
        """The `target` argument of `pair_targets` for the L1 modes."""
        if self.mode != "signed":
            return "absolute"
        return "shifted" if self.shifted else "signed"

    @property
    def log_variance_factor(self) -> float:
        """The factor of log(sigma^2) in "reg"; log(sigma) is half of it."""
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
    """Return the dense relative localization loss of one grid (Eq. 1 and 2), a mean over images and pairs.

    Eq. 2 sums over the batch; the paper's pseudocode and the authors' code average, and only this form fits the
    published weights. Grids need not be square (see `drloc_targets` for such grids in the authors'
    code). The loss is computed in float32 or better, also under autocast, and nothing waits for the device.

    Args:
        grid: (B, D, H, W) embeddings, at least 2 cells.
        head: Predicts from a grid and pairs of its cells.
        reading: Published form of the loss.
        n_pairs: Pairs per image; None pairs all cells with a permutation of themselves (`permuted_pairs`).
        generator: Draws the pairs, on the device of the grid; not needed where `pairs` is given.
        pairs: (B, m, 2, 2) integer cells to use instead of random pairs.

    Returns:
        A scalar.

    Raises:
        ValueError: the grid has a single cell, neither `generator` nor `pairs` is given, or the head has
            fewer classes than the grid has offsets.

    Example:
        >>> def knows_nothing(grid, pairs):
        ...     zeros = torch.zeros(*pairs.shape[:2], 1)
        ...     return zeros, zeros
        >>> generator = torch.Generator().manual_seed(0)
        >>> loss = drloc_loss(torch.rand(8, 4, 7, 7), knows_nothing, n_pairs=4096, generator=generator)
        >>> round(loss.item(), 2)
        0.33
    """
    batch, _, height, width = grid.shape
    if pairs is None:
        if generator is None:
            raise ValueError("drloc_loss needs a generator to draw pairs from, or the pairs themselves")
        pairs = draw_pairs(batch, n_pairs, height, width, generator=generator)
    elif height * width < 2:
        raise ValueError(f"a pair needs a grid of at least 2 cells, got {height} x {width}")
    # No matrix product follows, so autocast leaves float32 values unchanged.
    rows, columns = (precise(output) for output in head(grid, pairs))
    return _compute_loss((rows, columns), pairs, (height, width), reading)


def draw_pairs(batch_size: int, n_pairs: int | None, height: int, width: int, *, generator: torch.Generator) -> Tensor:
    """Draw `n_pairs` random pairs per image or, for None, pair all cells with a permutation of themselves."""
    if n_pairs is None:
        return permuted_pairs(batch_size, height, width, generator=generator)
    return sample_pairs(batch_size, n_pairs, height, width, generator=generator)


def offset_l1(prediction: Tensor, target: Tensor, *, coordinates: Literal["mean", "sum"] = "mean") -> Tensor:
    """Return the L1 distance of predicted and true offsets, a mean over images and pairs.

    Args:
        prediction: (B, m, 2).
        target: (B, m, 2).
        coordinates: "mean" averages over the last axis too, "sum" sums over it (Eq. 2).
    """
    if coordinates not in ("mean", "sum"):
        raise ValueError(f"coordinates must be 'mean' or 'sum', got {coordinates!r}")
    if prediction.shape != target.shape:
        raise ValueError(f"predicted {tuple(prediction.shape)} for offsets {tuple(target.shape)}")
    return F.l1_loss(precise(prediction), precise(target)) * (prediction.shape[-1] if coordinates == "sum" else 1)


def offset_cross_entropy(logits: Tensor, classes: Tensor) -> Tensor:
    """Return the cross-entropy of one axis, a mean over images and pairs (L_ce sums both axes).

    Args:
        logits: (B, m, C).
        classes: (B, m) int64.
    """
    return F.cross_entropy(precise(logits).flatten(0, 1), classes.flatten())


def offset_variance_regression(
    logits: Tensor, classes: Tensor, *, log_variance_factor: float, eps: float = 1e-8
) -> Tensor:
    """Return the variance-aware regression loss of one axis, a mean over images and pairs.

    L_reg sums both axes. With mean mu and variance sigma^2 of the predicted distribution over class numbers,
    the loss is (c - mu)^2 / sigma^2 + factor * log(sigma^2). The paper writes alpha * log(sigma), that is
    factor = alpha / 2; the authors' code has factor = alpha. `eps` is added to sigma^2 in both places, as in the
    authors' code.

    Args:
        logits: (B, m, C).
        classes: (B, m) int64.
        log_variance_factor: Weight of the log-variance.
        eps: Smallest variance, which keeps the loss of a certain prediction finite.
    """
    logits = precise(logits)  # in half precision `eps` would be 0, and class numbers above 256 rounded
    values = torch.arange(logits.shape[-1], dtype=logits.dtype, device=logits.device)
    probability = logits.softmax(dim=-1)
    mean = (probability * values).sum(-1)
    variance = (probability * (values - mean[..., None]).square()).sum(-1) + eps
    return ((classes - mean).square() / variance + log_variance_factor * variance.log()).mean()


def pool_grid(grid: Tensor, pool: Pool | int) -> Tensor:
    """Shrink a grid before pairs are drawn from it.

    Args:
        grid: (B, D, H, W).
        pool: "none" keeps the grid. "paper" averages 14 x 14 grids over 2 x 2 cells to 7 x 7 and keeps all
            others; "reference" does so with the overlapping 3 x 3 windows of stride 2 of the authors'
            code, whose padding does not count. A number is the new length of the shorter side, by (adaptive)
            averaging that keeps the aspect ratio; grids that are no larger are kept.

    Returns:
        (B, D, H', W').

    Example:
        >>> [tuple(pool_grid(torch.rand(1, 1, 14, 28), p).shape[2:]) for p in ("paper", 7, 5)]
        [(14, 28), (7, 14), (5, 10)]
    """
    height, width = grid.shape[-2:]
    if pool == "none":
        return grid
    if isinstance(pool, int):
        return _pool_to_side(grid, pool)
    if pool not in ("paper", "reference"):
        raise ValueError(f"pool must be 'none', 'paper', 'reference' or a number of cells, got {pool!r}")
    if (height, width) != (14, 14):
        return grid
    if pool == "paper":
        return F.avg_pool2d(grid, 2)
    return F.avg_pool2d(grid, 3, stride=2, padding=1, count_include_pad=False)


def _compute_loss(
    outputs: tuple[Tensor, Tensor], pairs: Tensor, size: tuple[int, int], options: DrLocReading
) -> Tensor:
    if options.mode in ("l1", "signed"):
        target = pair_targets(pairs, *size, target=options.target, scale=options.scale)
        return offset_l1(torch.cat(outputs, dim=-1), target, coordinates=options.coordinates)
    if options.mode not in ("ce", "reg"):
        raise ValueError(f"mode must be 'l1', 'signed', 'ce' or 'reg', got {options.mode!r}")
    needed_classes = class_counts(*size, options.classes)
    if any(output.shape[-1] < count for output, count in zip(outputs, needed_classes, strict=True)):
        raise ValueError(
            f"a grid of {size[0]} x {size[1]} needs {needed_classes} classes, the head has "
            f"{tuple(output.shape[-1] for output in outputs)}"
        )
    classes = pair_classes(pairs, *size, classes=options.classes).unbind(-1)
    axis_loss = offset_cross_entropy
    if options.mode == "reg":
        axis_loss = partial(offset_variance_regression, log_variance_factor=options.log_variance_factor)
    return axis_loss(outputs[0], classes[0]) + axis_loss(outputs[1], classes[1])


def _pool_to_side(grid: Tensor, side: int) -> Tensor:
    if side < 1:
        raise ValueError(f"the pooled side must be at least 1 cell, got {side}")
    height, width = grid.shape[-2:]
    shorter = min(height, width)
    if shorter <= side:
        return grid
    rows, columns = round(height * side / shorter), round(width * side / shorter)
    if height % rows == 0 and width % columns == 0:
        # Equal windows: the same values, and a backward pass that is deterministic on GPUs.
        return F.avg_pool2d(grid, (height // rows, width // columns))
    return F.adaptive_avg_pool2d(grid, (rows, columns))
