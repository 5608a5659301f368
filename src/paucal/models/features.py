"""Features of images: the inputs of a trained model's classifier."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from paucal.backbones.layers import classifier_modules
from paucal.backbones.layout import Size
from paucal.backbones.probe import model_name
from paucal.backbones.stage_classifier import StagePool, last_stage_poolings
from paucal.models.trained import LowerPrecision, MirrorAveraged, TrainedModel
from paucal.types import UserError


def linear_classifier(model: nn.Module) -> nn.Linear | None:
    """Return the classifier of a model if it is a single linear layer with a bias, else None."""
    names = classifier_modules(model)
    layer = model.get_submodule(names[0]) if len(names) == 1 else None
    return layer if isinstance(layer, nn.Linear) and layer.bias is not None else None


class ClassifierInputExtractor(nn.Module):
    """A module that outputs the (B, D) inputs of a model's classifier instead of the model's logits.

    A classifier that is fitted to these features gets exactly the same inputs in the model, whatever pooling or norms
    come before it. Without a classifier, the features are the model's output. A forward hook stays on the model until
    `close` is called.
    """

    def __init__(self, model: nn.Module, has_classifier: bool = True) -> None:
        super().__init__()
        self.model = model
        self._recorded: list[Tensor] | None = None
        if not has_classifier:
            self._handle = model.register_forward_hook(self._record)
            return
        names = classifier_modules(model)
        if not names:
            raise UserError(f"{model_name(model)} has no classifier whose inputs could be used as features.")
        # The first classifier reads the class token or the pooled features. Any further classifier reads the patch
        # tokens or the distillation token.
        classifier = model.get_submodule(names[0])
        self._handle = classifier.register_forward_pre_hook(self._record)

    def forward(self, images: Tensor) -> Tensor:
        """Return (B, D) features of (B, C, H, W) images."""
        with self.record() as take_features:
            self.model(images)
            return take_features()

    @contextmanager
    def record(self) -> Iterator[Callable[[], Tensor]]:
        """Yield a function that returns the (B, D) float32 features recorded since its last call.

        They are averaged over the model's forward passes (for instance, over a batch and its mirror images).
        """
        self._recorded = []
        try:
            yield self._take_features
        finally:
            self._recorded = None

    def close(self) -> None:
        """Remove the hook."""
        self._handle.remove()

    def _record(self, module: nn.Module, inputs: tuple[Tensor, ...], *output: Tensor) -> None:
        if self._recorded is not None:
            self._recorded.append(output[0] if output else inputs[0])

    def _take_features(self) -> Tensor:
        if not self._recorded:
            raise RuntimeError("the classifier was not called")
        vectors = [x.flatten(1) if x.ndim == 4 and tuple(x.shape[2:]) == (1, 1) else x for x in self._recorded]
        for inputs in vectors:
            if inputs.ndim != 2:
                raise UserError(
                    f"the input of this model's classifier has shape {tuple(inputs.shape)}, expected one vector per "
                    "image."
                )
        self._recorded.clear()
        return torch.stack([inputs.detach().float() for inputs in vectors]).mean(0)


class StageClassifierInputExtractor(ClassifierInputExtractor):
    """A module that outputs the (B, D + S) inputs of a `StageClassifier`.

    These are the D inputs of the model's own classifier, followed by S pooled outputs of the last stages.
    """

    def __init__(self, model: nn.Module, image_size: Size) -> None:
        super().__init__(model)
        self._pool = StagePool(model, last_stage_poolings(model, image_size))

    def forward(self, images: Tensor) -> Tensor:
        """Return (B, D + S) features of (B, C, H, W) images."""
        return self._pool.join(super().forward(images))

    def close(self) -> None:
        """Remove the hooks."""
        self._pool.close()
        super().close()


@contextmanager
def record_features(model: TrainedModel) -> Iterator[Callable[[], Tensor]]:
    """Yield a function that returns the (B, D) features since its last call, in float32 on the CPU.

    The features are the inputs of the classifier or, if the model has no classifier, the outputs of the model. For a
    model that averages over an image and its mirror image, the features are averaged in the same way.
    """
    network = model.module
    while isinstance(network, MirrorAveraged | LowerPrecision):
        network = network.module
    if next(network.parameters(), None) is None:
        raise UserError("features cannot be read from an ONNX model: give the run of the model instead.")
    classifier_inputs = ClassifierInputExtractor(network, has_classifier=bool(model.classes))
    try:
        with classifier_inputs.record() as take_features:
            yield lambda: take_features().cpu()
    finally:
        classifier_inputs.close()
