"""The loss of token labeling (Jiang et al. 2021, "All Tokens Matter", section 3) and of ReLabel.

total = class_weight * H(class target, class logits) + dense_weight * mean over tokens of H(token target, token logits)

The class target is the label map averaged over the view, not the true class. The paper's weight of the dense part is
0.5; the published code trains with 1.0 and uses 0.5 for inference only.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from paucal.losses.label_targets import SparseTargets
from paucal.losses.precision import precise

Targets = SparseTargets | Tensor  # a tensor holds dense (B, T, K) probabilities
Box = tuple[int, int, int, int]  # first row, first column, end row, end column, in cells

RIGHT, WRONG = 0.5, 0.9  # shares of the teacher's label if it names the true class, and if it does not


def soft_cross_entropy(logits: Tensor, targets: Targets) -> Tensor:
    """Return -sum_k p_k log softmax(z)_k at every position, in float32.

    Args:
        logits: (B, T, K) of any float type; their sum over the classes may exceed the range of float16.
        targets: Targets at the same positions; sparse targets are never expanded to all classes.

    Returns:
        (B, T).
    """
    logits = precise(logits)
    normaliser = logits.logsumexp(-1)
    if isinstance(targets, Tensor):
        targets = precise(targets)
        return targets.sum(-1) * normaliser - (targets * logits).sum(-1)
    is_listed = (targets.classes >= 0)[:, None]
    index = targets.classes.clamp(min=0)[:, None].expand_as(targets.named)
    listed_logits = logits.gather(-1, index)
    n_others = targets.num_classes - is_listed.sum(-1)
    mass = targets.named.sum(-1) + n_others * targets.other
    listed = ((targets.named - targets.other[..., None]) * listed_logits * is_listed).sum(-1)
    return mass * normaliser - (listed + targets.other * logits.sum(-1))


def flip_targets(targets: Targets) -> Targets:
    """Return the batch's targets in reverse order: the targets of the images that MixToken mixes in."""
    if isinstance(targets, Tensor):
        return targets.flip(0)
    named, other = targets.named.flip(0), targets.other.flip(0)
    known = None if targets.known is None else targets.known.flip(0)
    return SparseTargets(targets.classes.flip(0), named, other, targets.num_classes, known)


def kept_share(box: Box | None, grid: tuple[int, int]) -> float:
    """Return the share of cells that keep their own image: one minus the area of the exchanged box."""
    if box is None:
        return 1.0
    top, left, bottom, right = box
    return 1 - (bottom - top) * (right - left) / (grid[0] * grid[1])


def draw_mix_box(grid: tuple[int, int], generator: torch.Generator | None = None) -> Box:
    """Draw MixToken's box: its share of the cells is uniform before rounding, its centre is uniform.

    As in the authors' code, sides are rounded down, odd sides lose a cell, and the box is cut off at the grid's edge,
    so that on 14x14 cells an image keeps 73 % of its cells on average rather than half of them.
    """
    share, row, column = torch.rand(3, generator=generator).tolist()
    edges = []
    for cells, place in zip(grid, (row, column), strict=True):
        half_side = int(cells * math.sqrt(1 - share)) // 2
        centre = int(place * cells)
        edges.append((max(centre - half_side, 0), min(centre + half_side, cells)))
    (top, bottom), (left, right) = edges
    return top, left, bottom, right


@dataclass(frozen=True)
class TokenLabelingReading:
    """The published variants of the loss.

    Attributes:
        class_weight: Weight of the class logits' part.
        dense_weight: Weight of the tokens' part.
        use_truth: Whether the true class is mixed into the class target: half if the teacher names it, a tenth if it
            does not. (A comment in the authors' code claims the opposite of its arithmetic, which is used here.)
    """

    class_weight: float = 1.0
    dense_weight: float = 0.5
    use_truth: bool = False

    @classmethod
    def from_preset(cls, preset: str) -> "TokenLabelingReading":
        """Return "paper" (dense weight 0.5) or "reference" (the published code's 1.0)."""
        return {"paper": cls(), "reference": cls(dense_weight=1.0)}[preset]


