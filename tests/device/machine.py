"""The accelerator that the tests of this folder run on, and how closely its numbers must agree with the CPU's.

Without one, `PAUCAL_TEST_DEVICE=cpu pytest -m device` shows on the CPU that the tests themselves are right.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

CHOSEN = os.environ.get("PAUCAL_TEST_DEVICE", "")
PRECISIONS = ("32-true", "bf16-mixed", "16-mixed")
DTYPES = {"32-true": torch.float32, "bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}
# Relative differences between two ways to compute the same: of an order of additions, and of a rounding to 8 bits.
CLOSE = {"32-true": 2e-3, "bf16-mixed": 8e-2, "16-mixed": 2e-2}


def accelerator() -> str | None:
    """Return "cuda", "mps", what PAUCAL_TEST_DEVICE says, or None."""
    if CHOSEN:
        return CHOSEN
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else None


DEVICE = accelerator() or "cpu"
ABSENT = "there is no accelerator; PAUCAL_TEST_DEVICE=cpu runs these tests on the CPU"


def marks() -> list[Any]:
    """What every file of this folder begins with."""
    return [
        pytest.mark.device,
        pytest.mark.skipif(accelerator() is None, reason=ABSENT),
        # Libraries of devices warn of what is no fault, such as TF32 that is not used.
        pytest.mark.filterwarnings("default"),
    ]


def only(kind: str) -> Any:
    """Return the mark of a test that means nothing on other devices."""
    return pytest.mark.skipif(kind != DEVICE, reason=f"means something on {kind} only")


def require(precision: str) -> None:
    """Skip what the device cannot compute in."""
    if precision == "16-mixed" and DEVICE == "cpu":
        pytest.skip("Lightning computes in bfloat16 on a CPU that is asked for float16")
    if precision == "bf16-mixed" and DEVICE == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
        pytest.skip("this GPU has no bfloat16")


@contextmanager
def cast(precision: str) -> Iterator[None]:
    """Compute in a precision."""
    with torch.autocast(DEVICE, DTYPES[precision], enabled=precision != "32-true"):
        yield


@contextmanager
def never_waiting() -> Iterator[None]:
    """Refuse whatever makes the CPU wait for a GPU; nothing elsewhere."""
    if DEVICE != "cuda":
        yield
        return
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def apart(one: torch.Tensor, other: torch.Tensor) -> float:
    """Return the length of a difference over that of the first."""
    one, other = one.detach().cpu().double().flatten(), other.detach().cpu().double().flatten()
    return float((one - other).norm() / one.norm().clamp(min=1e-9))
