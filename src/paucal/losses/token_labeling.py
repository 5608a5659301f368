"""The losses of token labeling (Jiang et al. 2021, "All Tokens Matter", section 3) and of ReLabel.

total = class_weight * H(class target, class logits) + dense_weight * mean over tokens of H(token target, token logits)

The class target is the label map averaged over the view, not the true class. In the paper, the weight of the token loss
is 0.5. The published code trains with the weight 1.0 and uses 0.5 only in inference.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from paucal.losses.label_targets import SparseTargets
from paucal.losses.precision import at_least_float32

Targets = SparseTargets | Tensor  # a tensor contains dense (B, T, K) probabilities
Box = tuple[int, int, int, int]  # (top, left, bottom, right) in grid cells; bottom and right are excluded

# Weight of the teacher's label in the class target if the true class is mixed in (`use_truth`), when the teacher's
# predicted class is correct and when it is wrong. The weight of the true class is 1 minus this number.
TEACHER_WEIGHT_IF_CORRECT, TEACHER_WEIGHT_IF_WRONG = 0.5, 0.9


def soft_cross_entropy(logits: Tensor, targets: Targets) -> Tensor:
    """Return the cross-entropy -sum_k p_k log softmax(z)_k of every token, (B, T) in float32, for (B, T, K) logits z.

    Sparse targets are not expanded to all classes.
    """
    logits = at_least_float32(logits)
    normaliser = logits.logsumexp(-1)
    if isinstance(targets, Tensor):
        targets = at_least_float32(targets)
        return targets.sum(-1) * normaliser - (targets * logits).sum(-1)
    is_named = (targets.classes >= 0)[:, None]
    index = targets.classes.clamp(min=0)[:, None].expand_as(targets.named)
    named_logits = logits.gather(-1, index)
    n_others = targets.num_classes - is_named.sum(-1)
    probability_sum = targets.named.sum(-1) + n_others * targets.unnamed_probability
    excess = ((targets.named - targets.unnamed_probability[..., None]) * named_logits * is_named).sum(-1)
    return probability_sum * normaliser - (excess + targets.unnamed_probability * logits.sum(-1))


def reverse_targets(targets: Targets) -> Targets:
    """Return the targets of the images in reverse order, since MixToken mixes image i with image B - 1 - i."""
    if isinstance(targets, Tensor):
        return targets.flip(0)
    named, other = targets.named.flip(0), targets.unnamed_probability.flip(0)
    coverage = None if targets.coverage is None else targets.coverage.flip(0)
    return SparseTargets(targets.classes.flip(0), named, other, targets.num_classes, coverage)


def kept_fraction(box: Box | None, grid: tuple[int, int]) -> float:
    """Return the fraction of an image's tokens that MixToken does not replace (outside `box`); 1 if `box` is None."""
    if box is None:
        return 1.0
    top, left, bottom, right = box
    return 1 - (bottom - top) * (right - left) / (grid[0] * grid[1])


def draw_mix_box(grid: tuple[int, int], generator: torch.Generator | None = None) -> Box:
    """Draw MixToken's box of grid cells whose tokens are replaced by tokens of another image.

    The fraction of cells in the box is uniformly distributed in [0, 1] before rounding, and so is the position of the
    box's centre in the grid. As in the authors' code, sides are rounded down to an even number of cells and the box is
    clipped at the edge of the grid. So with 14 x 14 cells, an image keeps 73 % of its tokens on average, not half.
    """
    kept, row, column = torch.rand(3, generator=generator).tolist()
    edges = []
    for cells, position in zip(grid, (row, column), strict=True):
        half_side = int(cells * math.sqrt(1 - kept)) // 2
        centre = int(position * cells)
        edges.append((max(centre - half_side, 0), min(centre + half_side, cells)))
    (top, bottom), (left, right) = edges
    return top, left, bottom, right


@dataclass(frozen=True)
class TokenLabelingReading:
    """The variant of the loss, where the paper and the published code differ. The defaults are the paper's values.

    With `use_truth`, the true class is mixed into the class target. The weight of the true class is 0.5 if the teacher
    predicts the true class, and 0.1 if not. (The authors' code computes this, although a comment there says the
    opposite.)
    """

    class_weight: float = 1.0
    dense_weight: float = 0.5
    use_truth: bool = False

    @classmethod
    def from_preset(cls, preset: str) -> "TokenLabelingReading":
        """Return the variant "paper" (`dense_weight` 0.5) or "reference" (1.0, as in the published code)."""
        return {"paper": cls(), "reference": cls(dense_weight=1.0)}[preset]


