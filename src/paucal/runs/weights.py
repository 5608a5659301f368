"""Deployable weights as safetensors, which contain no executable code."""

import zipfile
from pathlib import Path

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from paucal.reading import require_regular
from paucal.runs.atomic import write_atomically
from paucal.types import UserError

MAX_BYTES = 16 * 2**30  # a model of a billion parameters with its optimizer state
_SLACK = 1 << 20


def unpacked_size(path: Path) -> int:
    """Return the minimum unpacked size in bytes of a file of `torch.save`, which is a zip archive."""
    size = path.stat().st_size
    try:
        with zipfile.ZipFile(path) as archive:
            return max(size, sum(entry.file_size for entry in archive.infolist()))
    except (zipfile.BadZipFile, OSError, ValueError):
        return size


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
        if require_regular(path).stat().st_size > MAX_BYTES:
            raise UserError(f"{str(path)!r} has more than {MAX_BYTES >> 30} GiB, the most that are read of a model.")
        return safetensors.torch.load_file(path)
    except FileNotFoundError:
        raise UserError(f"{str(path)!r} is missing: the run has not saved a model yet; train it first.") from None
    except (SafetensorError, MemoryError) as problem:  # a file longer than the memory cannot be mapped into it
        raise UserError(f"{str(path)!r} is not a readable safetensors file ({problem}).") from problem


def load_checkpoint(path: Path) -> dict:
    """Read a training checkpoint without running any code in it.

    Raises:
        UserError: the file is missing, truncated, or holds more than tensors and plain values.
    """
    try:
        size = require_regular(path).stat().st_size
        if unpacked_size(path) > max(2 * size, size + _SLACK):
            raise UserError(f"{str(path)!r} is packed, which no checkpoint of paucal is: restore it, or train anew.")
        return torch.load(path, map_location="cpu", weights_only=True)
    except UserError:
        raise
    except FileNotFoundError:
        raise UserError(
            f"{str(path)!r} is missing: the run was stopped before it saved a state; start it anew."
        ) from None
    except Exception as problem:  # torch raises many types for a damaged or hostile file
        reason = str(problem).split("\n")[0]
        raise UserError(f"{str(path)!r} is not a checkpoint of paucal or is damaged ({reason}).") from problem
