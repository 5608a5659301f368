"""Advice for out-of-memory and torch.compile errors, and the search for the largest batch size that fits."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from paucal.memory import is_out_of_memory
from paucal.objectives.base import Objective
from paucal.training.plan import Plan
from paucal.training.trial_step import forward_and_backward, restored_state
from paucal.types import Batch, UserError
from paucal.wording import shorten

# Memory to reserve, as a multiple of the memory of the weights: AdamW's two moments and the moving average. The trial
# steps themselves allocate the weights and the gradients.
RESERVED_COPIES = 3
# Packages of torch.compile: an exception whose type is defined in one of these is a compiler error
COMPILER_MODULES = ("torch._dynamo", "torch._inductor", "torch._functorch", "triton")
MAX_REASON_CHARACTERS = 200  # maximum length of an error's text within a message


@contextmanager
def advise_on_memory_errors(plan: Plan) -> Iterator[None]:
    """Raise a UserError with advice in place of an out-of-memory error."""
    try:
        yield
    except (RuntimeError, MemoryError) as problem:
        if not is_out_of_memory(problem):
            raise
        precision = "" if plan.hardware.precision != "32-true" else ", use --precision bf16-mixed"
        raise UserError(
            f"the memory of the device ({plan.hardware.accelerator}) is too small: use half the --batch-size "
            f"with --accumulate {2 * plan.accumulate} (the same effective batch), or use --batch-size auto, or "
            f"lower --img-size{precision}. Files that the run has already saved remain in the run folder."
        ) from problem


def largest_batch(
    objective: Objective,
    make_batch: Callable[[int], Batch],
    sizes: Sequence[int],
    device: torch.device,
    precision: str = "32-true",
) -> int:
    """Return the largest batch size with which a training step fits in a device's memory.

    Each size is tried with a forward and backward pass, while memory for the optimizer and the moving average is
    reserved. Afterwards, the objective is on the CPU and has its initial state.

    Args:
        objective: Objective to train.
        make_batch: Function that returns a batch of the given size.
        sizes: Batch sizes to try, largest first.
        device: Device to train on.
        precision: Lightning's name of the precision.
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


def is_compiler_error(problem: BaseException | None) -> bool:
    """Return whether an exception, or one of its causes, comes from `torch.compile`."""
    seen_ids: set[int] = set()
    while problem is not None and id(problem) not in seen_ids:
        if any(base.__module__.startswith(COMPILER_MODULES) for base in type(problem).__mro__):
            return True
        seen_ids.add(id(problem))
        problem = problem.__cause__ or problem.__context__
    return False


@contextmanager
def advise_on_compile_errors(plan: Plan) -> Iterator[None]:
    """Raise a UserError that advises the user to remove --compile if the compilation failed."""
    try:
        yield
    except Exception as problem:
        if plan.hardware.compile_backend is None or is_out_of_memory(problem) or not is_compiler_error(problem):
            raise
        raise UserError(
            f"--compile failed with {_error_reason(problem)}: the error is in torch's compiler, not in your data; "
            "remove --compile."
        ) from problem


def _error_reason(problem: Exception) -> str:
    """Return the type of an error and the first line of its text; later lines are advice for torch's developers."""
    inner = getattr(problem, "inner_exception", problem)
    lines = [line.strip() for line in str(inner).splitlines() if line.strip()]
    text = shorten(lines[0], MAX_REASON_CHARACTERS) if lines else "no message"
    return f"{type(inner).__name__} ({text.rstrip('.:')})"
