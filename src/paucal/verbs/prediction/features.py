"""The features of images, read while a model classifies them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from paucal.backbones.layers import classifier_modules
from paucal.evaluation.deployed import Deployed
from paucal.evaluation.tta import MirrorAveraged
from paucal.types import UserError


@contextmanager
def features_of_calls(model: Deployed) -> Iterator[Callable[[], Tensor]]:
    """Keep what a model's classifier is given while the block goes on; of a model without one, its output.

    These are the features that any head fitted to the frozen network sees. Of a model that looks at an image and its
    mirror image they are the mean of both.

    Yields:
        A function that returns the (B, D) float32 features of the images since it was last called, on the CPU.

    Raises:
        UserError: the model shows nothing of its inside, or its classifier is given something other than vectors.
    """
    seen: list[Tensor] = []
    handle = _hook(_network(model.module), model, seen)

    def take() -> Tensor:
        if not seen:
            raise RuntimeError("the classifier was not called")
        found = torch.stack([_vectors(one) for one in seen]).mean(0)
        seen.clear()
        return found

    try:
        yield take
    finally:
        handle.remove()


def _network(module: nn.Module) -> nn.Module:
    return module.module if isinstance(module, MirrorAveraged) else module


def _hook(network: nn.Module, model: Deployed, seen: list[Tensor]) -> RemovableHandle:
    def keep_inputs(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        seen.append(inputs[0])

    def keep_output(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        seen.append(output)

    if next(network.parameters(), None) is None:
        raise UserError("an ONNX model shows nothing of its inside, so it has no features: give the run instead.")
    if not model.classes:
        return network.register_forward_hook(keep_output)
    names = classifier_modules(network)
    if not names:
        raise UserError(f"{model.card.backbone.name} has no classifier that features could be read before.")
    # The first is that of the class token; others, of tokens or of a teacher, are given other things.
    return network.get_submodule(names[0]).register_forward_pre_hook(keep_inputs)


def _vectors(found: Tensor) -> Tensor:
    """Return (B, D) of (B, D) or (B, D, 1, 1)."""
    vectors = found.flatten(1) if found.ndim == 4 and tuple(found.shape[2:]) == (1, 1) else found
    if vectors.ndim != 2:
        raise UserError(f"this model's classifier is given {tuple(found.shape)} and no vector for each image.")
    return vectors.detach().float().cpu()
