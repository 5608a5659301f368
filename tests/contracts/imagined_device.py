"""An accelerator that is not there: torch's fake tensors know their device and refuse to meet those of another.

Only shapes, types and devices are computed, so a machine without a GPU shows what would go wrong on one: tensors left
on the CPU, copies for which the CPU waits until the device has done all its work, and numbers that MPS does not have.
"""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

CPU = torch.device("cpu")


class Waits(TorchDispatchMode):
    """Notes the lines of paucal that make the CPU wait for the device."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.aten._to_copy.default:
            self._note(args[0], kwargs.get("device"), kwargs.get("non_blocking", False))
        elif func is torch.ops.aten.copy_.default:
            self._note(args[1], args[0].device, args[2] if len(args) > 2 else False)
        return func(*args, **kwargs)

    def _note(self, source: Tensor, target: Any, ahead: bool) -> None:
        if target is None or ahead or torch.device(target).type == source.device.type:
            return
        frames = [frame for frame in traceback.extract_stack() if "/paucal/" in frame.filename]
        self.lines.append(f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "a test")


@contextmanager
def imagined() -> Iterator[None]:
    """Make every tensor within an imagined one."""
    with FakeTensorMode():
        yield


def put(module: nn.Module, device: str) -> nn.Module:
    """Move a module to an imagined device; call it within `imagined`."""
    for part in module.modules():
        for name, value in part._parameters.items():
            if value is not None:
                part._parameters[name] = nn.Parameter(_like(value, device), requires_grad=value.requires_grad)
        for name, value in part._buffers.items():
            if value is not None:
                part._buffers[name] = _like(value, device)
    return module


def _like(value: Tensor, device: str) -> Tensor:
    return torch.empty(value.shape, dtype=value.dtype, device=device)
