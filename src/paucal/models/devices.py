"""The devices that models run on."""

from contextlib import suppress

import torch

from paucal.types import UserError

DEVICES = ("cpu", "cuda", "mps")  # torch accepts further devices, such as "meta", which computes no values


def usable_device(device: torch.device | str) -> torch.device:
    """Return the torch device, with its index if it has one; raise a UserError if the device cannot be used."""
    with suppress(RuntimeError, AssertionError, NotImplementedError):  # torch's errors for missing devices
        usable = torch.empty(0, device=device).device
        if usable.type in DEVICES:
            return usable
    raise UserError(f"the device {str(device)!r} cannot be used on this machine: try cpu.")
