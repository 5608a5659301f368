"""What single images show of a network's attention: heads, rollout, features, DHVT's head tokens."""

from collections.abc import Callable, Iterator, Sequence

import torch
from matplotlib.figure import Figure

from paucal.evaluation.deployed import Deployed
from paucal.explain.attention.features import feature_colours
from paucal.explain.attention.head_tokens import averaged, head_token_maps
from paucal.explain.attention.heads import MASS, view_heads
from paucal.explain.attention.maps import AttentionMap, Token
from paucal.explain.attention.reading import read_attention
from paucal.explain.attention.rollout import attention_rollout
from paucal.explain.figures.attention import features_figure, maps_figure, matrices_figure
from paucal.explain.figures.heads import heads_figure, queries_figure
from paucal.types import UserError
from paucal.verbs.explaining.images import Viewed, stacked, stem
from paucal.verbs.explaining.settings import ExplainSettings
from paucal.verbs.explaining.unused import CELL

SHOWN_LAYERS = 4  # of DHVT's figures: spread over the depth, the last among them
MOST_TOKENS = 900  # of a matrix that can be drawn


def heads_view(model: Deployed, image: Viewed, settings: ExplainSettings) -> dict[str, Figure]:
    """Draw the heads of a layer for some queries: by default the class token, or else the middle of the image."""
    layer = _layer(read_attention(model.module, stacked([image], model)), settings.layer)
    tokens = _tokens(settings.token, layer)
    views, name = [view_heads(layer, token) for token in tokens], f"layer {layer.layer}"
    if len(tokens) == 1:
        return {"attention": heads_figure(image.picture, views[0], tokens[0], name, MASS)}
    return {"attention": queries_figure(image.picture, views, tokens, name, MASS)}


def rollout_view(model: Deployed, image: Viewed, settings: ExplainSettings) -> dict[str, Figure]:
    """Draw attention rollout."""
    values = attention_rollout(model.module, stacked([image], model))[0].cpu()
    note = "where the last tokens' information could come from, for no class in particular"
    return {"rollout": maps_figure(image.picture, [values], ["attention rollout"], note, smooth=True)}


def features_figures(model: Deployed, batch: Sequence[Viewed]) -> Iterator[tuple[str, Figure]]:
    """Draw the last features of images as colours, which mean the same in all images of the batch."""
    for image, colours in zip(batch, feature_colours(model.module, stacked(batch, model)).cpu(), strict=True):
        yield f"{stem(image.name)}_features", features_figure(image.picture, colours)


def head_tokens_view(model: Deployed, image: Viewed, settings: ExplainSettings) -> dict[str, Figure]:
    """Draw DHVT's two figures: averaged attention between all tokens, and each head token's attention to the cells."""
    maps = read_attention(model.module, stacked([image], model))
    spread = torch.linspace(len(maps) - 1, 0, min(SHOWN_LAYERS, len(maps))).round().long().unique().tolist()
    chosen = [maps[place] for place in spread]
    panels = [
        (f"layer {place + 1}, head {head + 1}", values)
        for place, one in zip(spread, chosen, strict=True)
        for head, values in enumerate(head_token_maps(one)[0].cpu())
    ]
    label = "attention of each head token to the cells in its own head"
    figures = {"head_tokens": maps_figure(image.picture, [v for _, v in panels], [t for t, _ in panels], label)}
    if len(chosen[-1].tokens) <= MOST_TOKENS:
        titles = [f"layer {place + 1}" for place in spread]
        matrices = [averaged(one)[0].cpu() for one in chosen]
        figures["averaged_attention"] = matrices_figure(matrices, chosen[-1].tokens, titles)
    return figures


# One image at a time: the attention of all layers takes gigabytes for one large image.
SINGLE: dict[str, Callable[[Deployed, Viewed, ExplainSettings], dict[str, Figure]]] = {
    "attention": heads_view,
    "rollout": rollout_view,
    "head-tokens": head_tokens_view,
}


def _layer(maps: list[AttentionMap], asked: str | None) -> AttentionMap:
    if asked is None:
        return maps[-1]
    if asked.isdigit() and 1 <= int(asked) <= len(maps):
        return maps[int(asked) - 1]
    found = [one for one in maps if one.layer == asked]
    if not found:
        names = ", ".join(one.layer for one in maps)
        raise UserError(f"--layer is {asked!r}; expected a number from 1 to {len(maps)}, or one of {names}.")
    return found[0]


def _tokens(asked: list[str] | None, layer: AttentionMap) -> list[Token]:
    rows, columns = layer.tokens.grid
    if not asked:
        return [layer.tokens.prefix[0] if layer.tokens.prefix else (rows // 2, columns // 2)]
    cells = [CELL.fullmatch(one) for one in asked]
    return [(int(cell[1]), int(cell[2])) if cell else one for cell, one in zip(cells, asked, strict=True)]
