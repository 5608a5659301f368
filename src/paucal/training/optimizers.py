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

NORM_CLASS = re.compile(r"norm", re.IGNORECASE)  # found in the class names of normalisation layers
# Learned tokens and position tables, by their parameter names in timm and in the papers' code
TOKEN_OR_TABLE = re.compile(
    r"(^|\.|_)(cls_token|dist_token|reg_token|mask_token|head_token|pos_embed\w*|absolute_pos_embed|pos_emb"
    r"|position_embedding\w*|relative_position_bias_table|rel_pos\w*|attention_biases)$"
)
TRUST_COEFFICIENT = 1e-3  # trust coefficient of LARS, as in EsViT's code
DEVICES_IGNORING_FOUND_INF = ("mps",)  # types of device on which torch's fused AdamW ignores `found_inf`


def parameter_groups(
    module: nn.Module, label: Callable[[str], str] = lambda name: "main", decays_tables: bool = False
) -> list[dict[str, Any]]:
    """Group trainable parameters by label and by whether they get weight decay.

    No weight decay applies to norms of any shape, biases, other parameters with at most one dimension, class and
    position tokens, relative-bias tables, and the names in a submodule's `no_weight_decay()`. (The published DrLoc code
    also decays the 4-D norms of its CvT and the tokens of its ViT and T2T; EsViT's code decays all tokens and tables.)

    Args:
        module: Module with the parameters.
        label: Function that returns the label of a parameter's group from the parameter's name.
        decays_tables: Whether to decay every parameter except biases and parameters with at most one dimension.

    Returns:
        Optimizer groups with the keys `params`, `names`, `label` and `decayed`, in a deterministic order.
    """
    vector_names = (name for name, p in module.named_parameters() if p.ndim <= 1 or name.endswith(".bias"))
    undecayed = set(vector_names if decays_tables else undecayed_parameters(module))
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
    patterns = list(_excluded_patterns(module))
    for prefix, parent in module.named_modules():
        is_norm = NORM_CLASS.search(type(parent).__name__) is not None
        for local_name, parameter in parent.named_parameters(recurse=False):
            name = f"{prefix}.{local_name}" if prefix else local_name
            is_vector_or_bias = parameter.ndim <= 1 or local_name.endswith("bias")
            is_excluded = any(fnmatch(name, pattern) for pattern in patterns)
            if is_norm or is_vector_or_bias or TOKEN_OR_TABLE.search(name) or is_excluded:
                yield name


def _excluded_patterns(module: nn.Module) -> Iterator[str]:
    """Yield the full names, or patterns of names, that `no_weight_decay()` of each submodule lists, as in timm."""
    for prefix, parent in module.named_modules():
        list_names = getattr(parent, "no_weight_decay", None)
        if callable(list_names):
            names: Any = list_names()
            for name in names:
                yield f"{prefix}.{name}" if prefix else name


def build_optimizer(groups: Sequence[dict[str, Any]], settings: Optimization) -> Optimizer:
    """Return the optimizer of a run; the learning rate and weight decay of each group are set before every step.

    SGD and LARS have momentum, and their weight decay is added to the gradient, as in EsViT's code. LARS (You et al.
    2017) scales the update of each parameter by the parameter's L2 norm, except for parameters without weight decay,
    such as norms and biases.
    """
    if settings.optimizer == "sgd":
        return SGD(list(groups), lr=0.0, momentum=settings.momentum)
    if settings.optimizer == "lars":
        # Without "always_adapt", timm's LARS would not scale the updates while the weight decay is 0.
        lars_groups = [{**group, "always_adapt": group["decayed"]} for group in groups]
        # Typed as Any, since timm's defaults make type checkers expect integers.
        lars_options: Any = {"momentum": settings.momentum, "trust_coeff": TRUST_COEFFICIENT}
        return Lars(lars_groups, lr=0.0, **lars_options)
    # The fused version supports `found_inf`, so it skips non-finite steps itself.
    return AdamW(list(groups), lr=0.0, betas=settings.betas, eps=settings.eps, fused=True)


def supports_found_inf(optimizer: Optimizer, device: torch.device) -> bool:
    """Return whether an optimizer itself skips a step if the optimizer's attribute `found_inf` is 1.

    SGD and LARS do not skip steps. torch's fused SGD skips steps, but has an undefined momentum if the first step
    is skipped, and does not support parameters that get gradients later than others, such as EsViT's prototypes.
    """
    supports = getattr(optimizer, "_step_supports_amp_scaling", False)
    return bool(supports) and device.type not in DEVICES_IGNORING_FOUND_INF