@dataclass(frozen=True)
class TokenLabelLoss:
    """The two parts of the loss and their weighted sum, scalars.

    Attributes:
        whole: Loss of the class logits.
        tokens: Loss of the tokens' logits; None without them.
        total: Sum of both by the weights of the variant.
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
    """Return the loss of token labeling (equations 2 and 3 of the paper) or, without tokens, of ReLabel.

    Args:
        logits: (B, K) of the images.
        targets: (B, 1, K) the teacher's labels of the images.
        token_logits: (B, T, K) of the tokens, un-mixed; None for ReLabel.
        token_targets: (B, T, K) the teacher's labels of the tokens.
        kept: Share of the cells that are the image's own, see `kept_share`; the others come from the flipped batch.
        truth: (B, 1, K) true classes to be mixed into the images' targets.
        reading: The weights of the parts; the paper's by default.

    Raises:
        ValueError: only one of the tokens' logits and targets is given.

    Example:
        >>> logits, targets = torch.zeros(2, 4), torch.full((2, 1, 4), 0.25)
        >>> found = token_label_loss(logits, targets, torch.zeros(2, 9, 4), torch.full((2, 9, 4), 0.25))
        >>> round(found.whole.item(), 4), round(found.total.item(), 4)  # ln 4, and half of it once more
        (1.3863, 2.0794)
    """
    if (token_logits is None) != (token_targets is None):
        raise ValueError("logits and targets of the tokens belong together: give both, or neither")
    weights = reading or TokenLabelingReading()
    image_loss = class_loss(logits, targets, kept, truth)
    if token_logits is None or token_targets is None:
        return TokenLabelLoss(image_loss, None, weights.class_weight * image_loss)
    tokens = dense_loss(token_logits, token_targets)
    return TokenLabelLoss(image_loss, tokens, weights.class_weight * image_loss + weights.dense_weight * tokens)


def class_loss(logits: Tensor, targets: Targets, kept: float = 1.0, truth: Targets | None = None) -> Tensor:
    """Return the class part: soft cross-entropy with the image's and its partner's targets.

    With the class target of a label map, this part alone is ReLabel (Yun et al. 2021).

    Args:
        logits: (B, K).
        targets: (B, 1, K) class targets; views without a target count as zero.
        kept: Share of the cells that are the image's own.
        truth: (B, 1, K) true classes to be mixed in.

    Returns:
        A scalar.
    """
    positions = logits[:, None]

    def against(own: Targets, true: Targets | None) -> Tensor:
        loss = soft_cross_entropy(positions, own).squeeze(1)
        if isinstance(own, SparseTargets) and own.known is not None:
            loss = loss * (own.known.squeeze(1) > 0)
        if true is None:
            return loss
        is_agreed = most_likely(own).squeeze(1) == most_likely(true).squeeze(1)
        share = torch.where(is_agreed, RIGHT, WRONG).to(loss.dtype)
        return share * loss + (1 - share) * soft_cross_entropy(positions, true).squeeze(1)

    loss = against(targets, truth)
    if kept < 1:
        loss = kept * loss + (1 - kept) * against(flip_targets(targets), None if truth is None else flip_targets(truth))
    return loss.mean()


def dense_loss(logits: Tensor, targets: Targets) -> Tensor:
    """Return the token loss, the mean over images and tokens; each token is compared with its own image's label.

    If maps cover only a part of an image, each token is weighted by its covered share.

    Args:
        logits: (B, T, K), un-mixed.
        targets: Targets of the same tokens.
    """
    losses = soft_cross_entropy(logits, targets)
    known = targets.known if isinstance(targets, SparseTargets) else None
    return losses.mean() if known is None else (losses * known).sum() / known.sum().clamp(min=1e-6)


def most_likely(targets: Targets) -> Tensor:
    """Return (B, T) the class of the largest probability."""
    if isinstance(targets, Tensor):
        return targets.argmax(-1)
    # Without a named class, all logits are equal; an unnamed class is never returned.
    named = targets.named.masked_fill((targets.classes < 0)[:, None], -1.0)
    return targets.classes.gather(1, named.argmax(-1))
