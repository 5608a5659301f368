"""Weights, gradients and optimizer state sharded over processes, for models too large for one device.

This is torch's `fully_shard` (FSDP2; Zhao et al., "PyTorch FSDP", VLDB 2023): the whole weights of a part of the model
are gathered for its forward and backward pass, and dropped afterwards. torch keeps a sharded tensor as a `DTensor`,
which only this file handles: states in files, and the model that is evaluated and deployed, are unsharded, so
checkpoints have the same form with and without sharding.
"""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer

from paucal.distributed import take_from_first


def shard(module: nn.Module, parts: Iterable[nn.Module], mesh: DeviceMesh) -> None:
    """Shard a module's parameters in place along their first dimension; it moves to the device of the mesh.

    Args:
        module: Module that is called as a whole.
        parts: Modules within it, none inside another, that are gathered one at a time; parameters outside of them are
            gathered for the whole forward and backward pass.
        mesh: One-dimensional mesh of the processes.
    """
    for parameter in module.parameters():  # torch cannot shard weights in channels-last layout
        parameter.data = parameter.data.contiguous()
    for part in parts:
        part.register_forward_hook(_copy_views, prepend=True)
        fully_shard(part, mesh=mesh)
    fully_shard(module, mesh=mesh)


def _copy_views(module: nn.Module, inputs: Any, output: Any) -> Any:
    # An in-place operation on a view would drop the hook that gathers the weights for the backward pass.
    return output.clone() if isinstance(output, Tensor) and output._base is not None else output


def piece(tensor: Tensor) -> Tensor:
    """Return this process's shard of a tensor, in the same memory; the whole of an unsharded one."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole(tensor: Tensor) -> Tensor:
    """Return the unsharded tensor; every process must call this."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def cut_like(tensor: Tensor, pattern: Tensor) -> Tensor:
    """Shard an unsharded tensor like another one, without communication."""
    if not isinstance(pattern, DTensor):
        return tensor
    # Copied, since a view would keep the whole tensor in memory.
    return distribute_tensor(tensor, pattern.device_mesh, pattern.placements, src_data_rank=None).clone()


def gather_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state with unsharded tensors in the main memory of the first process.

    Every process must call this; all but the first get empty tensors in their place.
    """
    result: dict[str, Any] = {}
    for name, value in state.items():
        if isinstance(value, DTensor):
            full = value.full_tensor()
            value = full.cpu() if dist.get_rank() == 0 else full.new_empty(0)
        result[name] = value
    return result


def load_whole(module: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Load an unsharded state into a module that may be sharded.

    Raises:
        RuntimeError: The state belongs to another module.
    """
    module_state = module.state_dict()
    module.load_state_dict(
        {name: cut_like(v, module_state[name]) if name in module_state else v for name, v in state.items()}
    )


def total_norm(gradients: Sequence[Tensor]) -> Tensor:
    """Return the L2 norm of sharded gradients, on the device and equal on all processes."""
    norm = torch.nn.utils.get_total_norm([piece(gradient) for gradient in gradients])
    cut = next((gradient for gradient in gradients if isinstance(gradient, DTensor)), None)
    if cut is None:
        return norm
    square = norm.double().square()  # a large float32 would overflow
    dist.all_reduce(square, group=cut.device_mesh.get_group())
    return square.sqrt().to(norm.dtype)


class WholeCopy:
    """An unsharded copy of a module that will be sharded, filled for evaluation and saving.

    Between uses it is kept in main memory.

    Args:
        source: Function that returns the module, whose weights, but nothing else, may change between calls.
    """

    def __init__(self, source: Callable[[], nn.Module]) -> None:
        self._source = source
        self._module = copy.deepcopy(source()).requires_grad_(False).eval()

    @contextmanager
    def filled(self) -> Iterator[nn.Module]:
        """Return the copy with the current weights on their device; every process must call this."""
        source = self._source().state_dict()
        copy_state = self._module.to(next(iter(source.values())).device).state_dict()
        for name, value in source.items():
            copy_state[name].copy_(whole(value))
        try:
            yield self._module
        finally:
            self._module.to("cpu")


class EqualBuffers(Callback):
    """Broadcasts the first process's buffers after every forward pass, as DDP does for batch norms.

    Buffers are not sharded, and those of the first process are saved.
    """

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Broadcast the buffers."""
        state = pl_module.objective.state_dict().values()
        take_from_first(value for value in state if not isinstance(value, DTensor) and value.is_floating_point())


class ShardedStrategy(ModelParallelStrategy):
    """FSDP2 over all processes; `TrainingModule.configure_model` shards the model.

    Lightning's own file keeps the optimizer's state by parameter name, invents state for parameters that were never
    updated, and may run code when it is read. This strategy uses the same file as all others, through the trainer's
    `CheckpointIO`: the first process gathers the state, and each process shards what it reads.
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
        return gather_state(self.lightning_module.state_dict())

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """Return the unsharded optimizer state on the first process."""
        state = optimizer.state_dict()
        return {**state, "state": {number: gather_state(values) for number, values in state["state"].items()}}

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
                number: {name: _shard_moment(value, parameters[number]) for name, value in values.items()}
                for number, values in state["state"].items()
            }
            optimizer.load_state_dict({**state, "state": pieces})


def _shard_moment(value: Any, parameter: Tensor) -> Any:
    """Shard the optimizer's state per entry of a parameter, but not its step count."""
    return cut_like(value, parameter) if isinstance(value, Tensor) and value.shape == parameter.shape else value
