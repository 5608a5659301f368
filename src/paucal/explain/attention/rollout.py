"""Attention rollout: which cells the information in the last tokens comes from, traced back through all layers.

Abnar and Zuidema 2020, "Quantifying Attention Flow in Transformers": each layer mixes tokens by its mean attention,
the residual connection keeps half of every token, and the layers are multiplied. Here the product is applied to the
requested row only, from the last layer to the first. This needs no matrix between all tokens, and works with windows
(Swin), pooled keys and merged cells.

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
from paucal.backbones.forward_hooks import final_norm_names, recorded_outputs
from paucal.backbones.layout import last_tensor
from paucal.explain.attention.maps import AttentionMap, fold_head_tokens
from paucal.explain.attention.reading import AttentionRecord, read_attention, run_recorded


@dataclass(frozen=True, eq=False)
class Flow:
    """Shares of the tokens of one layer, while they are traced back through a network."""

    values: Tensor
    tokens: Tokens

    def on(self, tokens: Tokens) -> "Flow":
        """Return the shares on the tokens of an earlier stage, whose grid may be finer.

        A cell's share is divided among the cells it was merged from. Tokens before the cells keep their
        share if the earlier stage has them, else it is lost.
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
        return Flow(torch.cat((prefix, cells.flatten(1), suffix), 1), tokens)


def follow_back(start: Flow, layers: Sequence[AttentionMap], keep: float = 1.0, move: float = 1.0) -> Flow:
    """Follow shares from the end of a network to its first layer.

    In each layer, the residual connection keeps a token's share with the factor `keep`, and the attention moves it with
    the factor `move` to the tokens it attends to. The share of a token without a query (a cell, if only the class token
    attends) is unchanged.
    """
    flow = start
    for parts in reversed(_group_steps(layers)):
        flow = flow.on(parts[0].tokens)
        is_query = torch.stack([part.asks() for part in parts]).any(0)
        skip_flow = Flow(torch.where(is_query, keep, 1.0) * flow.values, flow.tokens)
        # Layers that pool their queries (MViT, Hiera, LeViT) attend to the cells of a finer grid.
        finest = max((flow.tokens, *(part.key_tokens for part in parts)), key=lambda tokens: tokens.cells)
        attention_flows = [Flow(part.flow(flow.values), part.key_tokens).on(finest).values for part in parts]
        flow = Flow(skip_flow.on(finest).values + move * torch.stack(attention_flows).sum(0), finest)
    return flow


def _group_steps(layers: Sequence[AttentionMap]) -> list[list[AttentionMap]]:
    """Group layers into successive steps; in ViL a step has two parts, one for the global tokens and one for cells."""
    steps: list[list[AttentionMap]] = []
    for layer in layers:
        if steps and layer.layer.startswith(f"{steps[-1][0].layer}."):
            steps[-1].append(layer)
        else:
            steps.append([layer])
    return steps


def pooling_weights(model: nn.Module, tokens: Tokens, batch_size: int, like: Tensor) -> Flow:
    """Return the weights of the last tokens in the classifier's input, with sum 1.

    The class token has weight 1, or each of two tokens has half in a distilled model. If the classifier reads no
    class token, all cells have equal weights.
    """
    count = len(tokens)
    values = like.new_zeros(batch_size, count)
    if tokens.prefix and getattr(model, "global_pool", "token") in ("token", "", None):
        n_read = 2 if "distillation" in tokens.prefix else 1
        values[:, :n_read] = 1 / n_read
    else:
        first = len(tokens.prefix)
        values[:, first : first + tokens.cells] = 1 / tokens.cells
    return Flow(values, Tokens(tokens.grid, tokens.prefix))


@torch.no_grad()
def attention_rollout(model: nn.Module, images: Tensor, residual: float = 0.5) -> Tensor:
    """Return attention rollout (B, rows, columns) on the cells of the first layer, with sum at most 1.

    It shows where information could come from, independent of any class. In models that average cells (Swin), the
    rollout starts from all cells of the last layer, with equal weights.

    Args:
        model: A timm transformer.
        images: (B, C, H, W), normalised.
        residual: Share of each token that the residual connection keeps in each layer.

    Raises:
        UserError: the model has no attention between cells.
    """
    layers = [fold_normalised(attention) for attention in read_attention(model, images)]
    start = pooling_weights(model, layers[-1].tokens, len(images), layers[-1].weights)
    flow = follow_back(start, layers, keep=residual, move=1 - residual)
    return flow.tokens.to_grid(flow.values)


def fold_normalised(attention: AttentionMap) -> AttentionMap:
    """Return the attention without head tokens; rows are normalised to sum 1, since the class token's row sums to 2."""
    folded = fold_head_tokens(attention, average=True)
    if folded is attention:
        return attention
    return folded.with_weights(folded.weights / folded.weights.sum(-1, keepdim=True))


def run_with_blocks(module: nn.Module, images: Tensor) -> tuple[AttentionRecord, dict[str, Any]]:
    """Run a model as `run_recorded` does; also return the outputs of its attention blocks and final norms by name."""
    names = {name.rpartition(".")[0] for name in attention_layers(module)} | set(final_norm_names(module))
    with recorded_outputs(module, sorted(names)) as outputs:
        return run_recorded(module, images), outputs


def class_contributions(
    module: nn.Module, recorded: AttentionRecord, outputs: dict[str, Any], one_hot: Tensor, relevances: bool = False
) -> Flow:
    """Return the shares of the last tokens in the logit of a class, with sum 1.

    If the classifier reads a class token, this token has the whole share. If it reads the mean of the cells, the share
    of each cell is the positive part of its gradient times feature, or of its relevance, after the final norm: before
    the norm, whose output does not depend on the length of its input, gradient times feature is 0.

    Args:
        module: Model.
        recorded: Its forward pass.
        outputs: Outputs of its blocks, as returned by `run_with_blocks`.
        one_hot: (B, K) classes.
        relevances: Whether the graph of the pass carries relevance instead of gradients.
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
    return Flow(torch.where(total > 0, shares / total.clamp_min(1e-30), uniform.values), layer.tokens)


def rolled_out(layers: list[AttentionMap], start: Flow) -> Tensor:
    """Return `start` times (1 + A_L) ... (1 + A_1), on the cells."""
    flow = follow_back(start, [fold_head_tokens(layer, average=False) for layer in layers])
    return flow.tokens.to_grid(flow.values)
