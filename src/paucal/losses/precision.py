"""Computes losses in float32 or better, whatever the precision of the network.

Autocast does not ensure this. Which functions it computes in float32 depends on the device (sums on CUDA, but not on
the CPU), and it computes matrix products in half precision on every device.
"""

import torch
from torch import Tensor


def precise(values: Tensor) -> Tensor:
    """Return the values in float32, or unchanged if they are in float64.

    Example:
        >>> precise(torch.ones(1, dtype=torch.float16)).dtype, precise(torch.ones(1, dtype=torch.float64)).dtype
        (torch.float32, torch.float64)
    """
    return values.to(torch.promote_types(values.dtype, torch.float32))
