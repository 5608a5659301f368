"""DHVT's head tokens: how layers look at them and through them (Lu et al. 2022, supplement, Figures 3 to 5 and 7).

Within a layer its head tokens stand behind the cells. They are made from the mean of the layer's tokens, and at its end
the class token takes the mean of what they have gathered; so a layer can be folded into what it does between the
tokens that outlive it.
"""

import torch
from torch import Tensor

from paucal.explain.attention.maps import AttentionMap, Tokens
from paucal.types import UserError


def averaged(attention: AttentionMap) -> Tensor:
    """Return the mean over the heads between all tokens, (B, tokens, tokens): DHVT's Figure 3 (a).

    Rows attend to columns; the order is class token, cells, head tokens.
    """
    return attention.dense().mean(1)


def head_token_maps(attention: AttentionMap) -> Tensor:
    """Return how each head token attends to the cells in its own head, (B, heads, rows, columns): Figure 3 (b).

    Raises:
        UserError: the layer has no head tokens.
    """
    names = attention.tokens.suffix
    if not names:
        raise UserError(f"the layer {attention.layer!r} has no head tokens, as DHVT has: choose another picture.")
    rows = [attention.cell_map(name)[:, head] for head, name in enumerate(names)]
    return torch.stack(rows, 1)


def fold_head_tokens(attention: AttentionMap, average: bool) -> AttentionMap:
    """Return a layer between the tokens that outlive it: head tokens are replaced by what they come from and go to.

    As a source, a head token stands for the mean of all tokens. As a target, its row belongs to the class token: the
    mean of the rows where they are shares of attention, since the layer takes the mean (`average`); their sum where
    they are relevances, which were divided on the way back already. A layer without head tokens stays as it is.

    Args:
        attention: one group of all tokens; weights may have any number of heads.
        average: how rows are joined.
    """
    tokens = attention.tokens
    if not tokens.suffix:
        return attention
    kept = len(tokens) - len(tokens.suffix)
    weights = attention.weights
    through = weights[..., kept:].sum(-1, keepdim=True) / kept
    folded = weights[..., :kept] + through
    own, heads = folded[..., :kept, :], folded[..., kept:, :]
    joined = heads.mean(-2) if average else heads.sum(-2)
    whole = torch.cat((own[..., :1, :] + joined.unsqueeze(-2), own[..., 1:, :]), -2)
    outliving = Tokens(tokens.grid, tokens.prefix)
    places = torch.arange(kept, device=weights.device)[None]
    return AttentionMap(attention.layer, whole, outliving, outliving, places, places)
