"""Mimetic initialisation of attention (Trockman and Kolter, ICML 2023, arXiv:2305.09828, section 3).

In trained transformers, the product of query and key weights is close to a multiple of the identity, and the product of
value and output weights is close to a negative multiple of the identity. This initialisation draws weights with these
properties. For a plain ViT, the paper reports that accuracy rises by over 5 percentage points on CIFAR-10 and by over 4
on ImageNet.
"""

import torch
from torch import Tensor, nn

from paucal.backbones.attention_maps import attention_layers
from paucal.types import UserError

# The paper's factor of both the noise and the identity: for the product of query and key weights, and for the product
# of value and output weights.
QUERY_KEY_FACTOR, VALUE_OUTPUT_FACTOR = 0.7, 0.4


@torch.no_grad()
def init_mimetic(model: nn.Module, generator: torch.Generator) -> int:
    """Redraw the attention weights of a model: W_q W_k^T = 0.7 (Z + I) per head, W_v W_o = 0.4 (Z - I) per layer.

    Z has independent normal entries with variance 1 / channels. The products are factorised by a singular value
    decomposition, which is truncated to the number of channels per head for queries and keys. Biases are set to 0. The
    paper also initialises position embeddings with sines; this function does not change them.

    The attention layers must have one linear layer `qkv` for queries, keys and values and one linear layer `proj` for
    the output, as timm's ViT and Swin, and DHVT. Return the number of initialised layers.
    """
    count = 0
    for layer in attention_layers(model).values():
        qkv, output = getattr(layer, "qkv", None), getattr(layer, "proj", None)
        # Swin v2 normalises queries and keys, so the scale of their weights has no effect.
        is_cosine = hasattr(layer, "logit_scale")
        if is_cosine or not isinstance(qkv, nn.Linear) or not isinstance(output, nn.Linear):
            continue
        if qkv.out_features == 3 * qkv.in_features and output.in_features == output.out_features:
            _init_layer(qkv, output, int(layer.num_heads), generator)  # type: ignore[arg-type]
            count += 1
    if not count:
        raise UserError(
            f"--attention-init mimetic needs attention with one linear layer for queries, keys and values, which "
            f"{type(model).__name__} does not have: remove the option, or choose a ViT, Swin or DHVT."
        )
    return count


def _init_layer(qkv: nn.Linear, output: nn.Linear, heads: int, generator: torch.Generator) -> None:
    dim = qkv.in_features
    pairs = [_low_rank_factors(dim, QUERY_KEY_FACTOR, QUERY_KEY_FACTOR, dim // heads, generator) for _ in range(heads)]
    value, out = _low_rank_factors(dim, VALUE_OUTPUT_FACTOR, -VALUE_OUTPUT_FACTOR, dim, generator)
    # The factors are transposed, since a linear layer multiplies by the transpose of its weight.
    rows = [*(query.T for query, _ in pairs), *(key.T for _, key in pairs), value.T]
    qkv.weight.copy_(torch.cat(rows))
    output.weight.copy_(out)
    for bias in (qkv.bias, output.bias):
        if bias is not None:
            nn.init.zeros_(bias)


def _low_rank_factors(
    dim: int, noise: float, identity: float, rank: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Return A and B, both (dim, rank), so that A B^T is the best approximation of noise * Z + identity * I."""
    target = noise * torch.randn(dim, dim, generator=generator) / dim**0.5 + identity * torch.eye(dim)
    left, values, right = torch.linalg.svd(target)
    roots = values[:rank].sqrt()
    return left[:, :rank] * roots, right[:rank].T * roots
