"""The attention of single heads: its entropy, and the few cells with most of it.

EsViT's view of a network (Li et al. 2022, section 4 and appendix): the heads of the last layer by falling entropy, each
with the mask of the largest weights, which have 60 % of its attention, for a query of the grid. The authors' code marks
the query with row and column exchanged, and its entropy is NaN if a weight underflows; this module does neither.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from paucal.explain.attention.maps import AttentionMap
from paucal.explain.attention.reading import read_attention

MASS = 0.6  # share of a head's attention within its mask, in EsViT's figures


def entropy(weights: Tensor) -> Tensor:
    """Return the entropy in bits of (..., K) weights, which are first divided by their sum.

    Example:
        >>> entropy(torch.tensor([[0.25, 0.25, 0.25, 0.25], [1.0, 0.0, 0.0, 0.0]]))
        tensor([2., 0.])
    """
    share = weights.float() / weights.float().sum(-1, keepdim=True)
    return -torch.xlogy(share, share).sum(-1) / torch.log(torch.tensor(2.0)) + 0.0


def mass_mask(weights: Tensor, mass: float = MASS) -> Tensor:
    """Return a mask of the largest of (..., K) weights, with a share `mass` of their sum, bool (..., K).

    As in EsViT's code, the other weights have at most 1 - mass.

    Example:
        >>> mass_mask(torch.tensor([0.1, 0.5, 0.05, 0.35]))
        tensor([False,  True, False,  True])
    """
    if not 0 < mass <= 1:
        raise ValueError(f"mass is {mass}, expected a share above 0 and up to 1")
    ordered, places = weights.float().sort(-1)
    share = (ordered / ordered.sum(-1, keepdim=True)).cumsum(-1)
    kept = share > 1 - mass + 1e-6
    return torch.zeros_like(kept).scatter(-1, places, kept)


@dataclass(frozen=True, eq=False)
class HeadView:
    """The heads of a layer for one query and one image, by falling entropy.

    Attributes:
        heads: (heads,) their numbers, from 0.
        entropy: (heads,) in bits, over the cells.
        maps: (heads, rows, columns) weights of the cells; the rest up to 1 belongs to other tokens.
        masks: (heads, rows, columns) bool, the cells that hold `mass` of the sum of `maps`.
    """

    heads: Tensor
    entropy: Tensor
    maps: Tensor
    masks: Tensor


def view_heads(attention: AttentionMap, token: str | tuple[int, int], image: int = 0, mass: float = MASS) -> HeadView:
    """Return the heads of a layer for one query, by falling entropy as in EsViT's figures.

    Args:
        attention: Attention of a layer.
        token: The query, (row, column) or a name.
        image: Position of the image in the batch.
        mass: Share of a head's attention to the cells that its mask holds.

    Raises:
        UserError: there is no such token.
    """
    maps = attention.cell_map(token)[image]
    bits = entropy(maps.flatten(1))
    order = bits.argsort(descending=True, stable=True)
    masks = mass_mask(maps.flatten(1), mass).view_as(maps)
    return HeadView(order, bits[order], maps[order], masks[order])


def mean_entropy(attention: AttentionMap) -> Tensor:
    """Return the entropy in bits of each head, averaged over all queries and images, (heads,).

    All windows count; EsViT's code takes only the first of the batch. Padded queries are left out.
    """
    bits = entropy(attention.weights)  # (B, groups, heads, Q)
    real = (attention.queries >= 0).to(bits)[None, :, None]
    return (bits * real).sum((0, 1, 3)) / (real.sum() * bits.shape[0])


def most_entropy(attention: AttentionMap) -> float:
    """Return the entropy in bits of uniform attention over all keys that a query can attend to."""
    return math.log2(max(1, int((attention.keys >= 0).sum(1).max())))


def entropy_over(model: nn.Module, batches: Iterable[Tensor]) -> dict[str, Tensor]:
    """Return the mean entropy in bits of every head of every layer over a set of images: layer -> (heads,).

    For EsViT's figure of the spread of its heads. The images pass through the model once, whatever its depth.

    Args:
        model: A timm transformer.
        batches: (B, C, H, W) tensors, normalised.

    Raises:
        UserError: the model has no attention between cells.
    """
    sums: dict[str, Tensor] = {}
    images = 0
    for batch in batches:
        for one in read_attention(model, batch):
            sums[one.layer] = sums.get(one.layer, 0) + mean_entropy(one).double() * len(batch)
        images += len(batch)
    return {layer: total / images for layer, total in sums.items()}
