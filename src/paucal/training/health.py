"""Watching for losses that are not numbers."""

import logging
from typing import Any

from lightning.pytorch import Callback, Trainer

from paucal.types import UserError

log = logging.getLogger("paucal")


class FiniteWatch(Callback):
    """Reads back every so many steps whether steps were skipped, names the culprit, and ends a hopeless run."""

    def __init__(self, every: int = 50) -> None:
        self.every = every
        self._seen = 0.0

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Look at the count of skipped steps, which waits for the device."""
        if trainer.global_step % self.every or (batch_idx + 1) % pl_module.plan.accumulate:
            return
        skipped = float(pl_module.meters.skipped)
        new, self._seen = skipped - self._seen, skipped
        if new <= 0:
            return
        names = ", ".join(repr(name) for name in pl_module.meters.culprits()) or "none; a gradient overflowed"
        if new >= self.every:
            raise UserError(
                f"the last {self.every} steps were all skipped because the loss or its gradient was not finite "
                f"(losses concerned: {names}): lower --lr (now {pl_module.meters.rate:.2g}), "
                "or use --precision 32-true."
            )
        log.warning("%d of the last %d steps were skipped: not finite (losses concerned: %s)", new, self.every, names)
