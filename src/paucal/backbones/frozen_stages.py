"""Computes the activations of a network's frozen stages, and runs the network from stored activations."""

import posixpath
from typing import Any

import torch
from torch import Tensor, nn

from paucal.backbones.layers import stage_parameters
from paucal.backbones.probe import model_name
from paucal.types import UserError


class _StageReached(Exception):
    """Ends a forward pass at the first trained stage; the exception's argument is the stage's input."""


class FrozenStages:
    """Computes the activations of a network's frozen stages, and lets the network continue from stored activations.

    A hook on the first trained stage reads the stage's input, or replaces this input by stored activations. In the
    second case, the network is called with a single image instead of the batch, so that the frozen stages process only
    one image. This works for any architecture. The stem and the first `n_frozen` stages of the model must be frozen and
    in evaluation mode during training.
    """

    def __init__(self, model: nn.Module, n_frozen: int) -> None:
        self._model = model
        names = [name.replace(".", "/") for name in stage_parameters(model, n_frozen + 1)]
        stage = posixpath.commonpath(names).replace("/", ".")
        if not stage or stage not in dict(model.named_modules()):
            raise UserError(
                f"--frozen-views is not supported for {model_name(model)}, whose stage {n_frozen + 1} is not a single "
                "module: remove --frozen-views."
            )
        self._image: Tensor | None = None
        self._stored: Tensor | None = None
        self._is_reading = False
        self._memory_format = torch.contiguous_format
        self._handle = model.get_submodule(stage).register_forward_pre_hook(self._enter_stage)

    @torch.no_grad()
    def activations(self, images: Tensor) -> Tensor:
        """Return the (B, ...) input of the first trained stage for (B, C, H, W) images.

        The last image is stored for `resume_from`.
        """
        self._is_reading = True
        try:
            self._model(images)
        except _StageReached as reached:
            (activations,) = reached.args
        else:
            activations = None
        finally:
            self._is_reading = False
        if not isinstance(activations, Tensor) or len(activations) != len(images):
            raise UserError(f"--frozen-views is not supported for {model_name(self._model)}: remove the option.")
        self._image = images[-1:].clone()
        is_channels_last = activations.ndim == 4 and activations.is_contiguous(memory_format=torch.channels_last)
        self._memory_format = torch.channels_last if is_channels_last else torch.contiguous_format
        return activations.detach()

    def resume_from(self, activations: Tensor) -> Tensor:
        """Let the network continue from the activations of a batch, until `forget_activations` is called.

        Return the single image (1, C, H, W) with which to call the network instead of the batch.
        """
        if self._image is None:
            raise RuntimeError("no image is stored: call `activations` first")
        self._stored = activations.contiguous(memory_format=self._memory_format)
        return self._image

    def forget_activations(self) -> None:
        """Let the network compute all stages from images again."""
        self._stored = None

    def close(self) -> None:
        """Remove the hook."""
        self._handle.remove()

    def _enter_stage(self, module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
        if self._is_reading:
            raise _StageReached(inputs[0] if len(inputs) == 1 else None)
        return None if self._stored is None else (self._stored,)
