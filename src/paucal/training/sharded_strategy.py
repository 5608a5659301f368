"""Lightning's strategy for sharded models, with unsharded checkpoints."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch.strategies import ModelParallelStrategy
from torch import Tensor
from torch.optim import Optimizer

from paucal.training.sharding import cut_like, gathered, load_whole


class ShardedStrategy(ModelParallelStrategy):
    """FSDP2 over all processes; `TrainingModule.configure_model` shards the model.

    Lightning's own file keeps the optimizer's state by parameter name, makes up state for parameters that were never
    updated, and is read without regard to what it may hold. This one writes and reads the file of every other strategy,
    through the trainer's `CheckpointIO`: gathered by the first process, cut again by each for itself.

    Args:
        processes: Number of processes on all machines.
    """

    def __init__(self, processes: int) -> None:
        super().__init__(data_parallel_size=processes, tensor_parallel_size=1, save_distributed_checkpoint=False)

    @property
    def lightning_restore_optimizer(self) -> bool:
        """Whether Lightning asks for `load_optimizer_state_dict`."""
        return True

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """Return the unsharded weights on the first process."""
        assert self.lightning_module is not None
        return gathered(self.lightning_module.state_dict())

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """Return the unsharded optimizer state on the first process."""
        state = optimizer.state_dict()
        return {**state, "state": {number: gathered(values) for number, values in state["state"].items()}}

    def load_checkpoint(self, checkpoint_path: str | Path, weights_only: bool | None = None) -> dict[str, Any]:
        """Read a checkpoint into main memory."""
        return self.checkpoint_io.load_checkpoint(checkpoint_path)

    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        """Load weights."""
        assert self.lightning_module is not None
        load_whole(self.lightning_module, checkpoint["state_dict"])

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """Load the optimizer state."""
        for optimizer, state in zip(self.optimizers, checkpoint["optimizer_states"], strict=True):
            parameters = [p for group in optimizer.param_groups for p in group["params"]]
            pieces = {
                number: {name: _cut_moment(value, parameters[number]) for name, value in values.items()}
                for number, values in state["state"].items()
            }
            optimizer.load_state_dict({**state, "state": pieces})


def _cut_moment(value: Any, parameter: Tensor) -> Any:
    """Shard the optimizer's state per entry of a parameter, but not its step count."""
    return cut_like(value, parameter) if isinstance(value, Tensor) and value.shape == parameter.shape else value
