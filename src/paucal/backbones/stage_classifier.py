"""A linear classifier that reads the pooled maps of a network's last stages beside its last features."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paucal.backbones.forward_hooks import HookedTensors, hook_output, recorded_outputs
from paucal.backbones.layers import classifier_modules
from paucal.backbones.layout import Hints, Size, last_tensor, read_layout
from paucal.backbones.probe import layout_facts, model_name, probe_images, undisturbed
from paucal.types import UserError

STAGES = 3  # the last three; earlier maps have few channels and helped less
SMALLEST_VARIANCE = 1e-12  # keeps the gradient of a constant map's deviation finite
_SPATIAL = {"nchw": (2, 3), "nhwc": (1, 2), "tokens": (1,)}


@dataclass(frozen=True)
class StageMap:
    """How the output of a stage is read.

    Attributes:
        name: Name of the module.
        kind: Layout of its output, see `Layout`.
        prefix: Leading tokens that belong to no cell.
        channels: Number of channels.
    """

    name: str
    kind: Literal["tokens", "nhwc", "nchw"]
    prefix: int
    channels: int

    def pooled(self, output: Any) -> tuple[Tensor, Tensor]:
        """Return the mean and the standard deviation over the cells, (B, C) float32 each."""
        cells = last_tensor(output).float()
        cells = cells[:, self.prefix :] if self.kind == "tokens" else cells
        variance, mean = torch.var_mean(cells, _SPATIAL[self.kind], correction=0)
        return mean, variance.clamp(min=SMALLEST_VARIANCE).sqrt()


def last_stage_maps(model: nn.Module, image_size: Size) -> tuple[StageMap, ...]:
    """Return the maps of a model's last stages as timm lists them; none where the outputs are not grids of cells.

    Args:
        model: timm model; a black image goes through it once.
        image_size: (height, width) in pixels.
    """
    feature_info: Any = list(getattr(model, "feature_info", None) or [])
    names = [str(entry.get("module")) for entry in feature_info if isinstance(entry, dict)]
    are_modules = len(names) == len(feature_info) and set(names) <= dict(model.named_modules()).keys()
    if not are_modules or not names or not classifier_modules(model):
        return ()
    with recorded_outputs(model, names[-STAGES:]) as outputs, undisturbed(model):
        model(probe_images(model, image_size))
    prefixes, channels_last = layout_facts(model)
    maps = []
    for name in names[-STAGES:]:
        output, layout = last_tensor(outputs.get(name)), None
        if isinstance(output, Tensor):
            layout = read_layout(output.shape, image_size, prefixes, Hints(channels_last))
        if layout is None:
            return ()
        channels = output.shape[1 if layout.kind == "nchw" else -1]
        maps.append(StageMap(name, layout.kind, layout.prefix, channels))
    return tuple(maps)


class StagePool:
    """Joins last features with the pooled maps of the same forward pass.

    Args:
        model: timm model; the hooks stay on it until `close`.
        maps: Maps to read, see `last_stage_maps`.
    """

    def __init__(self, model: nn.Module, maps: Sequence[StageMap]) -> None:
        self.maps, self._hooked = tuple(maps), HookedTensors()
        self._handles = [hook_output(model, stage.name, self._hooked) for stage in maps]
        self._hooked.tensors = {}

    @property
    def width(self) -> int:
        """Number S of features that are joined."""
        return 2 * sum(stage.channels for stage in self.maps)

    def join(self, features: Tensor) -> Tensor:
        """Return (B, D + S): (B, D) last features, the means of all maps, then their standard deviations."""
        stage_outputs, self._hooked.tensors = self._hooked.tensors or {}, {}
        if len(stage_outputs) < len(self.maps):
            raise RuntimeError("the maps of the last stages are missing: run the whole network, not its classifier")
        pooled = [stage.pooled(stage_outputs[stage.name]) for stage in self.maps]
        return torch.cat([features, *(mean for mean, _ in pooled), *(deviation for _, deviation in pooled)], 1)

    def close(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()


class StageClassifier(nn.Linear):
    """Linear classifier of (B, D) last features and the pooled maps of the last stages.

    It takes the place of a network's own classifier, and is called like it with the last features.

    Shape:
        - input: (B, D)
        - output: (B, K)
    """

    def __init__(self, model: nn.Module, maps: Sequence[StageMap], own_features: int, classes: int) -> None:
        pool = StagePool(model, maps)
        super().__init__(own_features + pool.width, classes)
        self.pool = pool
        self._own_features, self._alone = own_features, False

    def forward(self, input: Tensor) -> Tensor:
        """Return (B, K) logits of (B, D) last features."""
        if self._alone:
            return F.linear(input, self.weight[:, : self._own_features])
        return F.linear(self.pool.join(input), self.weight, self.bias)

    @contextmanager
    def last_features_alone(self) -> Iterator[None]:
        """Inside a `with` block, return the part of the logits that comes from the last features."""
        self._alone = True
        try:
            yield
        finally:
            self._alone = False


def stage_classifier(model: nn.Module) -> StageClassifier | None:
    """Return the classifier of a model that reads its last stages; None where the model has another one."""
    return next((part for part in model.modules() if isinstance(part, StageClassifier)), None)


def add_stage_classifier(model: nn.Module, image_size: Size) -> nn.Module:
    """Replace a model's linear classifier by a `StageClassifier` with fresh weights, in place; return the model."""
    names, maps = classifier_modules(model), last_stage_maps(model, image_size)
    classifier = model.get_submodule(names[0]) if len(names) == 1 else None
    if not isinstance(classifier, nn.Linear) or not maps:
        raise UserError(f"{model_name(model)} has no linear classifier that could read its last stages.")
    model.set_submodule(names[0], StageClassifier(model, maps, classifier.in_features, classifier.out_features))
    return model
