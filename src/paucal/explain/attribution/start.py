"""Where the way back through the layers begins: at what the classifier reads of the last tokens."""

from typing import Any

import torch
from torch import Tensor, nn

from paucal.backbones.attention_maps import attention_layers
from paucal.backbones.forward_hooks import final_norm_names
from paucal.backbones.layout import last_tensor
from paucal.explain.attention.head_tokens import fold_head_tokens
from paucal.explain.attention.reading import Recorded, run_recorded
from paucal.explain.attention.rollout import Flow, last_row


def run_with_blocks(module: nn.Module, images: Tensor) -> tuple[Recorded, dict[str, Any]]:
    """Run a model as `run_recorded` does; also return by name what its blocks with attention and final norms give."""
    kept: dict[str, Any] = {}
    names = {name.rpartition(".")[0] for name in attention_layers(module)} | set(final_norm_names(module))
    handles = [keep_output(module, name, kept) for name in sorted(names)]
    try:
        return run_recorded(module, images), kept
    finally:
        for handle in handles:
            handle.remove()


def start_of(
    module: nn.Module, recorded: Recorded, outputs: dict[str, Any], one_hot: Tensor, relevances: bool = False
) -> Flow:
    """Return the shares of the last tokens in a class, with sum 1.

    All of it belongs to the class token where the classifier reads that. Where it reads the mean of the cells, each has
    the positive part of its gradient times feature, or of its relevance, after the final norm: before a norm, which
    does not change with the length of its input, gradient times feature is 0.

    Args:
        module: the model.
        recorded: its forward pass.
        outputs: of its blocks, as `run_with_blocks` gives them.
        one_hot: (B, K) the classes.
        relevances: whether the graph of the pass carries relevance instead of gradients.
    """
    last = recorded.maps[-1]
    layer = fold_head_tokens(last, average=False)
    alike = last_row(module, layer.tokens, len(one_hot), layer.weights.detach())
    candidates = [*reversed(final_norm_names(module)), last.layer.rpartition(".")[0]]
    output = next((last_tensor(outputs[name]) for name in candidates if name in outputs), None)
    reads_cells = bool((alike.tokens.to_grid(alike.values) > 0).all())
    if not reads_cells or not isinstance(output, Tensor) or not output.requires_grad:
        return alike
    given = torch.autograd.grad(recorded.logits, output, one_hot, retain_graph=True, allow_unused=True)[0]
    if given is None or output.shape[:-1].numel() != alike.values.numel():
        return alike
    shares = (given if relevances else output.detach() * given).sum(-1).flatten(1).clamp(min=0)
    total = shares.sum(1, keepdim=True)
    return Flow(torch.where(total > 0, shares / total.clamp_min(1e-30), alike.values), layer.tokens)


def keep_output(module: nn.Module, name: str, kept: dict[str, Any]) -> Any:
    """Keep what a submodule gives in `kept`; returns the handle that ends it."""

    def keep(part: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        kept[name] = output

    return module.get_submodule(name).register_forward_hook(keep)