@dataclass(frozen=True)
class TokenLabelLoss:
    """The loss of the class logits, the loss of the token logits and their weighted sum, scalars.

    Attributes:
        whole: Loss of the class logits, unweighted.
        tokens: Loss of the token logits, unweighted; None if there are no token logits.
        total: Sum of the two losses, weighted by `class_weight` and `dense_weight` of the variant.
    """

    whole: Tensor
    tokens: Tensor | None
    total: Tensor


def token_label_loss(
    logits: Tensor,
    targets: Targets,
    token_logits: Tensor | None = None,
    token_targets: Targets | None = None,
    *,
    kept: float = 1.0,
    truth: Targets | None = None,
    reading: TokenLabelingReading | None = None,
) -> TokenLabelLoss:
    """Return the loss of token labeling (equations 2 and 3 of the paper), or of ReLabel if there are no token logits.

    Args:
        logits: (B, K) class logits of the images.
        targets: (B, 1, K) class probabilities that the teacher gives each image.
        token_logits: (B, T, K) token logits, put back in their original images if MixToken was used; None for ReLabel.
        token_targets: (B, T, K) class probabilities that the teacher gives each token.
        kept: Fraction of an image's tokens that MixToken did not replace, see `kept_fraction`. The replaced tokens of
            image i are from image B - 1 - i.
        truth: (B, 1, K) true class of each image as probabilities, mixed into `targets`; None to use only the teacher's
            probabilities.
        reading: Variant of the loss; None for the paper's variant.

    Raises:
        ValueError: Only one of `token_logits` and `token_targets` is given.

    Example:
        >>> logits, targets = torch.zeros(2, 4), torch.full((2, 1, 4), 0.25)
        >>> loss = token_label_loss(logits, targets, torch.zeros(2, 9, 4), torch.full((2, 9, 4), 0.25))
        >>> round(loss.whole.item(), 4), round(loss.total.item(), 4)  # ln 4; ln 4 + 0.5 * ln 4
        (1.3863, 2.0794)
    """
    if (token_logits is None) != (token_targets is None):
        raise ValueError("token_logits and token_targets must be given together: pass both, or neither")
    weights = reading or TokenLabelingReading()
    image_loss = class_loss(logits, targets, kept, truth)
    if token_logits is None or token_targets is None:
        return TokenLabelLoss(image_loss, None, weights.class_weight * image_loss)
    tokens = dense_loss(token_logits, token_targets)
    return TokenLabelLoss(image_loss, tokens, weights.class_weight * image_loss + weights.dense_weight * tokens)


def class_loss(logits: Tensor, targets: Targets, kept: float = 1.0, truth: Targets | None = None) -> Tensor:
    """Return the soft cross-entropy of the class logits, with the targets of both images that MixToken has mixed.

    With class targets from a label map, this is the loss of ReLabel (Yun et al. 2021). The loss of a view that the
    label map does not cover is 0. See `token_label_loss` for the arguments.
    """
    token_axis_logits = logits[:, None]

    def image_losses(labels: Targets, true_labels: Targets | None) -> Tensor:
        losses = soft_cross_entropy(token_axis_logits, labels).squeeze(1)
        if isinstance(labels, SparseTargets) and labels.coverage is not None:
            losses = losses * (labels.coverage.squeeze(1) > 0)
        if true_labels is None:
            return losses
        is_correct = most_likely_classes(labels).squeeze(1) == most_likely_classes(true_labels).squeeze(1)
        weight = torch.where(is_correct, TEACHER_WEIGHT_IF_CORRECT, TEACHER_WEIGHT_IF_WRONG).to(losses.dtype)
        return weight * losses + (1 - weight) * soft_cross_entropy(token_axis_logits, true_labels).squeeze(1)

    losses = image_losses(targets, truth)
    if kept < 1:
        mixed_losses = image_losses(reverse_targets(targets), None if truth is None else reverse_targets(truth))
        losses = kept * losses + (1 - kept) * mixed_losses
    return losses.mean()


def dense_loss(logits: Tensor, targets: Targets) -> Tensor:
    """Return the loss of the token logits, averaged over images and tokens.

    If label maps cover only part of an image, each token is weighted by the covered fraction of its area.
    """
    losses = soft_cross_entropy(logits, targets)
    coverage = targets.coverage if isinstance(targets, SparseTargets) else None
    return losses.mean() if coverage is None else (losses * coverage).sum() / coverage.sum().clamp(min=1e-6)


def most_likely_classes(targets: Targets) -> Tensor:
    """Return the most likely class of each token, (B, T); if targets are sparse, the most likely named class."""
    if isinstance(targets, Tensor):
        return targets.argmax(-1)
    named = targets.named.masked_fill((targets.classes < 0)[:, None], -1.0)
    return targets.classes.gather(1, named.argmax(-1))
