"""Find the weights of a model inside whatever a checkpoint wraps them in."""

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

MOST_MAPPINGS, MOST_PREFIXES = 6, 3
# In a file with several networks the averaged one is the better (DINO, EsViT, moving averages), and it comes first.
PREFERRED = ("ema", "average", "averaged", "teacher", "momentum")
LAST = ("student", "online", "optimizer")
# What programs wrap their networks in; tried too, since a published file need not have the model's own names.
WRAPPERS = ("module.", "_orig_mod.", "module.backbone.", "backbone.", "model.")


@dataclass(frozen=True)
class Candidate:
    """Tensors that may be the weights.

    Attributes:
        part: where in the file they lie, for people; empty where they are the whole file.
        state: tensors by name, without the prefix.
    """

    part: str
    state: dict[str, Tensor]


def candidates(tree: Mapping[str, Any], names: Collection[str]) -> list[Candidate]:
    """Return the parts of a checkpoint that may be a model's weights, the preferred ones first.

    Mappings within mappings are looked through ("state_dict", "model", "teacher", ...), and prefixes are found by
    comparing the ends of the names with the model's own ("module.", "backbone.", ...), so that no list of wrappers
    has to be kept.

    Args:
        tree: tensors by name, or mappings of them.
        names: what the model's tensors are called.

    Example:
        >>> import torch
        >>> found = candidates({"teacher": {"module.fc.bias": torch.zeros(2)}}, {"fc.bias"})
        >>> found[0].part, list(found[0].state)
        ("teacher, 'module.'", ['fc.bias'])
    """
    mappings = sorted(_mappings(tree), key=lambda found: -len(found[1]))[:MOST_MAPPINGS]
    found = [
        Candidate(_describe(path, prefix), _strip(tensors, prefix))
        for path, tensors in mappings
        for prefix in _prefixes(tensors, names)
    ]
    return sorted(found, key=lambda one: _rank(one.part))


def _mappings(tree: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], dict]]:
    tensors = {name: value for name, value in tree.items() if isinstance(value, Tensor)}
    if tensors:
        yield path, tensors
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from _mappings(value, (*path, name))


def _prefixes(tensors: Mapping[str, Tensor], names: Collection[str]) -> list[str]:
    votes: Counter[str] = Counter()
    for key in tensors:
        parts = key.split(".", 12)
        for cut in range(1, len(parts)):
            if ".".join(parts[cut:]) in names:
                votes[".".join(parts[:cut]) + "."] += 1
    found = [prefix for prefix, _ in votes.most_common(MOST_PREFIXES)]
    wrapped = [prefix for prefix in WRAPPERS if sum(key.startswith(prefix) for key in tensors) > len(tensors) / 2]
    return list(dict.fromkeys([*found, *reversed(wrapped), ""]))


def _strip(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {key[len(prefix) :]: value for key, value in tensors.items() if key.startswith(prefix)}


def _describe(path: tuple[str, ...], prefix: str) -> str:
    return ", ".join([*([".".join(path)] if path else []), *([repr(prefix)] if prefix else [])])


def _rank(part: str) -> int:
    words = set(re.split(r"[\W_]+", part.lower()))
    return 0 if words & set(PREFERRED) else 2 if words & set(LAST) else 1
