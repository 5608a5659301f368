"""Forward and backward passes that only measure time or memory; the objective is restored afterwards."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor, nn

from paucal.objectives.base import Objective
from paucal.types import Batch, Progress


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
def trial_steps(objective: nn.Module, device: torch.device) -> Iterator[None]:
    """Move an objective to a device for timed steps; restore the objective and the random numbers after the block."""
    with restored_state(objective), torch.random.fork_rng(devices=[]):
        objective.to(device)
        yield
