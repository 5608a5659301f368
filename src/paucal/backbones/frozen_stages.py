"""The frozen stages of a network: their activations, and the network continued from stored activations."""

import posixpath
from typing import Any

import torch
from torch import Tensor, nn

from paucal.backbones.layers import stage_parameters
from paucal.backbones.probe import model_name
from paucal.types import UserError


class _StageReached(Exception):
    """Ends a forward pass at the first trained stage."""


class FrozenStages:
    """Computes the activations of a network's frozen stages, and lets the network continue from stored ones.

    A hook on the first trained stage reads its input, or replaces it. The network is then given a single image in place
    of the batch, so the frozen stages cost one image, whatever the architecture does between its input and that stage.

    Args:
        model: A timm model whose stem and first stages are frozen and stay in evaluation mode during training.
        frozen: Number of frozen stages.
    """

    def __init__(self, model: nn.Module, frozen: int) -> None:
        self._model = model
        names = [name.replace(".", "/") for name in stage_parameters(model, frozen + 1)]
        stage = posixpath.commonpath(names).replace("/", ".")
        if not stage or stage not in dict(model.named_modules()):
            raise UserError(
                f"--frozen-views is not supported for {model_name(model)}, whose stage {frozen + 1} is not a single "
                "module: leave it out."
            )
        self._image: Tensor | None = None
        self._kept: Tensor | None = None
        self._reading = False
        self._layout = torch.contiguous_format
        self._handle = model.get_submodule(stage).register_forward_pre_hook(self._enter_stage)

    @torch.no_grad()
    def activations(self, images: Tensor) -> Tensor:
        """Return the input (B, ...) of the first trained stage for (B, C, H, W) images; the last image is kept."""
        self._reading = True
        try:
            self._model(images)
        except _StageReached as reached:
            (activations,) = reached.args
        else:
            activations = None
        finally:
            self._reading = False
        if not isinstance(activations, Tensor) or len(activations) != len(images):
            raise UserError(f"--frozen-views is not supported for {model_name(self._model)}: leave it out.")
        self._image = images[-1:].clone()
        laid_out = activations.ndim == 4 and activations.is_contiguous(memory_format=torch.channels_last)
        self._layout = torch.channels_last if laid_out else torch.contiguous_format
        return activations.detach()

    def resume_from(self, activations: Tensor) -> Tensor:
        """Let the network compute the outputs of a batch from its activations, until `forget` is called.

        Returns:
            The single image (1, C, H, W) to give to the network in place of the batch.
        """
        if self._image is None:
            raise RuntimeError("no activations were computed")
        self._kept = activations.contiguous(memory_format=self._layout)
        return self._image

    def forget(self) -> None:
        """Let the network compute everything from images again."""
        self._kept = None

    def close(self) -> None:
        """Remove the hook."""
        self._handle.remove()

    def _enter_stage(self, module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
        if self._reading:
            raise _StageReached(inputs[0] if len(inputs) == 1 else None)
        return None if self._kept is None else (self._kept,)
