"""Parameter groups: with and without weight decay, and by the objective's labels."""

import re
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from typing import Any

from torch import nn

NORM = re.compile(r"norm", re.IGNORECASE)
# Tokens and tables that are learned but are no weights of a map, by the names they have in timm and the papers.
UNDECAYED = re.compile(
    r"(^|\.|_)(cls_token|dist_token|reg_token|mask_token|head_token|pos_embed\w*|absolute_pos_embed|pos_emb"
    r"|position_embedding\w*|relative_position_bias_table|rel_pos\w*|attention_biases)$"
)


def parameter_groups(
    module: nn.Module, label: Callable[[str], str] = lambda name: "main", decays_tables: bool = False
) -> list[dict[str, Any]]:
    """Sort trainable parameters into optimizer groups by label and by whether they are decayed.

    Not decayed: norms of any shape, biases and every other parameter of at most one dimension, class and position
    tokens, relative-bias tables, and whatever a submodule's `no_weight_decay()` names. (The published DrLoc program
    decays the 4-D norms of its CvT and the tokens of its ViT and T2T, EsViT's all tokens and tables.)

    Args:
        module: Module with the parameters.
        label: Function that returns the objective's group of a parameter name.
        decays_tables: Whether all but biases and parameters of at most one dimension are decayed.

    Returns:
        Dictionaries with `params`, `names`, `label` and `decayed`, in a stable order.
    """
    undecayed = set(_small_parameters(module) if decays_tables else undecayed_parameters(module))
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
    for prefix, owner in module.named_modules():
        is_norm = NORM.search(type(owner).__name__) is not None
        for short, parameter in owner.named_parameters(recurse=False):
            name = f"{prefix}.{short}" if prefix else short
            listed = any(fnmatch(name, pattern) for pattern in patterns)
            if is_norm or parameter.ndim <= 1 or short.endswith("bias") or UNDECAYED.search(name) or listed:
                yield name


def _small_parameters(module: nn.Module) -> Iterator[str]:
    return (name for name, parameter in module.named_parameters() if parameter.ndim <= 1 or name.endswith(".bias"))


def _listed_patterns(module: nn.Module) -> Iterator[str]:
    """Yield the full names of parameters that timm models exclude from weight decay."""
    for prefix, owner in module.named_modules():
        listing = getattr(owner, "no_weight_decay", None)
        if callable(listing):
            names: Any = listing()
            for name in names:
                yield f"{prefix}.{name}" if prefix else name
