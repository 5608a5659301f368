"""Read state dicts of the published programs of Vision Longformer and of EsViT's version of it."""

import re
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from paucal.backbones.families.vil.layers import resize_positions

# In these programs a stage is `layerN`: part 0 the embedding, then attention and perceptron in turn.
_PART = re.compile(r"^layer(\d+)\.(\d+)\.(.+)$")
_EMBEDDING = {"norm_embed.": "norm."}


def checkpoint_filter_fn(state: Mapping[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """Give a published state dict our names; one of our own names is only fitted to the model's absolute positions.

    Query, key and value of sparse attention become one projection. A model whose global tokens share it has both copies
    in its file, of which the global tokens' counts, as it does when the published program loads them one after the
    other.

    Args:
        state: tensors by name.
        model: what they are for.
    """
    renamed = {_name(key): value for key, value in state.items() if not key.endswith("relative_position_index")}
    own = model.state_dict()
    joined = _joined(renamed, own) if any(_PART.match(key) for key in state) else renamed
    return {key: _fitted(key, value, own) for key, value in joined.items()}


def _name(key: str) -> str:
    match = _PART.match(key)
    if match is None:
        return key
    stage, part, rest = int(match[1]) - 1, int(match[2]), match[3]
    if part == 0:
        for old, new in _EMBEDDING.items():
            rest = new + rest.removeprefix(old) if rest.startswith(old) else rest
        return f"stages.{stage}.embed.{rest}"
    norm = "norm1." if part % 2 else "norm2."
    rest = norm + rest.removeprefix("norm.") if rest.startswith("norm.") else rest
    return f"stages.{stage}.blocks.{(part - 1) // 2}.{rest}"


def _joined(state: dict[str, Tensor], own: Mapping[str, Tensor]) -> dict[str, Tensor]:
    joined = dict(state)
    for key in [key for key in state if ".attn.query." in key]:
        start, _, kind = key.rpartition(".attn.query.")
        prefix = f"{start}.attn."
        shared = f"{prefix}query_global.{kind}" not in own and f"{prefix}query_global.{kind}" in state
        ending = "_global" if shared else ""
        if f"{prefix}kv{ending}.{kind}" not in state:
            continue
        joined[f"{prefix}qkv.{kind}"] = torch.cat(
            (state[f"{prefix}query{ending}.{kind}"], state[f"{prefix}kv{ending}.{kind}"])
        )
        for name in ("query", "kv") + (("query_global", "kv_global") if shared else ()):
            joined.pop(f"{prefix}{name}.{kind}", None)
        if shared:
            joined[f"{prefix}proj.{kind}"] = joined.pop(f"{prefix}proj_global.{kind}", state[f"{prefix}proj.{kind}"])
    return {key: value for key, value in joined.items() if value.numel() or key in own}  # tables of no global tokens


def _fitted(key: str, value: Tensor, own: Mapping[str, Tensor]) -> Tensor:
    wanted = own.get(key)
    if not key.endswith(("x_pos_embed", "y_pos_embed")) or wanted is None or value.ndim != 3:
        return value
    if value.shape[2] != wanted.shape[2] or not value.is_floating_point():
        return value
    return resize_positions(value, wanted.shape[1])
