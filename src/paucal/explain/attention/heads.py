"""The attention of single heads: its entropy, and the few cells that receive most of it.

As in EsViT's figures (Li et al. 2022, section 4 and appendix): the heads of the last layer by descending entropy, each
with a mask of the cells that receive 60 % of its attention, for one query. The authors' code marks the query with row
and column exchanged, and its entropy is NaN if a weight underflows; this module does neither.
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
    """Return the entropy in bits of (..., K) weights, normalised to sum 1 first.

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
    ordered, order = weights.float().sort(-1)
    share = (ordered / ordered.sum(-1, keepdim=True)).cumsum(-1)
    is_kept = share > 1 - mass + 1e-6
    return torch.zeros_like(is_kept).scatter(-1, order, is_kept)


@dataclass(frozen=True, eq=False)
class HeadView:
    """The heads of a layer for one query and one image, by descending entropy.

    Attributes:
        heads: (heads,) their numbers, from 0.
        entropy: (heads,) in bits, over the cells.
        maps: (heads, rows, columns) weights of the cells; the rest up to 1 belongs to other tokens.
        masks: (heads, rows, columns) bool, the cells with a share `mass` of the sum of `maps`.
    """

    heads: Tensor
    entropy: Tensor
    maps: Tensor
    masks: Tensor


def view_heads(attention: AttentionMap, token: str | tuple[int, int], image: int = 0, mass: float = MASS) -> HeadView:
    """Return the heads of a layer for one query, by descending entropy as in EsViT's figures.

    Args:
        attention: Attention of a layer.
        token: The query, (row, column) or a name.
        image: Position of the image in the batch.
        mass: Share of a head's attention to cells that its mask must contain.

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

    All windows are included (EsViT's code takes only the first of the batch), padded queries are not.
    """
    bits = entropy(attention.weights)  # (B, groups, heads, Q)
    is_query = (attention.queries >= 0).to(bits)[None, :, None]
    return (bits * is_query).sum((0, 1, 3)) / (is_query.sum() * bits.shape[0])


def most_entropy(attention: AttentionMap) -> float:
    """Return the entropy in bits of uniform attention over all keys that a query can attend to."""
    return math.log2(max(1, int((attention.keys >= 0).sum(1).max())))


def entropy_over(model: nn.Module, batches: Iterable[Tensor]) -> dict[str, Tensor]:
    """Return the mean entropy in bits of every head of every layer over a set of images: layer -> (heads,).

    Used for EsViT's figure of the spread of its heads. Each image passes through the model once.

    Args:
        model: A timm transformer.
        batches: (B, C, H, W) tensors, normalised.

    Raises:
        UserError: the model has no attention between cells.
    """
    totals: dict[str, Tensor] = {}
    images = 0
    for batch in batches:
        for attention in read_attention(model, batch):
            totals[attention.layer] = totals.get(attention.layer, 0) + mean_entropy(attention).double() * len(batch)
        images += len(batch)
    return {layer: total / images for layer, total in totals.items()}
