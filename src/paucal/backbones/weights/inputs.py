"""Image preprocessing that belongs to weights: the crop, filter, mean and deviation with which they were tested.

The papers' code preprocesses test images differently from timm for the same architectures. EsViT, DINO, DeiT, DrLoc,
DHVT, Swin, CvT and Vision Longformer resize the shorter side to 256 for a crop of 224 pixels, where timm's
configurations have a crop ratio of 0.9 or 0.95. All use ImageNet's mean and deviation, where timm's ViT has 0.5.
"""

import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from paucal.backbones.names import timm_config
from paucal.backbones.weights.checkpoints import PROGRAMS, SWIN, candidates, recognise

Channels = tuple[float, ...]
Filter = Literal["bicubic", "bilinear", "lanczos"]


@dataclass(frozen=True)
class ImageInput:
    """Preprocessing that weights were tested with; by default that of DeiT's code and of its successors.

    Attributes:
        crop_ratio: Side of the centre crop over the side the image is resized to.
        interpolation: Filter of the resize.
        mean: Mean of pixels in [0, 1], per channel.
        std: Standard deviation of pixels in [0, 1], per channel.
    """

    crop_ratio: float = 224 / 256
    interpolation: Filter = "bicubic"
    mean: Channels = (0.485, 0.456, 0.406)
    std: Channels = (0.229, 0.224, 0.225)

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> "ImageInput":
        """Read the output of `dataclasses.asdict`, also from JSON; the caller checks the values.

        Raises:
            TypeError: an entry is unknown.
        """
        values: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in stored.items()}
        return cls(**values)


def input_of_timm(model: str) -> ImageInput:
    """Return the preprocessing in timm's configuration of a model; the default if there is none."""
    config = timm_config(model)
    if config is None:
        return ImageInput()
    ratio = float(config.crop_pct or ImageInput.crop_ratio)
    interpolation: Any = config.interpolation if config.interpolation in get_args(Filter) else "bicubic"
    return ImageInput(ratio, interpolation, tuple(config.mean), tuple(config.std))  # type: ignore[arg-type]


def input_of_file(program: str, model: str) -> ImageInput:
    """Return the preprocessing that a file's weights were tested with.

    Args:
        program: Name (`Program.name`) of the program that wrote the file; "" if unknown.
        model: timm name of their model.

    Example:
        >>> input_of_file("facebookresearch/dino or microsoft/esvit", "vit_base_patch16_224").mean
        (0.485, 0.456, 0.406)
        >>> input_of_file("zihangJiang/TokenLabeling", "lvvit_m").crop_ratio
        1.0
    """
    if program == SWIN and model.endswith("_384"):
        return ImageInput(crop_ratio=1.0)  # there the whole image is resized to 384 pixels
    writer = next((entry for entry in PROGRAMS if entry.name == program), None)
    if model.startswith("deit_") if writer is None else not writer.own_crops:
        return ImageInput()
    return input_of_timm(model)


def find_program(tree: Mapping[str, Any]) -> str:
    """Return the name of the program that wrote a file, "" if the names of its tensors do not identify it."""
    programs = (recognise(candidate.state) for candidate in candidates(tree, ()))
    return next((program.name for program in programs if program is not None), "")


def input_of_scratch(model: str) -> ImageInput:
    """Return the preprocessing of a family's original code, for testing models trained from scratch.

    timm's configuration only describes the weights that timm publishes.

    Example:
        >>> [round(input_of_scratch(name).crop_ratio, 3) for name in ("lvvit_s", "lvvit_m", "resnet50")]
        [0.9, 1.0, 0.875]
    """
    patterns = [pattern for program in PROGRAMS if program.own_crops for pattern in program.models]
    if not any(fnmatch.fnmatch(model, pattern) for pattern in patterns):
        return ImageInput()
    return replace(ImageInput(), crop_ratio=input_of_timm(model).crop_ratio)
