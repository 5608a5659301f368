"""Features of a frozen network: the inputs of its linear classifier."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from paucal.backbones.layers import classifier_modules
from paucal.evaluation.deployed import Preprocessing
from paucal.evaluation.predictions import predict_all
from paucal.settings.groups import JobSettings
from paucal.verbs.run.images import SplitImages
from paucal.verbs.run.loaders import eval_loader


def linear_classifier(model: nn.Module) -> nn.Linear | None:
    """Return the single linear layer that computes a model's logits; None for any other classifier."""
    names = classifier_modules(model)
    found = model.get_submodule(names[0]) if len(names) == 1 else None
    return found if isinstance(found, nn.Linear) and found.bias is not None else None


class ClassifierInputs(nn.Module):
    """Returns the (B, D) inputs of a model's linear classifier instead of its logits.

    A head fitted to them sees exactly these features, whatever a model does between its last grid and its head.

    Args:
        model: Model with a linear classifier.
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
        """Remove the hook."""
        self._handle.remove()


def frozen_features(
    model: nn.Module,
    data: SplitImages,
    indices: NDArray[np.int64],
    preprocess: Preprocessing,
    settings: JobSettings,
    progress: Callable[[int, int], None] | None = None,
) -> Tensor:
    """Return (N, D) float32 features on the CPU, in the order of `indices`.

    Args:
        model: Model with a linear classifier; it is moved to the run's device.
        data: Images of the run.
        indices: (N,) indices of images.
        preprocess: Preprocessing of the images.
        settings: Device and loader processes.
        progress: Called with (images done, N).
    """
    device = settings.device or "cpu"
    reader = ClassifierInputs(model.to(device))
    try:
        loader = eval_loader(data, indices, preprocess, settings)
        found = predict_all(
            reader, loader, device, progress=None if progress is None else lambda done: progress(done, len(indices))
        )
    finally:
        reader.close()
    rank = torch.empty(len(indices), dtype=torch.int64)
    rank[torch.from_numpy(np.argsort(indices, kind="stable"))] = torch.arange(len(indices))
    return found.logits[rank]
