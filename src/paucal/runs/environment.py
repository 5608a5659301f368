"""A record of where a run took place."""

import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from paucal.cores import usable_cores

PACKAGES = (
    "paucal",
    "torch",
    "torchvision",
    "timm",
    "lightning",
    "torchmetrics",
    "scikit-learn",
    "numpy",
    "pillow",
)


def describe_environment(device: str) -> dict[str, Any]:
    """Return versions, hardware and the command line as plain values for `env.json`."""
    return {
        "command": [os.path.basename(sys.argv[0]), *sys.argv[1:]],
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: _version(name) for name in PACKAGES},
        "device": device,
        "accelerator": torch.cuda.get_device_name() if device.startswith("cuda") else None,
        "cpu_cores": usable_cores(),
        "torch_threads": torch.get_num_threads(),
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
