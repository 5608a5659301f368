"""The devices that models run on."""

import torch

from paucal.types import UserError

DEVICES = ("cpu", "cuda", "mps")  # torch has others, such as "meta", which computes nothing


def usable_device(device: torch.device | str) -> torch.device:
    """Return the device as torch names it."""
    try:
        device_found = torch.empty(0, device=device).device
    except (RuntimeError, AssertionError, NotImplementedError):  # torch's errors for missing devices
        device_found = None
    if device_found is None or device_found.type not in DEVICES:
        raise UserError(f"the device is {str(device)!r}, which is not usable on this machine: try cpu.")
    return device_found
