"""How images were prepared for weights when these were tested: crop, filter, mean and deviation belong to the weights.

The papers' programs differ from what timm tests the same architectures with. Those of EsViT, DINO, DeiT, DrLoc, DHVT,
Swin, CvT and Vision Longformer resize the shorter side to 256 for a crop of 224 pixels, where timm's configurations
have 0.9 or 0.95; and all have ImageNet's moments, where timm's ViT has 0.5.
"""

import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import timm

from paucal.backbones.weights.checkpoints import PROGRAMS, SWIN, candidates, recognise

Channels = tuple[float, ...]
Filter = Literal["bicubic", "bilinear", "lanczos"]


@dataclass(frozen=True)
class ImageInput:
    """What weights were tested with; by default as DeiT's program and those after it do.

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
        """Read what `dataclasses.asdict` gave, also from JSON; who uses the values checks them.

        Raises:
            TypeError: the values are not those of an input.
        """
        values: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in stored.items()}
        return cls(**values)


def input_of_timm(model: str) -> ImageInput:
    """Return what timm's configuration of a model says; the default where there is none."""
    config = timm.get_pretrained_cfg(model, allow_unregistered=True)
    if config is None:
        return ImageInput()
    ratio = float(config.crop_pct or ImageInput.crop_ratio)
    chosen: Any = config.interpolation if config.interpolation in get_args(Filter) else "bicubic"
    mean, std = tuple(config.mean), tuple(config.std)
    return ImageInput(ratio, chosen, mean, std)  # type: ignore[arg-type]


def input_of_file(program: str, model: str) -> ImageInput:
    """Return what a file's weights were tested with.

    Args:
        program: Program that wrote the file, as `Program.name` has it; "" where its tensors do not tell.
        model: timm name of their model.

    Example:
        >>> input_of_file("facebookresearch/dino or microsoft/esvit", "vit_base_patch16_224").mean
        (0.485, 0.456, 0.406)
        >>> input_of_file("zihangJiang/TokenLabeling", "lvvit_m").crop_ratio
        1.0
    """
    if program == SWIN and model.endswith("_384"):
        return ImageInput(crop_ratio=1.0)  # all of the image is resized to 384 pixels there
    known = next((one for one in PROGRAMS if one.name == program), None)
    if model.startswith("deit_") if known is None else not known.own_crops:
        return ImageInput()
    return input_of_timm(model)


def program_of(tree: Mapping[str, Any]) -> str:
    """Return the name of the program that wrote a file, "" where the names of its tensors do not tell."""
    found = (recognise(candidate.state) for candidate in candidates(tree, ()))
    return next((program.name for program in found if program is not None), "")


def input_of_scratch(model: str) -> ImageInput:
    """Return how a model is tested that was trained from scratch: as by the program its family comes from.

    timm's configuration describes the weights that timm publishes, and so says nothing about others.

    Example:
        >>> [round(input_of_scratch(name).crop_ratio, 3) for name in ("lvvit_s", "lvvit_m", "resnet50")]
        [0.9, 1.0, 0.875]
    """
    own = [pattern for program in PROGRAMS if program.own_crops for pattern in program.models]
    if not any(fnmatch.fnmatch(model, pattern) for pattern in own):
        return ImageInput()
    return replace(ImageInput(), crop_ratio=input_of_timm(model).crop_ratio)
