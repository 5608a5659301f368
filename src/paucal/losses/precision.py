"""The precision of losses: float32 or better, whatever the precision of the network.

Autocast is no substitute. Which functions it computes in float32 differs between devices (a sum on CUDA, but not on the
CPU), and it computes matrix products in half precision everywhere.
"""

import torch
from torch import Tensor


def precise(values: Tensor) -> Tensor:
    """Return values in float32, or unchanged if they are more precise.

    Example:
        >>> precise(torch.ones(1, dtype=torch.float16)).dtype, precise(torch.ones(1, dtype=torch.float64)).dtype
        (torch.float32, torch.float64)
    """
    return values.to(torch.promote_types(values.dtype, torch.float32))
