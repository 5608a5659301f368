"""Attention computed cell by cell, to hold what is read against."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import timm
import torch
from timm.models.gcvit import GlobalContextVit
from timm.models.nest import Nest
from torch import Tensor, nn

from paucal.explain.attention.maps import AttentionMap
from paucal.explain.attention.reading import read_attention

CLASSES: dict[str, Any] = {
    "nest": Nest,
    "gcvit": GlobalContextVit,
}  # whose sizes timm's function does not let be chosen
Cell = tuple[int, int]
Bias = Callable[[int, Cell, Cell], "float | None"]  # of a head and two cells; None where one does not see the other


def build(name: str, **options: Any) -> nn.Module:
    torch.manual_seed(0)
    make = CLASSES.get(name) or partial(timm.create_model, name)
    model = make(num_classes=3, **options).eval()
    for key, parameter in model.named_parameters():  # attention far from even, biases that are not 0
        if "norm" not in key and ".bn" not in key:
            nn.init.normal_(parameter, std=0.3 if parameter.ndim < 4 else 0.1)
    return model


def images(height: int, width: int, count: int = 2) -> Tensor:
    return torch.randn(count, 3, height, width, generator=torch.Generator().manual_seed(1))


def read(model: nn.Module, x: Tensor, name: str, given_to: str | None = None) -> tuple[AttentionMap, Any, Any]:
    """Return the map of a layer, the layer, and what it (or another module) was given."""
    kept: list[Any] = []
    watched = model.get_submodule(given_to or name)
    handle = watched.register_forward_pre_hook(lambda module, given: kept.append(given[0]))
    found = read_attention(model, x, [name])[0]
    handle.remove()
    return found, model.get_submodule(name), kept[0]


def split(joint: Tensor, parts: int, heads: int) -> tuple[Tensor, ...]:
    """Return (B, heads, N, d) each of (B, N, parts * heads * d)."""
    return joint.unflatten(2, (parts, heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)


def cells_of(grid: Cell) -> list[Cell]:
    return [(row, column) for row in range(grid[0]) for column in range(grid[1])]


def biases(heads: int, queries: list[Cell], keys: list[Cell], bias: Bias) -> Tensor:
    """Return what is added to the products (heads, Q, K), from a function of single pairs."""
    values = [[[bias(head, one, two) for two in keys] for one in queries] for head in range(heads)]
    return torch.tensor([[[-math.inf if v is None else v for v in row] for row in rows] for rows in values])


def naive(query: Tensor, key: Tensor, scale: float, added: Tensor | float = 0.0) -> Tensor:
    """Return softmax(scale * query key^T + added) for (B, heads, N, d), head by head."""
    products = torch.stack(
        [torch.einsum("bqd,bkd->bqk", query[:, head], key[:, head]) for head in range(query.shape[1])], 1
    )
    return (products * scale + added).softmax(-1)


def same(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-5)
    even = 1 / (expected > 0).sum(-1, keepdim=True)
    assert float(((expected - even) / even).abs().max()) > 0.2  # else any even map would pass
