"""A moving average of the deployable weights.

Lightning's own callback averages integer buffers, copies the whole module and swaps weights before a late save;
this one follows the deployable module only, averages float entries and copies all others.
"""

import copy
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from torch import nn

from paucal.training.sharding import gathered, load_whole, piece, shard


class MovingAverage(Callback):
    """Keeps `average = decay * average + (1 - decay) * weights` after every optimizer step.

    The decay is warmed up as (1 + t) / (10 + t), t counting updates, so that the first random weights are soon
    forgotten; `decay` is its ceiling.
    """

    def __init__(self, module: nn.Module, decay: float) -> None:
        if not 0 <= decay < 1:
            raise ValueError(f"decay must be at least 0 and below 1, got {decay}")
        self.source = module
        self.decay = decay
        self.updates = 0
        self.module = copy.deepcopy(module).requires_grad_(False).eval()

    @torch.no_grad()
    def update(self) -> None:
        """Update the average with the current weights."""
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        ours = {name: piece(value) for name, value in self.module.state_dict().items()}
        theirs = {name: piece(value) for name, value in self.source.state_dict().items()}
        floats = [name for name, value in ours.items() if value.is_floating_point()]
        torch._foreach_lerp_(  # pyright: ignore[reportPrivateImportUsage]
            [ours[name] for name in floats], [theirs[name] for name in floats], 1 - decay
        )
        for name in ours.keys() - set(floats):
            ours[name].copy_(theirs[name])
        self.updates += 1

    def on_fit_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Move the average to the device of the weights, sharded as they are."""
        if pl_module.mesh is None:
            self.module.to(pl_module.device)
        else:
            shard(self.module, (), pl_module.mesh)

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {"updates": self.updates, "average": gathered(self.module.state_dict())}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state of a checkpoint."""
        self.updates = state_dict["updates"]
        load_whole(self.module, state_dict["average"])

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Update the average after every optimizer step."""
        if (batch_idx + 1) % pl_module.plan.accumulate == 0:
            self.update()
