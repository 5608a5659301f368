"""Checkpoints that are whole or not there, and that hold nothing which could run."""

from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.plugins import CheckpointIO

from paucal.runs import load_checkpoint, write_atomically


class AtomicCheckpoints(CheckpointIO):
    """Writes to a temporary file, forces it to disk and renames it; reads tensors and plain values only."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path, storage_options: Any = None) -> None:
        """Write a checkpoint."""
        write_atomically(Path(path), lambda file: torch.save(checkpoint, file))

    def load_checkpoint(self, path, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        """Read a checkpoint to the CPU, from where Lightning moves it."""
        return load_checkpoint(Path(path))

    def remove_checkpoint(self, path) -> None:
        """Remove a checkpoint."""
        Path(path).unlink(missing_ok=True)


def checkpoint_position(path: Path) -> tuple[int, int]:
    """Return the optimizer steps and the forward passes that a checkpoint stands after."""
    checkpoint = load_checkpoint(path)
    position = checkpoint["callbacks"]["RunKeeper"]
    return position["step"], position["micro_step"]
