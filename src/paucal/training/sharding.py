"""Sharding of weights, gradients and optimizer state over processes, for models too large for one device.

This uses torch's `fully_shard` (FSDP2; Zhao et al., "PyTorch FSDP", VLDB 2023): the weights of each submodule are
gathered on every process for its forward and backward pass, and freed afterwards. A sharded tensor is a `DTensor`. Only
this module handles `DTensor`s. Saved files, and the model that is evaluated and deployed, have unsharded tensors, so
checkpoints have the same format with and without sharding.
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

from paucal.distributed import broadcast_tensors


def shard(module: nn.Module, submodules: Iterable[nn.Module], mesh: DeviceMesh) -> None:
    """Shard a module's parameters in place along their first dimension, and move the module to the mesh's device.

    The weights of `submodules`, which are not nested, are gathered one submodule at a time. All other parameters stay
    gathered during the whole forward and backward pass.
    """
    for parameter in module.parameters():  # torch cannot shard weights in channels-last layout
        parameter.data = parameter.data.contiguous()
    for submodule in submodules:
        submodule.register_forward_hook(_copy_views, prepend=True)
        fully_shard(submodule, mesh=mesh)
    fully_shard(module, mesh=mesh)


def _copy_views(module: nn.Module, inputs: Any, output: Any) -> Any:
    # A later in-place operation on a view would remove the autograd hook that gathers weights for the backward pass.
    return output.clone() if isinstance(output, Tensor) and output._base is not None else output


def local_shard(tensor: Tensor) -> Tensor:
    """Return this process's shard of a tensor, without a copy; an unsharded tensor is returned unchanged."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def unshard(tensor: Tensor) -> Tensor:
    """Return the full tensor for a tensor that may be sharded; every process must call this function."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def shard_like(tensor: Tensor, pattern: Tensor) -> Tensor:
    """Shard a tensor like `pattern`, without communication; return the same tensor if `pattern` is unsharded."""
    if not isinstance(pattern, DTensor):
        return tensor
    # Clone the shard, since a view would keep the full tensor in memory.
    return distribute_tensor(tensor, pattern.device_mesh, pattern.placements, src_data_rank=None).clone()


def gather_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state dict in which sharded tensors are replaced by full tensors in the first process's main memory.

    Every process must call this function. Processes other than the first get empty tensors instead.
    """
    result: dict[str, Any] = {}
    for name, value in state.items():
        if isinstance(value, DTensor):
            full = value.full_tensor()
            value = full.cpu() if dist.get_rank() == 0 else full.new_empty(0)
        result[name] = value
    return result


def load_unsharded(module: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Load an unsharded state dict into a module that may be sharded."""
    module_state = module.state_dict()
    module.load_state_dict(
        {name: shard_like(v, module_state[name]) if name in module_state else v for name, v in state.items()}
    )


def total_norm(gradients: Sequence[Tensor]) -> Tensor:
    """Return the L2 norm of all gradients, which may be sharded; the norm is a scalar, equal on all processes."""
    norm = torch.nn.utils.get_total_norm([local_shard(gradient) for gradient in gradients])
    sharded = next((gradient for gradient in gradients if isinstance(gradient, DTensor)), None)
    if sharded is None:
        return norm
    square = norm.double().square()  # in float32, the square of a large norm would overflow
    dist.all_reduce(square, group=sharded.device_mesh.get_group())
    return square.sqrt().to(norm.dtype)


class UnshardedCopy:
    """An unsharded copy of a module that will be sharded, for evaluation and saving; in main memory between uses.

    `source` returns the module; only its weights may change between calls.
    """

    def __init__(self, source: Callable[[], nn.Module]) -> None:
        self._source = source
        self._module = copy.deepcopy(source()).requires_grad_(False).eval()

    @contextmanager
    def updated(self) -> Iterator[nn.Module]:
        """Yield the copy, on the device and with the current weights of the module; every process must call this."""
        source = self._source().state_dict()
        copy_state = self._module.to(next(iter(source.values())).device).state_dict()
        for name, value in source.items():
            copy_state[name].copy_(unshard(value))
        try:
            yield self._module
        finally:
            self._module.to("cpu")


class BufferBroadcast(Callback):
    """Broadcasts the first process's buffers after every forward pass, as DDP does.

    FSDP does not shard buffers, and checkpoints store the buffers of the first process.
    """

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Broadcast the floating-point buffers of the objective."""
        state = pl_module.objective.state_dict().values()
        broadcast_tensors(value for value in state if not isinstance(value, DTensor) and value.is_floating_point())


class ShardedStrategy(ModelParallelStrategy):
    """FSDP2 over all processes; `TrainingModule.configure_model` shards the model.

    Lightning's checkpoint format for sharded models stores the optimizer state by parameter name, adds state for
    parameters that were never updated, and can execute code when it is read. So this strategy uses the format of
    unsharded models, through the trainer's `CheckpointIO`: the first process gathers and writes the state; when a
    checkpoint is read, each process shards it.
    """

    def __init__(self, processes: int) -> None:
        super().__init__(data_parallel_size=processes, tensor_parallel_size=1, save_distributed_checkpoint=False)

    @property
    def lightning_restore_optimizer(self) -> bool:
        """Whether Lightning calls `load_optimizer_state_dict`."""
        return True

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """Return the unsharded weights on the first process, and empty tensors on the other processes."""
        assert self.lightning_module is not None
        return gather_state(self.lightning_module.state_dict())

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """Return the unsharded optimizer state on the first process, and empty tensors on the other processes."""
        state = optimizer.state_dict()
        return {**state, "state": {number: gather_state(values) for number, values in state["state"].items()}}

    def load_checkpoint(self, checkpoint_path: str | Path, weights_only: bool | None = None) -> dict[str, Any]:
        """Read a checkpoint into main memory."""
        return self.checkpoint_io.load_checkpoint(checkpoint_path)

    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        """Load the unsharded weights of a checkpoint into the sharded module."""
        assert self.lightning_module is not None
        load_unsharded(self.lightning_module, checkpoint["state_dict"])

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """Shard the optimizer state of a checkpoint and load it."""
        for optimizer, state in zip(self.optimizers, checkpoint["optimizer_states"], strict=True):
            parameters = [p for group in optimizer.param_groups for p in group["params"]]
            sharded_state = {
                number: {
                    # Values of another shape than the parameter, such as the step count, are not sharded.
                    name: shard_like(value, parameters[number])
                    if isinstance(value, Tensor) and value.shape == parameters[number].shape
                    else value
                    for name, value in values.items()
                }
                for number, values in state["state"].items()
            }
            optimizer.load_state_dict({**state, "state": sharded_state})
