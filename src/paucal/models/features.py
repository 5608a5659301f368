"""Frozen features: the inputs of a trained model's classifier, image by image."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from paucal.backbones.layers import classifier_modules
from paucal.backbones.layout import Size
from paucal.backbones.probe import model_name
from paucal.backbones.stage_classifier import StagePool, last_stage_maps
from paucal.models.trained import TrainedModel, bare
from paucal.types import UserError


def linear_classifier(model: nn.Module) -> nn.Linear | None:
    """Return the single linear layer that computes a model's logits; None if another layer computes them."""
    names = classifier_modules(model)
    layer = model.get_submodule(names[0]) if len(names) == 1 else None
    return layer if isinstance(layer, nn.Linear) and layer.bias is not None else None


class ClassifierInputs(nn.Module):
    """Returns the (B, D) inputs of a model's classifier instead of its logits.

    A head fitted to them will see exactly these inputs, whatever a family does between its last grid and its head.

    Args:
        model: A timm model; a hook stays on it until `close`.
        classifies: Whether the model has a classifier; without one, its output is taken.
    """

    def __init__(self, model: nn.Module, classifies: bool = True) -> None:
        super().__init__()
        self.model = model
        self._kept: list[Tensor] | None = None
        if not classifies:
            self._handle = model.register_forward_hook(self._keep_output)
            return
        names = classifier_modules(model)
        if not names:
            raise UserError(f"{model_name(model)} has no classifier that features could be read before.")
        # The first classifier is that of the class token; classifiers of tokens or of a teacher have other inputs.
        classifier = model.get_submodule(names[0])
        self._handle = classifier.register_forward_pre_hook(self._keep_inputs)

    def forward(self, images: Tensor) -> Tensor:
        """Return (B, D) for (B, C, H, W) images."""
        with self.calls() as take:
            self.model(images)
            return take()

    @contextmanager
    def calls(self) -> Iterator[Callable[[], Tensor]]:
        """Record the inputs of the classifier inside a `with` block.

        Yields:
            A function that returns the (B, D) float32 features since it was last called: the mean over the calls of
            the model, for instance over a call for an image and one for its mirror image.
        """
        self._kept = []
        try:
            yield self._take_inputs
        finally:
            self._kept = None

    def close(self) -> None:
        """Remove the hook."""
        self._handle.remove()

    def _keep_inputs(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if self._kept is not None:
            self._kept.append(inputs[0])

    def _keep_output(self, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        self._keep_inputs(module, (output,))

    def _take_inputs(self) -> Tensor:
        if not self._kept:
            raise RuntimeError("the classifier was not called")
        features = torch.stack([_flatten_features(inputs) for inputs in self._kept]).mean(0)
        self._kept.clear()
        return features


class StagedInputs(ClassifierInputs):
    """Returns the (B, D + S) inputs of a `StageClassifier`: those of the model's own classifier come first."""

    def __init__(self, model: nn.Module, image_size: Size) -> None:
        super().__init__(model)
        self._pool = StagePool(model, last_stage_maps(model, image_size))

    def forward(self, images: Tensor) -> Tensor:
        """Return (B, D + S) for (B, C, H, W) images."""
        return self._pool.join(super().forward(images))

    def close(self) -> None:
        """Remove the hooks."""
        self._pool.close()
        super().close()


@contextmanager
def features_of_calls(model: TrainedModel) -> Iterator[Callable[[], Tensor]]:
    """Record a model's features while it classifies; without a classifier, its output is recorded.

    Yields:
        A function that returns the (B, D) float32 features of the images since it was last called, on the CPU. For a
        model that averages over an image and its mirror image they are the mean of both.
    """
    network = bare(model.module)
    if next(network.parameters(), None) is None:
        raise UserError("an ONNX model gives no access to features: give the run instead.")
    inputs = ClassifierInputs(network, classifies=bool(model.classes))
    try:
        with inputs.calls() as take:
            yield lambda: take().cpu()
    finally:
        inputs.close()


def _flatten_features(features: Tensor) -> Tensor:
    """Return (B, D) of (B, D) or (B, D, 1, 1)."""
    vectors = features.flatten(1) if features.ndim == 4 and tuple(features.shape[2:]) == (1, 1) else features
    if vectors.ndim != 2:
        raise UserError(
            f"this model's classifier gets input of shape {tuple(features.shape)}, expected one vector per image."
        )
    return vectors.detach().float()
