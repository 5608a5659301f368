"""Attention rollout: from which patches the information in the last tokens comes, traced back through all layers.

Abnar and Zuidema 2020, "Quantifying Attention Flow in Transformers": each layer mixes tokens by the mean attention over
heads, the residual connection keeps half of each token, and the matrices of all layers are multiplied. Here, only one
row of the product is computed, from the last layer to the first. So no attention matrix between all tokens is needed,
and windowed attention (Swin), pooled keys and patch merging are supported.

For attribution, the rollout starts from the contributions of the last tokens to a class (`class_contributions`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from paucal.backbones.attention_layout import Tokens
from paucal.backbones.attention_maps import attention_layers
from paucal.backbones.layout import last_tensor
from paucal.backbones.probe import final_norm_names, recorded_outputs
from paucal.explain.attention.maps import AttentionMap, fold_head_tokens
from paucal.explain.attention.reading import AttentionRecord, read_attention, run_recorded


@dataclass(frozen=True, eq=False)
class TokenContributions:
    """The contributions of a layer's tokens to the network's result."""

    values: Tensor  # (B, tokens) contributions
    tokens: Tokens  # tokens of the layer

    def resample(self, tokens: Tokens) -> "TokenContributions":
        """Return the contributions of the tokens of an earlier stage, which may have a finer grid of patch tokens.

        The contribution of a merged patch token is divided among the patch tokens that were merged. A prefix token
        keeps its contribution if the earlier stage has the same prefix token; otherwise its contribution is dropped.
        """
        if tokens == self.tokens:
            return self
        n_prefix = min(len(tokens.prefix), len(self.tokens.prefix))
        cells = self.tokens.to_grid(self.values)
        if tokens.grid != self.tokens.grid:
            resized = functional.interpolate(cells[:, None], tokens.grid, mode="nearest")[:, 0]
            old_sum, new_sum = cells.sum((1, 2), keepdim=True), resized.sum((1, 2), keepdim=True)
            cells = resized * torch.where(new_sum == 0, 0.0, old_sum / new_sum)
        prefix = functional.pad(self.values[:, :n_prefix], (0, len(tokens.prefix) - n_prefix))
        suffix = self.values.new_zeros(len(cells), len(tokens.suffix))
        return TokenContributions(torch.cat((prefix, cells.flatten(1), suffix), 1), tokens)


def follow_back(
    start: TokenContributions,
    layers: Sequence[AttentionMap],
    residual_factor: float = 1.0,
    attention_factor: float = 1.0,
) -> TokenContributions:
    """Trace contributions back from the last tokens of a network to the tokens of its first layer.

    In each layer, a token keeps its contribution times `residual_factor`, because of the residual connection, and
    passes its contribution times `attention_factor` on to the tokens that it attends to. A token that is not a query
    keeps its whole contribution. For example, patch tokens are not queries in a layer in which only the class token is
    a query.
    """
    steps: list[list[AttentionMap]] = []
    for layer in layers:
        if steps and layer.layer.startswith(f"{steps[-1][0].layer}."):
            steps[-1].append(layer)  # a step of ViL has two layers, for global tokens and for patch tokens
        else:
            steps.append([layer])
    flow = start
    for step in reversed(steps):
        flow = flow.resample(step[0].tokens)
        is_query = torch.stack([attention.query_mask() for attention in step]).any(0)
        residual_flow = TokenContributions(torch.where(is_query, residual_factor, 1.0) * flow.values, flow.tokens)
        # In layers that pool their queries (MViT, Hiera, LeViT), the keys have a finer grid.
        finest = max((flow.tokens, *(attention.key_tokens for attention in step)), key=lambda tokens: tokens.cells)
        attention_flows = [
            TokenContributions(attention.flow(flow.values), attention.key_tokens).resample(finest).values
            for attention in step
        ]
        flow = TokenContributions(
            residual_flow.resample(finest).values + attention_factor * torch.stack(attention_flows).sum(0), finest
        )
    return flow


def pooling_weights(model: nn.Module, tokens: Tokens, batch_size: int, like: Tensor) -> TokenContributions:
    """Return the weights with which the classifier averages the last tokens; the weights sum to 1.

    The class token has weight 1. In a distilled model, the class token and the distillation token have weight 1/2 each.
    If the classifier uses no class token, all patch tokens have equal weights.
    """
    count = len(tokens)
    values = like.new_zeros(batch_size, count)
    if tokens.prefix and getattr(model, "global_pool", "token") in ("token", "", None):
        n_pooled = 2 if "distillation" in tokens.prefix else 1
        values[:, :n_pooled] = 1 / n_pooled
    else:
        first = len(tokens.prefix)
        values[:, first : first + tokens.cells] = 1 / tokens.cells
    return TokenContributions(values, Tokens(tokens.grid, tokens.prefix))


@torch.no_grad()
def attention_rollout(model: nn.Module, images: Tensor, residual: float = 0.5) -> Tensor:
    """Return the (B, rows, columns) attention rollout on the first layer's patches; each map sums to at most 1.

    The map shows where information may come from and does not depend on a class. In models that average their patch
    tokens (Swin), the rollout starts from all patches of the last layer, with equal weights.

    Args:
        model: A timm transformer.
        images: (B, C, H, W) images, normalised.
        residual: Fraction of each token that the residual connection keeps in each layer.

    Raises:
        UserError: the model has no attention between patches.
    """
    layers = []
    for attention in read_attention(model, images):
        folded = fold_head_tokens(attention, average=True)
        if folded is not attention:  # the row of the class token is now the sum of two rows that sum to 1
            folded = folded.with_weights(folded.weights / folded.weights.sum(-1, keepdim=True))
        layers.append(folded)
    start = pooling_weights(model, layers[-1].tokens, len(images), layers[-1].weights)
    flow = follow_back(start, layers, residual_factor=residual, attention_factor=1 - residual)
    return flow.tokens.to_grid(flow.values)


def run_with_blocks(module: nn.Module, images: Tensor) -> tuple[AttentionRecord, dict[str, Any]]:
    """Run `run_recorded`; also return the outputs of the model's attention blocks and final norms, by module name."""
    names = {name.rpartition(".")[0] for name in attention_layers(module)} | set(final_norm_names(module))
    with recorded_outputs(module, sorted(names)) as outputs:
        return run_recorded(module, images), outputs


