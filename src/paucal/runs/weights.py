"""Deployable weights: safetensors, which holds tensors and nothing that could run."""

from pathlib import Path

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from paucal.runs.atomic import write_atomically
from paucal.types import UserError


def save_weights(path: Path, state: dict[str, Tensor]) -> None:
    """Write a state dict atomically; tensors that share memory are stored once each."""
    tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in state.items()}
    content = safetensors.torch.save(tensors, metadata={"format": "pt"})
    write_atomically(path, lambda file: file.write(content))


def read_weights(path: Path) -> dict[str, Tensor]:
    """Read a state dict.

    Raises:
        UserError: the file is missing or is no safetensors file.
    """
    try:
        return safetensors.torch.load_file(path)
    except FileNotFoundError:
        raise UserError(f"{str(path)!r} is missing: the run has not saved a model yet; train it first.") from None
    except SafetensorError as problem:
        raise UserError(f"{str(path)!r} is not a readable safetensors file ({problem}).") from problem


def load_checkpoint(path: Path) -> dict:
    """Read a training checkpoint without running any code in it.

    Raises:
        UserError: the file is missing, truncated, or holds more than tensors and plain values.
    """
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise UserError(
            f"{str(path)!r} is missing: the run was stopped before it saved a state; start it anew."
        ) from None
    except Exception as problem:  # torch raises many types for a damaged or hostile file
        reason = str(problem).split("\n")[0]
        raise UserError(f"{str(path)!r} is not a checkpoint of paucal or is damaged ({reason}).") from problem
