"""Forward and backward passes that only measure time or memory; the objective is restored afterwards."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor, nn

from paucal.memory import is_out_of_memory
from paucal.objectives.base import Objective
from paucal.types import Batch, Progress, UserError

# Memory to reserve, as a multiple of the memory of the weights: AdamW's two moments and the moving average. The trial
# steps themselves allocate the weights and the gradients.
RESERVED_COPIES = 3


def forward_and_backward(objective: Objective, batch: Batch, device: torch.device, precision: str | None) -> Tensor:
    """Return the total loss of a batch on `device` after the backward pass.

    `precision` is Lightning's name of the precision; with None, the caller's autocast applies.
    """
    dtype = torch.float16 if precision == "16-mixed" else torch.bfloat16
    autocast = torch.autocast(device.type, dtype, enabled=precision != "32-true") if precision else nullcontext()
    with autocast:
        terms = objective(batch, Progress(0, 1, 1))
    terms.total.backward()
    return terms.total


@contextmanager
def restored_state(objective: nn.Module) -> Iterator[None]:
    """After the block, move an objective to the CPU, remove its gradients and restore its state."""
    initial_state = {name: value.detach().clone() for name, value in objective.state_dict().items()}
    try:
        yield
    finally:
        objective.zero_grad(set_to_none=True)
        objective.to("cpu")
        objective.load_state_dict(initial_state)


@contextmanager
def timed_steps(objective: nn.Module, device: torch.device) -> Iterator[None]:
    """Move an objective to a device for timed steps; restore the objective and the random numbers after the block."""
    with restored_state(objective), torch.random.fork_rng(devices=[]):
        objective.to(device)
        yield


def largest_batch(
    objective: Objective,
    make_batch: Callable[[int], Batch],
    sizes: Sequence[int],
    device: torch.device,
    precision: str = "32-true",
) -> int:
    """Return the largest of the batch sizes, largest first, with which a training step fits in a device's memory.

    Each size is tried with a forward and backward pass, while memory for the optimizer and the moving average is
    reserved. Afterwards, the objective is on the CPU and has its initial state. `precision` is Lightning's name.
    """
    try:
        with restored_state(objective):
            for size in sizes:
                if _batch_fits(objective, make_batch(size), device, precision):
                    return size
    finally:
        if device.type == "cuda":
            torch.cuda.empty_cache()
    smallest_batch = "1 image fits" if sizes[-1] == 1 else f"{sizes[-1]} images fit"
    raise UserError(
        f"not even {smallest_batch} in the memory of the device ({device.type}): lower --img-size or choose a smaller "
        "--model."
    )


def _batch_fits(objective: Objective, batch: Batch, device: torch.device, precision: str) -> bool:
    try:
        objective.to(device).train()
        reserved = torch.empty(RESERVED_COPIES * sum(p.numel() for p in objective.parameters()), device=device)
        forward_and_backward(objective, batch.to(device), device, precision)
        del reserved
    except (RuntimeError, MemoryError) as problem:
        if not is_out_of_memory(problem):
            raise
        return False
    finally:
        objective.zero_grad(set_to_none=True)
    return True
