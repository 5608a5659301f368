"""A limit on how long a process waits for other processes, so that the run ends soon after one of them hangs."""

from datetime import timedelta
from typing import Any

import torch.distributed as dist
from lightning.pytorch import Callback, Trainer
from torch.distributed import distributed_c10d


class ProcessGroupTimeout(Callback):
    """Limits the wait for other processes during training.

    After training, torch's default limit applies again, since the first process may then work for a long time while the
    other processes wait.
    """

    def __init__(self, seconds: float) -> None:
        self.limit = timedelta(seconds=seconds)

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Set the limit."""
        _set_timeout(self.limit)

    def on_train_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Restore torch's default limit."""
        if dist.is_initialized():
            # The default depends on the backend: it is shorter for NCCL.
            _set_timeout(distributed_c10d._get_default_timeout(dist.get_backend()))


def _set_timeout(limit: timedelta) -> None:
    if dist.is_initialized():
        # Before torch 2.15, `set_timeout` was a private function with another name.
        set_timeout = getattr(dist, "set_timeout", None) or distributed_c10d._set_pg_timeout
        set_timeout(limit)
