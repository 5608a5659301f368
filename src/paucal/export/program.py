"""A network as a `torch.export` program, which needs nothing of this project to run."""

import io
import json
import warnings
from typing import Any

import torch
from torch import nn
from torch.export import Dim, ExportedProgram

from paucal.export.graph import Graph
from paucal.models.card import ModelCard
from paucal.types import UserError

CARD = "model.json"  # among the files that a .pt2 carries


def traced(graph: Graph) -> ExportedProgram:
    """Return the graph's program, of which the dimensions that it names take any length.

    Raises:
        UserError: torch cannot write this network down, or not with these dimensions.
    """
    free: Any = ({number: Dim.DYNAMIC for number in graph.dynamic},)
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns about its own deprecated functions
            return torch.export.export(graph.module, (graph.example,), dynamic_shapes=free, strict=False)
    except Exception as problem:  # torch raises dozens of kinds, by what it meets in the network
        lines = [line for line in str(problem).splitlines() if line.strip()]
        raise UserError(
            f"torch.export cannot write this network with {' and '.join(graph.dynamic.values())} of any length "
            f"({type(problem).__name__}: {lines[0] if lines else 'no reason'}): export its weights with --format "
            "safetensors."
        ) from problem


def packed(program: ExportedProgram, card: ModelCard) -> bytes:
    """Return the content of a .pt2 file, which carries the model's card."""
    content = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns about its own deprecated functions
        torch.export.save(program, content, extra_files={CARD: json.dumps(card.to_dict(), ensure_ascii=False)})
    return content.getvalue()


def unpacked(content: bytes) -> nn.Module:
    """Return the network of a .pt2 that this process has written; reading one of another origin may run any code."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.export.load(io.BytesIO(content)).module()
