"""The specification of a backbone: plain data from which the backbone is built, stored next to its weights."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

import torch
from timm.layers.norm_act import convert_sync_batchnorm
from torch import nn

from paucal.backbones.cost import FLOAT_BYTES, image_cost
from paucal.backbones.empty_models import build_empty, cached_by_text, meta_device
from paucal.backbones.features import FeatureBackbone
from paucal.backbones.layout import Size
from paucal.backbones.names import create_model, require_harmless_arguments, require_model_name
from paucal.backbones.sizing import fit_to_image_size, fit_to_image_sizes
from paucal.backbones.weights.adapt import position_grid
from paucal.memory import read_available_memory
from paucal.types import UserError

MAX_CLASSES, MAX_CHANNELS = 1_000_000, 10_000  # limits for specifications from untrusted files
LARGE_IMAGE_PIXELS = 1024 * 1024  # above this number, the memory of a forward pass is estimated before building


@dataclass(frozen=True)
class BackboneSpec:
    """The specification of a backbone, which fully determines the architecture.

    Attributes:
        name: Name of a timm model.
        num_classes: Number of classes of the classifier; 0 for no classifier.
        in_chans: Number of channels of the images.
        image_size: (height, width) of the images in pixels.
        pretrained: Whether to fetch timm's published weights.
        arguments: Further arguments of the model's constructor, of JSON types, which override the arguments that are
            chosen for the image size.

    Raises:
        UserError: the model does not exist, or an argument does not describe its architecture.

    Example:
        >>> spec = BackboneSpec("vit_mini", num_classes=10, image_size=(32, 32))
        >>> spec.build().grid
        (8, 8)
        >>> BackboneSpec.from_dict(spec.to_dict()) == spec
        True
    """

    name: str
    num_classes: int
    in_chans: int = 3
    image_size: Size = (224, 224)
    pretrained: bool = False
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require_model_name(self.name)
        for key in self.arguments:
            if key in ("num_classes", "in_chans", "img_size", "pretrained"):
                raise UserError(f"Model argument {key!r} of {self.name} is set by another option; remove it.")
        require_harmless_arguments(self.name, self.arguments)
        size = self.image_size
        is_size = isinstance(size, list | tuple) and len(size) == 2 and all(type(n) is int and n > 0 for n in size)
        if not is_size:
            raise UserError(f"The image size of {self.name} is {size}; it must be (height, width) in whole pixels.")
        if type(self.num_classes) is not int or not 0 <= self.num_classes <= MAX_CLASSES:
            raise UserError(
                f"The number of classes is {self.num_classes!r}; it must be a whole number from 0 (no classifier) to "
                f"{MAX_CLASSES:,}."
            )
        if type(self.in_chans) is not int or not 1 <= self.in_chans <= MAX_CHANNELS:
            raise UserError(
                f"The number of image channels is {self.in_chans!r}; it must be a whole number from 1 to "
                f"{MAX_CHANNELS:,}."
            )
        object.__setattr__(self, "image_size", tuple(self.image_size))
        try:
            arguments = json.loads(json.dumps(dict(self.arguments), allow_nan=False))
        except (TypeError, ValueError) as error:
            raise UserError(f"The arguments of {self.name} must be of JSON types: {error}.") from error
        object.__setattr__(self, "arguments", arguments)

    def build(
        self, image_sizes: Sequence[Size] | None = None, drop_path_rate: float | None = None, sync_norms: bool = False
    ) -> FeatureBackbone:
        """Build the backbone with random weights from the global generator or, if `pretrained`, with published weights.

        Args:
            image_sizes: (height, width) in pixels of all image sizes at which the model will run, if there are several.
            drop_path_rate: Probability that a block is skipped in training (stochastic depth); None for the model's
                default.
            sync_norms: Whether batch norms use the statistics of all processes, which does not change parameter names.

        Raises:
            UserError: the model does not support these sizes, arguments or stochastic depth, or has no published
                weights.
        """
        sizing = fit_to_image_size(self.name, self.image_size, self.arguments)
        arguments = {**self.arguments, **sizing.arguments}
        _require_memory(self, sizing.parameters, arguments)
        if drop_path_rate is not None:
            if not 0 <= drop_path_rate < 1:
                raise UserError(f"The drop-path rate is {drop_path_rate}; it must be at least 0 and below 1.")
            if _accepts_arguments(self.name, {**arguments, "drop_path_rate": drop_path_rate}):
                arguments["drop_path_rate"] = drop_path_rate
            elif drop_path_rate != 0:
                raise UserError(
                    f"{self.name} has no stochastic depth: a drop-path rate of {drop_path_rate} cannot be set; use 0."
                )
        other_sizes = [(height, width) for height, width in image_sizes or () if (height, width) != self.image_size]
        if other_sizes:
            arguments = fit_to_image_sizes(self.name, [self.image_size, *other_sizes], arguments)
        model = create_model(
            self.name, pretrained=self.pretrained, num_classes=self.num_classes, in_chans=self.in_chans, **arguments
        )
        model = convert_sync_batchnorm(model) if sync_norms else model
        return FeatureBackbone(use_channels_last(model), self.image_size)

    def oblong_grid(self) -> Size | None:
        """Return the (rows, columns) of the position embedding if images are not square; None for square images."""
        if self.image_size[0] == self.image_size[1]:
            return None
        with meta_device():
            return position_grid(replace(self, pretrained=False).build().model)

    def to_dict(self) -> dict[str, Any]:
        """Return the specification as JSON types, for `model.json`."""
        return {**asdict(self), "image_size": list(self.image_size)}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> "BackboneSpec":
        """Return the specification from the output of `to_dict`.

        Raises:
            UserError: a field is missing, unknown or has the wrong type.
        """
        unknown = sorted(set(stored) - {entry.name for entry in fields(cls)})
        missing = sorted({"name", "num_classes"} - set(stored))
        if unknown or missing:
            raise UserError(
                f"the stored description of a backbone has the unknown fields {unknown} and lacks the fields "
                f"{missing}: restore the file that contains the description."
            )
        return cls(**stored)


def _require_memory(spec: BackboneSpec, parameters: int, arguments: Mapping[str, Any]) -> None:
    """Check that the model, and a forward pass with one image, can fit in memory; the spec may be untrusted."""
    free_bytes, gib = read_available_memory(), 2**30
    if FLOAT_BYTES * parameters > free_bytes:
        raise UserError(
            f"{spec.name} with {arguments} has {parameters / 1e6:,.0f} M parameters, which need "
            f"{FLOAT_BYTES * parameters / gib:.3g} GiB, but only {free_bytes / gib:.3g} GiB of this machine's memory "
            "are free: choose a smaller model."
        )
    if spec.image_size[0] * spec.image_size[1] <= LARGE_IMAGE_PIXELS:
        return
    cost = image_cost(spec.name, spec.image_size, arguments)
    layer_bytes = 0 if cost is None else 2 * cost.largest_tensor_bytes  # a layer's input and its output
    if layer_bytes > free_bytes:
        raise UserError(
            f"one image of {spec.image_size[0]}x{spec.image_size[1]} pixels needs at least "
            f"{layer_bytes / gib:.3g} GiB with {spec.name}, but only {free_bytes / gib:.3g} GiB of this "
            "machine's memory are free: choose smaller images."
        )


@cached_by_text
def _accepts_arguments(name: str, arguments: Mapping[str, Any]) -> bool:
    """Return whether a model can be built with these arguments; cached, since each build of the network needs this."""
    try:
        build_empty(name, arguments)
    except UserError:
        return False
    return True


def use_channels_last(model: nn.Module) -> nn.Module:
    """Convert the weights of 2D convolutions to the channels-last memory format, in place; return the model.

    The values stay the same. A converted convolution outputs channels-last maps, whatever the format of its input, and
    so do the layers after the convolution. On two CPU cores, a training step then takes 0.92 (ResNet-18), 0.84
    (ResNet-50), 0.62 (MobileNetV3-S) and 0.95 (LV-ViT, which has a convolutional stem) times as long as without the
    conversion. The time of other transformers does not change.

    On Apple GPUs (MPS), the weights are not changed, since not all kernels of MPS support this format.
    """
    if torch.backends.mps.is_available():
        return model
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return model
