"""Gradient checkpoints for blocks with batch norms."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from timm.models import checkpoint
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm


class _Contexts:
    """What stands around the two passes: nothing, and `untouched` norms."""

    def __init__(self, norms: Sequence[_BatchNorm]) -> None:
        self.norms = norms

    def __call__(self) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return nullcontext(), untouched(self.norms)


def recompute(block: nn.Module, *arguments: Any) -> Any:
    """Run a block and, in the backward pass, run it again instead of keeping what it computed.

    The second pass of a batch norm in training would move its running statistics again, so that a model with
    checkpoints would end with other statistics than one without; here it does not. (Compiled code needs no such care:
    there a buffer changes once.)
    """
    norms = [part for part in block.modules() if isinstance(part, _BatchNorm) and part.track_running_stats]
    if not norms or torch.compiler.is_compiling():
        return checkpoint(block, *arguments)
    return checkpoint(block, *arguments, use_reentrant=False, context_fn=_Contexts(norms))


@contextmanager
def untouched(norms: Sequence[_BatchNorm]) -> Iterator[None]:
    """Let batch norms change copies of their running statistics instead of the statistics."""
    own = [dict(norm.named_buffers(recurse=False)) for norm in norms]
    try:
        for norm, buffers in zip(norms, own, strict=True):
            for name, buffer in buffers.items():
                setattr(norm, name, buffer.clone())
        yield
    finally:
        for norm, buffers in zip(norms, own, strict=True):
            for name, buffer in buffers.items():
                setattr(norm, name, buffer)
