"""Models of the original programs: their state dicts by formula, and what they computed.

`models/*.json` were recorded by running the originals; weights and images come from `fill.py`, so that no file of
weights is needed. Attention masks and index tables of the originals (the entries that are not filled) are zeros
here: a converter must compute them anew.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vectors import fill

MODELS = Path(__file__).parent / "models"
VALUE = 2e-5  # absolute, times the deviation of the row where that is above 1
STATISTIC = 1e-5  # relative; the mean absolute
# The sums of angles of the "sine" fill cancel: float32 against float64 reaches 5e-6 there.
LOOSER = {"mix": 1.0, "sine": 5.0}


def load(name: str) -> dict[str, Any]:
    return json.loads((MODELS / f"{name}.json").read_text())


def filled_state(record: Mapping[str, Any], rule: str = "mix") -> dict[str, Tensor]:
    """Return the state dict of the original program, checked against the recorded sums."""
    check = next(run["fill_check"] for run in record["runs"] if run["fill"] == rule)
    state, count, total, absolute = {}, 0, 0.0, 0.0
    for name, shape, kind in record["state_dict"]:
        if fill.is_fixed(name, kind.startswith("float")):
            state[name] = torch.zeros(shape, dtype=getattr(torch, kind))
            continue
        values = fill.fill(name, shape, rule)
        count, total = count + 1, total + float(values.sum(dtype=np.float64))
        absolute += float(np.abs(values).sum(dtype=np.float64))
        state[name] = torch.from_numpy(values)
    assert count == check["filled_entries"]
    assert math.isclose(total, check["sum"], rel_tol=1e-7, abs_tol=1e-3)
    assert math.isclose(absolute, check["abs_sum"], rel_tol=1e-7)
    return state


def images(run: Mapping[str, Any]) -> Tensor:
    count, _, height, width = run["input"]
    return torch.from_numpy(fill.image(height, width, count, run["fill"]))


def require_outputs(actual: Tensor, run: Mapping[str, Any], name: str = "logits") -> float:
    """Compare one output (B, K) with the recorded one; returns the largest difference of a value."""
    expected = run["outputs"][name]
    assert list(actual.shape) == expected["shape"]
    worst = 0.0
    for row in range(2):
        worst = max(worst, _require_row(actual[row].double(), expected[f"row{row}"], LOOSER[run["fill"]], "first8"))
    return worst


def require_grid(actual: Tensor, run: Mapping[str, Any], name: str) -> float:
    """Compare a grid, in the layout that was recorded, with the recorded one; returns the largest difference."""
    expected = run["grids"][name]
    assert list(actual.shape) == expected["shape"], f"{name}: {list(actual.shape)} is recorded as {expected['shape']}"
    return _require_row(actual.flatten().double(), expected, LOOSER[run["fill"]], "values")


def _require_row(actual: Tensor, expected: Mapping[str, Any], looser: float, values: str) -> float:
    deviation = max(1.0, float(actual.std(unbiased=False)))
    at = expected.get("indices", range(len(expected[values])))
    off = (actual[list(at)] - torch.tensor(expected[values], dtype=torch.float64)).abs().max().item()
    assert off <= VALUE * deviation * looser, f"{off} off in a value"
    assert abs(actual.mean().item() - expected["mean"]) <= STATISTIC * looser * deviation
    for got, name in ((actual.std(unbiased=False), "std"), (actual.norm(), "l2")):
        assert math.isclose(got.item(), expected[name], rel_tol=STATISTIC * looser), name
    return off
