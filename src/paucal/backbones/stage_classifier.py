"""A linear classifier that reads a network's last features and the pooled feature maps of its last stages."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paucal.backbones.layers import classifier_modules
from paucal.backbones.layout import LayoutHints, Size, last_tensor, read_layout
from paucal.backbones.probe import (
    HookedTensors,
    hook_output,
    make_dummy_images,
    model_name,
    prefixes_and_channels_last,
    recorded_outputs,
    temporary_eval_mode,
)
from paucal.types import UserError

N_STAGES = 3  # number of last stages to pool; earlier stages have few channels and improve accuracy less
MIN_VARIANCE = 1e-12  # keeps the gradient of the standard deviation of a constant map finite
_CELL_AXES = {"nchw": (2, 3), "nhwc": (1, 2), "tokens": (1,)}  # axes of the cells, by layout


@dataclass(frozen=True)
class StagePooling:
    """How to pool the output of a stage."""

    name: str  # name of the stage's module in the network
    kind: Literal["tokens", "nhwc", "nchw"]  # see `Layout`
    prefix: int  # number of leading tokens that are not cells
    channels: int

    def pool(self, output: Any) -> tuple[Tensor, Tensor]:
        """Return the mean and the standard deviation of each channel over all cells, as two (B, C) float32 tensors."""
        cells = last_tensor(output).float()
        cells = cells[:, self.prefix :] if self.kind == "tokens" else cells
        variance, mean = torch.var_mean(cells, _CELL_AXES[self.kind], correction=0)
        return mean, variance.clamp(min=MIN_VARIANCE).sqrt()


def last_stage_poolings(model: nn.Module, image_size: Size) -> tuple[StagePooling, ...]:
    """Return how to pool the outputs of a model's last three stages.

    The result is empty if timm does not list the model's stages as modules, if the outputs of the stages are not grids
    of cells, or if the model has no classifier. The model is run once on an image of zeros.
    """
    feature_info: Any = list(getattr(model, "feature_info", None) or [])
    names = [str(entry.get("module")) for entry in feature_info if isinstance(entry, dict)]
    are_modules = len(names) == len(feature_info) and set(names) <= dict(model.named_modules()).keys()
    if not are_modules or not names or not classifier_modules(model):
        return ()
    with recorded_outputs(model, names[-N_STAGES:]) as outputs, temporary_eval_mode(model):
        model(make_dummy_images(model, image_size))
    prefixes, channels_last = prefixes_and_channels_last(model)
    poolings = []
    for name in names[-N_STAGES:]:
        output, layout = last_tensor(outputs.get(name)), None
        if isinstance(output, Tensor):
            layout = read_layout(output.shape, image_size, prefixes, LayoutHints(channels_last))
        if layout is None:
            return ()
        channels = output.shape[1 if layout.kind == "nchw" else -1]
        poolings.append(StagePooling(name, layout.kind, layout.prefix, channels))
    return tuple(poolings)


class StagePool:
    """Concatenates a model's last features with the pooled maps of its last stages, from the same forward pass.

    Hooks stay on the model until `close` is called.
    """

    def __init__(self, model: nn.Module, poolings: Sequence[StagePooling]) -> None:
        self.poolings, self._hooked = tuple(poolings), HookedTensors()
        self._handles = [hook_output(model, stage.name, self._hooked) for stage in poolings]
        self._hooked.tensors = {}

    @property
    def width(self) -> int:
        """Number S of pooled features that are appended to the last features."""
        return 2 * sum(stage.channels for stage in self.poolings)

    def join(self, features: Tensor) -> Tensor:
        """Return (B, D + S) features: the (B, D) last features, then the means and standard deviations of all maps."""
        stage_outputs, self._hooked.tensors = self._hooked.tensors or {}, {}
        if len(stage_outputs) < len(self.poolings):
            raise RuntimeError("the outputs of the last stages are missing: call the network, not only its classifier")
        pooled = [stage.pool(stage_outputs[stage.name]) for stage in self.poolings]
        return torch.cat([features, *(mean for mean, _ in pooled), *(deviation for _, deviation in pooled)], 1)

    def close(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()


class StageClassifier(nn.Linear):
    """A linear classifier on a network's (B, D) last features and the pooled maps of its last stages.

    This module replaces the network's classifier and, like the original classifier, is called with the last features.
    """

    def __init__(
        self, model: nn.Module, poolings: Sequence[StagePooling], n_last_features: int, n_classes: int
    ) -> None:
        pool = StagePool(model, poolings)
        super().__init__(n_last_features + pool.width, n_classes)
        self.pool = pool
        self._n_last_features, self._ignores_stages = n_last_features, False

    def forward(self, input: Tensor) -> Tensor:
        """Return (B, K) logits from (B, D) last features."""
        if self._ignores_stages:
            return F.linear(input, self.weight[:, : self._n_last_features])
        return F.linear(self.pool.join(input), self.weight, self.bias)

    @contextmanager
    def last_features_alone(self) -> Iterator[None]:
        """In the `with` block, let `forward` return the last features' contribution to the logits, without the bias."""
        self._ignores_stages = True
        try:
            yield
        finally:
            self._ignores_stages = False


def stage_classifier(model: nn.Module) -> StageClassifier | None:
    """Return the `StageClassifier` in a model; None if the model does not contain such a classifier."""
    return next((module for module in model.modules() if isinstance(module, StageClassifier)), None)


def add_stage_classifier(model: nn.Module, image_size: Size) -> nn.Module:
    """Replace a model's linear classifier by a `StageClassifier` with random weights, in place; return the model."""
    names, poolings = classifier_modules(model), last_stage_poolings(model, image_size)
    classifier = model.get_submodule(names[0]) if len(names) == 1 else None
    if not isinstance(classifier, nn.Linear) or not poolings:
        raise UserError(
            f"a classifier on the last stages needs a linear classifier and stages that timm lists, which "
            f"{model_name(model)} does not have: choose another model."
        )
    model.set_submodule(names[0], StageClassifier(model, poolings, classifier.in_features, classifier.out_features))
    return model
