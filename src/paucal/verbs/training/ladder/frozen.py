"""What a trained network's classifier is given, image by image."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from paucal.backbones.layers import classifier_modules
from paucal.evaluation.predictions import predict_all
from paucal.models.preprocessing import Preprocessing
from paucal.settings.groups import JobSettings
from paucal.verbs.run.images import Prepared
from paucal.verbs.run.loaders import eval_loader


def linear_classifier(model: nn.Module) -> nn.Linear | None:
    """Return the one linear layer that gives a model's logits; None where something else does."""
    names = classifier_modules(model)
    found = model.get_submodule(names[0]) if len(names) == 1 else None
    return found if isinstance(found, nn.Linear) and found.bias is not None else None


class ClassifierInputs(nn.Module):
    """Gives the (B, D) inputs of a model's linear classifier in place of its logits.

    These are exactly what a head fitted to them will see, whatever a family does between its last grid and its head.

    Args:
        model: with a linear classifier.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self._found: Tensor | None = None
        classifier = linear_classifier(model)
        if classifier is None:
            raise ValueError("the model has no linear classifier")
        self._handle = classifier.register_forward_pre_hook(self._keep)

    def _keep(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        self._found = inputs[0]

    def forward(self, images: Tensor) -> Tensor:
        """Return (B, D) for (B, C, H, W) images."""
        self.model(images)
        found, self._found = self._found, None
        if found is None:
            raise RuntimeError("the classifier was not called")
        return found

    def close(self) -> None:
        """Take the hook away."""
        self._handle.remove()


def frozen_features(
    model: nn.Module,
    prepared: Prepared,
    indices: NDArray[np.int64],
    preprocess: Preprocessing,
    settings: JobSettings,
    progress: Callable[[int, int], None] | None = None,
) -> Tensor:
    """Return (N, D) float32 features on the CPU, in the order of `indices`.

    Args:
        model: on the CPU or where it computes; it goes to the run's device.
        prepared: the images.
        indices: (N,) of them.
        preprocess: how they are prepared.
        settings: device and loader processes.
        progress: called with (images done, N).
    """
    device = settings.device or "cpu"
    reader = ClassifierInputs(model.to(device))
    try:
        loader = eval_loader(prepared, indices, preprocess, settings)
        found = predict_all(
            reader, loader, device, progress=None if progress is None else lambda done: progress(done, len(indices))
        )
    finally:
        reader.close()
    rank = torch.empty(len(indices), dtype=torch.int64)
    rank[torch.from_numpy(np.argsort(indices, kind="stable"))] = torch.arange(len(indices))
    return found.logits[rank]
