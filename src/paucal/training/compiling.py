"""Errors of torch.compile as a UserError."""

from collections.abc import Iterator
from contextlib import contextmanager

from paucal.training.memory import is_out_of_memory
from paucal.training.plan import Plan
from paucal.types import UserError
from paucal.wording import shortened

COMPILERS = ("torch._dynamo", "torch._inductor", "torch._functorch", "triton")
MOST_REASON = 200  # characters


def is_of_compiler(problem: BaseException | None) -> bool:
    """Return whether an exception, or one that led to it, is of torch's compilers."""
    seen: set[int] = set()
    while problem is not None and id(problem) not in seen:
        if any(kind.__module__.startswith(COMPILERS) for kind in type(problem).__mro__):
            return True
        seen.add(id(problem))
        problem = problem.__cause__ or problem.__context__
    return False


@contextmanager
def compile_advice(plan: Plan) -> Iterator[None]:
    """Turn a failed compilation into a UserError that advises to leave --compile out.

    Raises:
        UserError: torch could not compile the model.
    """
    try:
        yield
    except Exception as problem:
        if plan.hardware.compile_backend is None or is_out_of_memory(problem) or not is_of_compiler(problem):
            raise
        raise UserError(
            f"--compile failed with {_reason(problem)}: that is torch's compiler, not your data; leave --compile out."
        ) from problem


def _reason(problem: Exception) -> str:
    """Return the type of an error and the first line of its text, without advice for developers of the compiler."""
    inner = getattr(problem, "inner_exception", problem)
    lines = [line.strip() for line in str(inner).splitlines() if line.strip()]
    text = shortened(lines[0], MOST_REASON) if lines else "no message"
    return f"{type(inner).__name__} ({text.rstrip('.:')})"
