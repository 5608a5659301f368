"""Convert values to float32 or float64 for computing losses, independently of the network's precision.

Autocast alone does not ensure this precision. The functions that autocast computes in float32 depend on the device
(sums on CUDA, but not on the CPU), and matrix products are computed in half precision on every device.
"""

import torch
from torch import Tensor


def at_least_float32(values: Tensor) -> Tensor:
    """Return the values in float32; values in float64 are returned unchanged.

    Example:
        >>> [at_least_float32(torch.ones(1, dtype=dtype)).dtype for dtype in (torch.float16, torch.float64)]
        [torch.float32, torch.float64]
    """
    return values.to(torch.promote_types(values.dtype, torch.float32))
