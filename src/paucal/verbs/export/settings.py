"""The settings of `paucal export`."""

from dataclasses import dataclass
from typing import Literal, get_args

from paucal.settings.options import MAX_IMAGES, option

Format = Literal["safetensors", "hub", "pt2", "onnx", "openvino", "litert", "coreml", "html"]
FORMATS: tuple[Format, ...] = get_args(Format)


@dataclass(frozen=True)
class FileSettings:
    """The files to write."""

    help_group = "export"
    format: list[Format] | None = option(
        "any of safetensors (weights and JSON that timm can read), hub (the same files and a page for the Hugging Face "
        "hub), pt2 (torch.export), onnx, "
        "openvino (Intel processors), litert (Android and small boards), coreml (Apple devices) and html (a page that "
        "classifies images in a browser); default: safetensors, pt2 and, if its packages are installed, onnx"
    )
    with_preprocessing: bool = option(
        "pt2, onnx and openvino: include resizing and normalisation, so that the file accepts 8-bit images of any size "
        "and returns probabilities",
        False,
    )
    mirror: bool = option(
        "classifiers: average the predictions for an image and its mirror image within the files, in twice the time",
        False,
    )
    int8: bool = option(
        "onnx, openvino and litert: write a second file with 8-bit weights and activations, calibrated on training "
        "images",
        False,
    )
    onnxruntime_web: str | None = option(
        "html: unpacked folder of the npm package onnxruntime-web, which is included in the page", None
    )
    output: str | None = option("folder for the files (default: the next free in exports/)")
    push: str | None = option("hub: repository OWNER/NAME to upload the folder to; new repositories are private")
    data_licence: str | None = option("hub: licence of the training images, to state in README.md")


@dataclass(frozen=True)
class ComparisonSettings:
    """The images on which files are compared with the model."""

    help_group = "comparison"
    data: str | None = option("images on which to compare files with the model, instead of the run's test images", None)
    images: int = option(
        "largest number of images on which to compare files with the model", 200, low=1, high=MAX_IMAGES
    )


@dataclass(frozen=True)
class LimitSettings:
    """Limits on the size and the time of one file."""

    help_group = "limits"
    max_size: str | None = option(
        "largest size of the file, such as 5MB; writes the best file within the limits, which contains this model or a "
        "smaller model distilled from it",
        None,
    )
    max_ms: float | None = option(
        "largest time per image in milliseconds on one thread of this machine; chooses the file like --max-size",
        None,
        above=0,
    )
    time: str | None = option("training time of the smaller model (default: 15m)", None)

    @property
    def training_time(self) -> str:
        """The training time of the smaller model: `--time`, or 15 minutes."""
        return self.time or "15m"


@dataclass(frozen=True)
class ExportSettings(LimitSettings, ComparisonSettings, FileSettings):
    """All settings of `paucal export`, used by the command line and by `paucal.export_model`."""
