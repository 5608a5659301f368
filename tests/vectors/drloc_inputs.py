"""Inputs and recorded outputs of the authors' localization loss (drloc.json)."""

import json
from pathlib import Path

import torch

from vectors.fill import integers, tensor

VECTORS = json.loads((Path(__file__).parent / "drloc.json").read_text())
TOLERANCE = {"mix": 1e-5, "sine": 5e-5}
K = VECTORS["setting"]["k"]


def expected(rule):
    return VECTORS["runs"][rule]["expected"]


def recorded_pairs(rule):
    cells = [integers(f"drloc.{name}", (2, 8, 2), K, rule=rule) for name in ("first", "second")]
    return torch.stack([torch.from_numpy(c) for c in cells], dim=2)


def recorded_grid(rule):
    return torch.from_numpy(tensor("drloc.grid", (2, 16, K, K), rule=rule))


def all_pairs(height, width):
    """All ordered pairs of cells of a grid as those of a single image."""
    cells = torch.cartesian_prod(torch.arange(height), torch.arange(width))
    index = torch.cartesian_prod(torch.arange(len(cells)), torch.arange(len(cells)))
    return cells[index][None]
