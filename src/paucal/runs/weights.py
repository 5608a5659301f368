"""Read and write weights: safetensors files, training checkpoints, and untrusted files."""

import argparse
import pickle
import re
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from paucal.reading import require_regular
from paucal.types import UserError
from paucal.writing import write_atomically

MAX_WEIGHTS_BYTES = 16 * 2**30  # size limit of a weights file, enough for a billion parameters with optimizer state
_MAX_OVERHEAD_BYTES = 1 << 20  # largest difference between unpacked size and file size of a small checkpoint
MAX_DEPTH = 6  # largest number of levels of nested mappings that are searched for tensors
_FORBIDDEN_GLOBAL = re.compile(r"GLOBAL ([\w.]+)")  # the name of a Python object in error messages of `torch.load`
TensorTree = Mapping[str, Any]  # tensors by name, or nested mappings of tensors


def unpacked_size(path: Path) -> int:
    """Return the unpacked size in bytes of a zip archive, as written by `torch.save`, or the size of another file."""
    size = path.stat().st_size
    try:
        with zipfile.ZipFile(path) as archive:
            return max(size, sum(entry.file_size for entry in archive.infolist()))
    except (zipfile.BadZipFile, OSError, ValueError):
        return size


def save_weights(path: Path, state: dict[str, Tensor]) -> None:
    """Write a state dict as safetensors, atomically; tensors that share memory are stored separately."""
    tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in state.items()}
    content = safetensors.torch.save(tensors, metadata={"format": "pt"})
    write_atomically(path, lambda file: file.write(content))


def read_weights(path: Path) -> dict[str, Tensor]:
    """Read a state dict from a safetensors file."""
    try:
        if require_regular(path).stat().st_size > MAX_WEIGHTS_BYTES:
            raise UserError(f"{str(path)!r} is larger than {MAX_WEIGHTS_BYTES >> 30} GiB, the limit for a model file.")
        return safetensors.torch.load_file(path)
    except FileNotFoundError:
        raise UserError(
            f"{str(path)!r} is missing: the run has not saved a model yet; finish training first."
        ) from None
    except (SafetensorError, MemoryError) as problem:  # a file that is larger than the memory cannot be mapped
        raise UserError(f"{str(path)!r} is not a readable safetensors file ({problem}).") from problem


def load_checkpoint(path: Path) -> dict:
    """Read a training checkpoint of paucal without running any code in it."""
    try:
        size = require_regular(path).stat().st_size
        if unpacked_size(path) > max(2 * size, size + _MAX_OVERHEAD_BYTES):
            raise UserError(
                f"{str(path)!r} is compressed, so paucal did not write it: restore the checkpoint, or train again."
            )
        return torch.load(path, map_location="cpu", weights_only=True)
    except UserError:
        raise
    except FileNotFoundError:
        raise UserError(
            f"{str(path)!r} is missing: the run was stopped before it saved a checkpoint; start the run again."
        ) from None
    except Exception as problem:  # torch raises many types of errors for a damaged or hostile file
        reason = str(problem).split("\n")[0]
        raise UserError(f"{str(path)!r} is not a checkpoint of paucal or is damaged ({reason}).") from problem


def read_untrusted(path: Path, max_bytes: int = MAX_WEIGHTS_BYTES) -> TensorTree:
    """Return the tensors in an untrusted file as a mapping, which may be nested, without running any code in the file.

    The file is in the format of safetensors or `torch.save`. Values that are not tensors are left out, and so are
    tensors that are sparse, quantised, on the meta device, or larger than their storage.
    """
    if not path.is_file():
        raise UserError(f"There is no file {str(path)!r}: check the path.")
    if (size := unpacked_size(path)) > max_bytes:
        raise UserError(
            f"{str(path)!r} is {size / 2**30:.3g} GiB large, but at most {max_bytes / 2**30:.3g} GiB are allowed: save "
            "only the weights, without the optimizer state."
        )
    content = read_weights(path) if path.suffix == ".safetensors" else _load_tensors(path)
    tree = _keep_plain_tensors(content, seen_ids=set())
    if not tree:
        raise UserError(f"{str(path)!r} contains no named tensors: give a file with a state dict.")
    return tree


def _load_tensors(path: Path) -> Any:
    try:
        # Published checkpoints often contain the argparse.Namespace of their command line, which is harmless.
        # Warnings about old pickles are ignored.
        with warnings.catch_warnings(action="ignore"), torch.serialization.safe_globals([argparse.Namespace]):
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as problem:  # torch raises many types of errors for a damaged or hostile file
        match = _FORBIDDEN_GLOBAL.search(str(problem))
        if match or isinstance(problem, pickle.UnpicklingError):
            content = (
                f"contains Python objects ({match[1]})"
                if match
                else "is not a weights file, or contains Python objects"
            )
            raise UserError(
                f"{str(path)!r} is refused: it {content} that could run code when opened; give a file that contains "
                "only tensors, such as a state dict or safetensors."
            ) from problem
        reason = str(problem).split("\n")[0].split(". ")[0][:200].rstrip(".") or type(problem).__name__
        raise UserError(
            f"{str(path)!r} is damaged, truncated or not a weights file ({reason}): download or save the file again."
        ) from problem


def _keep_plain_tensors(value: Any, seen_ids: set[int], depth: int = 0) -> dict[str, Any]:
    """Return the plain tensors in nested mappings; `seen_ids` prevents endless recursion in circular mappings."""
    if not isinstance(value, Mapping) or depth > MAX_DEPTH or id(value) in seen_ids:
        return {}
    seen_ids.add(id(value))
    plain: dict[str, Any] = {}
    for name, entry in value.items():
        if not isinstance(name, str):
            continue
        if isinstance(entry, Tensor):
            is_dense = entry.layout == torch.strided and entry.device.type == "cpu" and not entry.is_quantized
            # A stored view of a few bytes can have any shape (with stride 0), and computing with such a tensor would
            # fill the memory.
            if is_dense and entry.numel() * entry.element_size() <= entry.untyped_storage().nbytes():
                plain[name] = entry.detach()
        elif inner := _keep_plain_tensors(entry, seen_ids, depth + 1):
            plain[name] = inner
    return plain
