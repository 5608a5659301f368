"""The attention of single heads: entropies, and masks of the patches that receive most of the attention.

As in EsViT's figures (Li et al. 2022, section 4 and appendix), the heads of the last layer are shown for one query, in
descending order of entropy, each with a mask of the patches that receive 60 % of the head's attention. Two errors of
the authors' code are corrected here: row and column of the query's mark are swapped, and the entropy is NaN if a weight
underflows.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from paucal.explain.attention.maps import AttentionMap
from paucal.explain.attention.reading import read_attention

MASS = 0.6  # fraction of a head's attention that the patches in its mask receive, as in EsViT's figures


def entropy(weights: Tensor) -> Tensor:
    """Return the entropy in bits of (..., K) weights, which are first normalised to sum to 1."""
    shares = weights.float() / weights.float().sum(-1, keepdim=True)
    return -torch.xlogy(shares, shares).sum(-1) / torch.log(torch.tensor(2.0)) + 0.0


def mass_mask(weights: Tensor, mass: float = MASS) -> Tensor:
    """Return a (..., K) bool mask of the largest (..., K) weights that make up at least the fraction `mass` of the sum.

    As in EsViT's code, the mask is the smallest set of weights with this property.

    Example:
        >>> mass_mask(torch.tensor([0.1, 0.5, 0.05, 0.35]))
        tensor([False,  True, False,  True])
    """
    if not 0 < mass <= 1:
        raise ValueError(f"mass is {mass}, expected a fraction above 0 and up to 1")
    ordered, order = weights.float().sort(-1)
    cumulative_share = (ordered / ordered.sum(-1, keepdim=True)).cumsum(-1)
    is_kept = cumulative_share > 1 - mass + 1e-6
    return torch.zeros_like(is_kept).scatter(-1, order, is_kept)


@dataclass(frozen=True, eq=False)
class HeadView:
    """The attention of a layer's heads for one query and one image, in descending order of entropy."""

    heads: Tensor  # (heads,) indices of the heads
    entropy: Tensor  # (heads,) entropies in bits of the attention to patches
    # (heads, rows, columns) attention to the patches. If there are other tokens, the sum of a map is less than 1.
    maps: Tensor
    # (heads, rows, columns) bool masks of the patches with the highest attention, which together get at least the
    # fraction `mass` of a map's sum.
    masks: Tensor


def view_heads(attention: AttentionMap, token: str | tuple[int, int], image: int = 0, mass: float = MASS) -> HeadView:
    """Return the attention of a layer's heads for one query, in descending order of entropy as in EsViT's figures.

    Args:
        attention: Attention of a layer.
        token: Query token: (row, column) of a patch, or the name of a token such as "class".
        image: Index of the image in the batch.
        mass: Smallest fraction of a head's attention to patches that is inside the head's mask.

    Raises:
        UserError: the layer has no such token.
    """
    maps = attention.cell_map(token)[image]
    bits = entropy(maps.flatten(1))
    order = bits.argsort(descending=True, stable=True)
    masks = mass_mask(maps.flatten(1), mass).view_as(maps)
    return HeadView(order, bits[order], maps[order], masks[order])


def mean_entropy(attention: AttentionMap) -> Tensor:
    """Return the (heads,) entropies of the heads in bits, averaged over all queries and images.

    All windows are included, whereas EsViT's code uses only the first window of the batch. Padded queries are ignored.
    """
    bits = entropy(attention.weights)  # (B, groups, heads, Q)
    is_query = (attention.queries >= 0).to(bits)[None, :, None]
    return (bits * is_query).sum((0, 1, 3)) / (is_query.sum() * bits.shape[0])


def max_entropy(attention: AttentionMap) -> float:
    """Return the entropy in bits of uniform attention over all keys that a query can attend to."""
    return math.log2(max(1, int((attention.keys >= 0).sum(1).max())))


def entropy_over(model: nn.Module, batches: Iterable[Tensor]) -> dict[str, Tensor]:
    """Return the (heads,) entropies in bits for each layer of a model, averaged over a set of images.

    EsViT's figure of the heads' entropies shows these values. The model is run once on each image.

    Args:
        model: A timm transformer.
        batches: Batches (B, C, H, W) of normalised images.

    Raises:
        UserError: the model has no attention between patches.
    """
    totals: dict[str, Tensor] = {}
    n_images = 0
    for batch in batches:
        for attention in read_attention(model, batch):
            totals[attention.layer] = totals.get(attention.layer, 0) + mean_entropy(attention).double() * len(batch)
        n_images += len(batch)
    return {layer: total / n_images for layer, total in totals.items()}
