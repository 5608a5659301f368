"""What an attention layer was called with."""

from typing import Any, NamedTuple

from torch import nn


class Call(NamedTuple):
    """What a layer and the block around it were called with.

    Attributes:
        layer: the attention layer.
        block: the module that holds it.
        inputs: positional arguments of the layer.
        block_inputs: positional arguments of the block.
    """

    layer: nn.Module
    block: nn.Module
    inputs: tuple[Any, ...]
    block_inputs: tuple[Any, ...]
