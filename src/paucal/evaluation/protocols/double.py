"""float64 wherever the numbers are."""

from torch import Tensor


def in_double(values: Tensor) -> Tensor:
    """Return values in float64, where they are or, from MPS, which has no such numbers, on the CPU."""
    return (values.cpu() if values.device.type == "mps" else values).double()
