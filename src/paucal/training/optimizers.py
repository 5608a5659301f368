"""The optimizers of a run, and their parameter groups."""

import re
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatch
from typing import Any

import torch
from timm.optim.lars import Lars
from torch import nn
from torch.optim import SGD, AdamW, Optimizer

from paucal.training.plan import Optimization

NORM = re.compile(r"norm", re.IGNORECASE)
# Learned tokens and tables, which are not weights of a layer, by their names in timm and the papers.
UNDECAYED = re.compile(
    r"(^|\.|_)(cls_token|dist_token|reg_token|mask_token|head_token|pos_embed\w*|absolute_pos_embed|pos_emb"
    r"|position_embedding\w*|relative_position_bias_table|rel_pos\w*|attention_biases)$"
)
TRUST = 1e-3  # LARS' coefficient in EsViT's code
UNAWARE = ("mps",)  # devices whose fused AdamW in torch ignores `found_inf`


def parameter_groups(
    module: nn.Module, label: Callable[[str], str] = lambda name: "main", decays_tables: bool = False
) -> list[dict[str, Any]]:
    """Sort trainable parameters into optimizer groups by label and by whether they are decayed.

    Not decayed: norms of any shape, biases and every other parameter of at most one dimension, class and position
    tokens, relative-bias tables, and the names in a submodule's `no_weight_decay()`. (The published DrLoc code
    decays the 4-D norms of its CvT and the tokens of its ViT and T2T; EsViT's decays all tokens and tables.)

    Args:
        module: Module with the parameters.
        label: Function that returns the objective's group of a parameter name.
        decays_tables: Whether all but biases and parameters of at most one dimension are decayed.

    Returns:
        Dictionaries with `params`, `names`, `label` and `decayed`, in a stable order.
    """
    vectors = (name for name, parameter in module.named_parameters() if parameter.ndim <= 1 or name.endswith(".bias"))
    undecayed = set(vectors if decays_tables else undecayed_parameters(module))
    groups: dict[tuple[str, bool], dict[str, Any]] = {}
    for name, parameter in module.named_parameters():
        if not parameter.requires_grad:
            continue
        key = (label(name), name not in undecayed)
        group = groups.setdefault(key, {"params": [], "names": [], "label": key[0], "decayed": key[1]})
        group["params"].append(parameter)
        group["names"].append(name)
    return list(groups.values())


def undecayed_parameters(module: nn.Module) -> Iterator[str]:
    """Yield the full names of the parameters that get no weight decay."""
    patterns = list(_listed_patterns(module))
    for prefix, parent in module.named_modules():
        is_norm = NORM.search(type(parent).__name__) is not None
        for local_name, parameter in parent.named_parameters(recurse=False):
            name = f"{prefix}.{local_name}" if prefix else local_name
            is_listed = any(fnmatch(name, pattern) for pattern in patterns)
            if is_norm or parameter.ndim <= 1 or local_name.endswith("bias") or UNDECAYED.search(name) or is_listed:
                yield name


def _listed_patterns(module: nn.Module) -> Iterator[str]:
    """Yield the full names of parameters that timm models exclude from weight decay."""
    for prefix, parent in module.named_modules():
        listing = getattr(parent, "no_weight_decay", None)
        if callable(listing):
            names: Any = listing()
            for name in names:
                yield f"{prefix}.{name}" if prefix else name


def build_optimizer(groups: Sequence[dict[str, Any]], settings: Optimization) -> Optimizer:
    """Return the optimizer of a run; learning rates and weight decays of its groups are set before every step.

    SGD and LARS have momentum, and their weight decay is part of the gradient, as in EsViT's code. LARS (You et al.
    2017) scales the step of each tensor to the tensor's L2 norm, except for undecayed ones such as norms and biases.
    """
    if settings.optimizer == "sgd":
        return SGD(list(groups), lr=0.0, momentum=settings.momentum)
    if settings.optimizer == "lars":
        # Otherwise timm's LARS would leave out the scaling whenever the current weight decay is 0.
        scaled = [{**group, "always_adapt": group["decayed"]} for group in groups]
        # Any, since a type checker infers integers from timm's defaults.
        numbers: Any = {"momentum": settings.momentum, "trust_coeff": TRUST}
        return Lars(scaled, lr=0.0, **numbers)
    # The fused version supports `found_inf`, with which non-finite steps are skipped.
    return AdamW(list(groups), lr=0.0, betas=settings.betas, eps=settings.eps, fused=True)


def supports_found_inf(optimizer: Optimizer, device: torch.device) -> bool:
    """Return whether an optimizer skips a step by itself if `found_inf` is 1.

    SGD and LARS do not. Fused SGD would not help: torch leaves its momentum undefined if the first step is skipped, and
    does not support parameters that get gradients later than others, such as EsViT's prototypes.
    """
    return device.type not in UNAWARE and bool(getattr(optimizer, "_step_supports_amp_scaling", False))
