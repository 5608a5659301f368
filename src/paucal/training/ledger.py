"""The callback that writes a run's ledger, which records the images that each step used."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, Trainer

from paucal.data.string_arrays import take_strings
from paucal.runs.ledger import LedgerWriter, StartRecord, image_hashes, next_start_number


class Ledger(Callback):
    """Writes the images of each forward pass to the ledger before that pass.

    So the ledger contains every step before a checkpoint: a checkpoint is saved after the processes have exchanged
    gradients, and each process takes part in the exchange only after it has written its record. `keys` are the keys of
    all images, and `batch` is the number of images per optimizer step over all processes.
    """

    def __init__(self, run: Path, keys: Sequence[str], batch: int, steps_per_pass: int) -> None:
        self.run, self.keys, self.batch, self.steps_per_pass = run, keys, batch, steps_per_pass
        self._writer: LedgerWriter | None = None

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Create this process's ledger file."""
        number = trainer.strategy.broadcast(next_start_number(self.run))
        rank, processes, step = trainer.global_rank, trainer.world_size, trainer.global_step
        self._writer = LedgerWriter(
            self.run, StartRecord(number, rank, processes, step, self.batch, self.steps_per_pass)
        )

    def on_train_batch_start(self, trainer: Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Record the images of a forward pass."""
        assert self._writer is not None
        keys = take_strings(self.keys, pl_module.batch_ids.numpy())
        self._writer.write(batch_idx // pl_module.plan.accumulate, image_hashes(keys))

    def on_save_checkpoint(self, trainer: Trainer, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Flush the records to disk, so that they are stored before the checkpoint."""
        if self._writer is not None:
            self._writer.flush()

    def teardown(self, trainer: Trainer, pl_module: Any, stage: str) -> None:
        """Close the ledger file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
