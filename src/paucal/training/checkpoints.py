"""Checkpoints that are written atomically and contain no executable code."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.plugins import CheckpointIO

from paucal.runs.weights import load_checkpoint
from paucal.training.plan import PlanChange
from paucal.types import UserError
from paucal.writing import write_atomically


class AtomicCheckpoints(CheckpointIO):
    """Writes checkpoints atomically (flushed temporary file, then renamed), and reads only tensors and plain values."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path, storage_options: Any = None) -> None:
        """Write a checkpoint."""
        write_atomically(Path(path), lambda file: torch.save(checkpoint, file))

    def load_checkpoint(self, path, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        """Read a checkpoint into main memory; Lightning moves it to the device."""
        return load_checkpoint(Path(path))

    def remove_checkpoint(self, path) -> None:
        """Remove a checkpoint."""
        Path(path).unlink(missing_ok=True)


def checkpoint_step(path: Path) -> int:
    """Return the number of optimizer steps that were completed when a checkpoint was saved."""
    with _keeper_state(path) as state:
        return int(state["step"])


def recount_forward_passes(checkpoint: dict[str, Any], accumulate: int) -> None:
    """Set Lightning's count of forward passes in a checkpoint to `accumulate` per optimizer step.

    The stored count is wrong if the run is resumed with another number of processes, because the number of forward
    passes per step may then differ.
    """
    counts = checkpoint["loops"]["fit_loop"]["epoch_loop.batch_progress"]
    added = checkpoint["global_step"] * accumulate - counts["current"]["ready"]
    for period in ("total", "current"):
        counts[period] = {name: count + added for name, count in counts[period].items()}


def checkpoint_rows(path: Path) -> list[dict[str, float]]:
    """Return the metrics of each epoch before a checkpoint; an empty list if the file does not exist.

    `metrics.csv` may have more rows: a row is added after every epoch, and a killed run repeats the epochs since its
    newest checkpoint.
    """
    if not path.exists():
        return []
    with _keeper_state(path) as state:
        return [dict(row) for row in state["rows"]]


def checkpoint_best(path: Path) -> tuple[int, dict[str, float]]:
    """Return the number of optimizer steps before a checkpoint, and the metrics of the best epoch up to that step."""
    with _keeper_state(path) as state:
        return int(state["step"]), dict(state["best"])


def checkpoint_changes(path: Path) -> tuple[PlanChange, ...]:
    """Return the corrections of the run's length that a checkpoint stores; an empty tuple if there is no file."""
    if not path.exists():
        return ()
    with _keeper_state(path) as state:
        return tuple(PlanChange(*map(int, change)) for change in state.get("changes", []))


@contextmanager
def _keeper_state(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the state of `RunKeeper` in a checkpoint; raise a UserError if another version of paucal wrote it."""
    try:
        yield load_checkpoint(path)["callbacks"]["RunKeeper"]
    except (KeyError, TypeError, ValueError) as problem:
        raise UserError(f"{str(path)!r} is not a checkpoint of this version of paucal: train again.") from problem


@contextmanager
def advise_on_weight_mismatch(path: Path) -> Iterator[None]:
    """Raise a UserError with advice if a checkpoint contains the weights of another model."""
    try:
        yield
    except RuntimeError as problem:
        if "loading state_dict" not in str(problem):
            raise
        reason = str(problem).split("\n")[1].strip() if "\n" in str(problem) else str(problem)
        raise UserError(
            f"{str(path)!r} contains the weights of another model ({reason[:200]}): resume the run that this "
            "checkpoint belongs to, or train again."
        ) from problem
