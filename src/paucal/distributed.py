"""Communication between the processes of a distributed run; in a single process every function is a no-op."""

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor


def is_distributed() -> bool:
    """Return whether `torch.distributed` is initialised in this process."""
    return dist.is_available() and dist.is_initialized()


def rank() -> int:
    """Return the rank of this process; 0 if `torch.distributed` is not initialised."""
    return dist.get_rank() if is_distributed() else 0


def world_size() -> int:
    """Return the number of processes; 1 if `torch.distributed` is not initialised."""
    return dist.get_world_size() if is_distributed() else 1


@torch.no_grad()
def all_reduce_mean(tensor: Tensor) -> Tensor:
    """Return the element-wise mean of a tensor over all processes, detached from the graph.

    Every process must call this function, with a tensor of the same shape. The tensors are summed and divided, since
    Gloo, torch's CPU backend, has no averaging reduction.

    Example:
        >>> all_reduce_mean(torch.tensor([1.0, 3.0]))
        tensor([1., 3.])
    """
    reduced = tensor.detach().clone()
    if is_distributed():
        dist.all_reduce(reduced)
        reduced /= dist.get_world_size()
    return reduced


@torch.no_grad()
def broadcast_tensors(tensors: Iterable[Tensor]) -> None:
    """Overwrite tensors with the tensors of process 0; all processes must pass tensors of the same shapes."""
    if is_distributed():
        for tensor in tensors:
            dist.broadcast(tensor, src=0)
