"""The image preprocessing with which weights were evaluated: crop, resize filter, mean and standard deviation.

The papers' code preprocesses test images differently from timm for the same architectures. EsViT, DINO, DeiT, DrLoc,
DHVT, Swin, CvT and Vision Longformer resize the shorter side to 256 pixels and crop 224 pixels, but timm's
configurations have a crop ratio of 0.9 or 0.95. The papers use ImageNet's mean and standard deviation, but timm's ViT
uses 0.5 for both.
"""

import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from paucal.backbones.names import timm_config
from paucal.backbones.weights.checkpoints import PROGRAMS, SWIN, find_candidates, recognise_program

Channels = tuple[float, ...]
Filter = Literal["bicubic", "bilinear", "lanczos"]


@dataclass(frozen=True)
class WeightsPreprocessing:
    """The preprocessing with which weights were evaluated. The defaults are those of DeiT's code and its derivatives.

    Attributes:
        crop_ratio: Side of the centre crop, divided by the side to which images are resized before the crop.
        interpolation: Filter with which images are resized.
        mean: Mean of each channel, which is subtracted from pixel values in [0, 1].
        std: Standard deviation of each channel, by which the centred pixel values are divided.
    """

    crop_ratio: float = 224 / 256
    interpolation: Filter = "bicubic"
    mean: Channels = (0.485, 0.456, 0.406)
    std: Channels = (0.229, 0.224, 0.225)

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> "WeightsPreprocessing":
        """Return the object for the output of `dataclasses.asdict`, which may come from a JSON file.

        The caller must check the values.

        Raises:
            TypeError: a field is unknown.
        """
        values: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in stored.items()}
        return cls(**values)


def timm_preprocessing(model: str) -> WeightsPreprocessing:
    """Return the preprocessing in timm's configuration of a model; the defaults if the model has no configuration."""
    config = timm_config(model)
    if config is None:
        return WeightsPreprocessing()
    ratio = float(config.crop_pct or WeightsPreprocessing.crop_ratio)
    interpolation: Any = config.interpolation if config.interpolation in get_args(Filter) else "bicubic"
    return WeightsPreprocessing(ratio, interpolation, tuple(config.mean), tuple(config.std))  # type: ignore[arg-type]


def checkpoint_preprocessing(program: str, model: str) -> WeightsPreprocessing:
    """Return the preprocessing with which the weights of a file were evaluated.

    Args:
        program: Name (`Program.name`) of the program that wrote the file; "" if unknown.
        model: timm name of the model to which the weights belong.

    Example:
        >>> checkpoint_preprocessing("facebookresearch/dino or microsoft/esvit", "vit_base_patch16_224").mean
        (0.485, 0.456, 0.406)
        >>> checkpoint_preprocessing("zihangJiang/TokenLabeling", "lvvit_m").crop_ratio
        1.0
    """
    if program == SWIN and model.endswith("_384"):
        return WeightsPreprocessing(crop_ratio=1.0)  # Swin's code resizes images to 384 pixels without a crop
    writer = next((entry for entry in PROGRAMS if entry.name == program), None)
    if model.startswith("deit_") if writer is None else not writer.uses_timm_crop_ratios:
        return WeightsPreprocessing()
    return timm_preprocessing(model)


def find_program(tree: Mapping[str, Any]) -> str:
    """Return the name of the program that wrote a file, recognised by the names of its tensors; "" if unknown."""
    programs = (recognise_program(candidate.state) for candidate in find_candidates(tree, ()))
    return next((program.name for program in programs if program is not None), "")


def from_scratch_preprocessing(model: str) -> WeightsPreprocessing:
    """Return the preprocessing of the original code of a model's family, for evaluating models trained from scratch.

    timm's configurations are not used, since they belong to the weights that timm publishes.

    Example:
        >>> [round(from_scratch_preprocessing(name).crop_ratio, 3) for name in ("lvvit_s", "lvvit_m", "resnet50")]
        [0.9, 1.0, 0.875]
    """
    patterns = [pattern for program in PROGRAMS if program.uses_timm_crop_ratios for pattern in program.model_patterns]
    if not any(fnmatch.fnmatch(model, pattern) for pattern in patterns):
        return WeightsPreprocessing()
    return replace(WeightsPreprocessing(), crop_ratio=timm_preprocessing(model).crop_ratio)