def class_contributions(
    module: nn.Module, recorded: AttentionRecord, outputs: dict[str, Any], one_hot: Tensor, relevances: bool = False
) -> TokenContributions:
    """Return the contributions of the last layer's tokens to the logit of a class; the contributions sum to 1.

    If the classifier uses a class token, the contribution of this token is 1. If the classifier uses the mean of the
    patch tokens, a patch token's contribution is proportional to the positive part of the token's gradient times
    feature, or of the token's relevance. Features and gradients are read after the final norm. Before the norm,
    gradient times feature would sum to 0, since the norm's output does not depend on the length of its input.

    `relevances` says whether backward passes compute relevances (`RelevanceMode`) instead of gradients.
    """
    last = recorded.maps[-1]
    layer = fold_head_tokens(last, average=False)
    uniform = pooling_weights(module, layer.tokens, len(one_hot), layer.weights.detach())
    candidates = [*reversed(final_norm_names(module)), last.layer.rpartition(".")[0]]
    output = next((last_tensor(outputs[name]) for name in candidates if name in outputs), None)
    reads_cells = bool((uniform.tokens.to_grid(uniform.values) > 0).all())
    if not reads_cells or not isinstance(output, Tensor) or not output.requires_grad:
        return uniform
    gradient = torch.autograd.grad(recorded.logits, output, one_hot, retain_graph=True, allow_unused=True)[0]
    if gradient is None or output.shape[:-1].numel() != uniform.values.numel():
        return uniform
    shares = (gradient if relevances else output.detach() * gradient).sum(-1).flatten(1).clamp(min=0)
    total = shares.sum(1, keepdim=True)
    return TokenContributions(torch.where(total > 0, shares / total.clamp_min(1e-30), uniform.values), layer.tokens)


def roll_out(layers: list[AttentionMap], start: TokenContributions) -> Tensor:
    """Return the product start (I + A_L) ... (I + A_1) on the patches, (B, rows, columns); A_i is layer i's matrix."""
    flow = follow_back(start, [fold_head_tokens(layer, average=False) for layer in layers])
    return flow.tokens.to_grid(flow.values)
