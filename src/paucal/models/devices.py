"""The devices that models run on."""

from contextlib import suppress

import torch

from paucal.types import UserError

DEVICES = ("cpu", "cuda", "mps")  # torch has others, such as "meta", which computes nothing


def usable_device(device: torch.device | str) -> torch.device:
    """Return the device as torch names it."""
    with suppress(RuntimeError, AssertionError, NotImplementedError):  # torch's errors for missing devices
        usable = torch.empty(0, device=device).device
        if usable.type in DEVICES:
            return usable
    raise UserError(f"the device is {str(device)!r}, which is not usable on this machine: try cpu.")
