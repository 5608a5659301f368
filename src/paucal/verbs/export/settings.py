"""The settings of `paucal export`."""

from dataclasses import dataclass
from typing import Literal, get_args

from paucal.settings.options import MAX_IMAGES, option

_EXPORT_GROUP, _COMPARISON_GROUP, _LIMITS_GROUP = "export", "comparison", "a file that fits"
Format = Literal["safetensors", "hub", "pt2", "onnx", "openvino", "litert", "coreml", "html"]
FORMATS: tuple[Format, ...] = get_args(Format)


@dataclass(frozen=True)
class ExportSettings:
    """Every setting of `paucal export`; the command line and `paucal.export_model` share it."""

    format: list[Format] | None = option(
        "any of safetensors (weights and JSON that timm can read), hub (the same files and a page for the Hugging Face "
        "hub), pt2 (torch.export), onnx, "
        "openvino (Intel processors), litert (Android and small boards), coreml (Apple devices) and html (a page that "
        "classifies images in a browser); default: safetensors, pt2 and, if its packages are installed, onnx",
        group=_EXPORT_GROUP,
    )
    with_preprocessing: bool = option(
        "pt2, onnx and openvino: include resizing and normalisation, so that the file accepts 8-bit images of any size "
        "and returns probabilities",
        False,
        group=_EXPORT_GROUP,
    )
    mirror: bool = option(
        "classifiers: average the predictions for an image and its mirror image within the files, in twice the time",
        False,
        group=_EXPORT_GROUP,
    )
    int8: bool = option(
        "onnx, openvino and litert: write a second file with 8-bit weights and activations, calibrated on training "
        "images",
        False,
        group=_EXPORT_GROUP,
    )
    onnxruntime_web: str | None = option(
        "html: unpacked folder of the npm package onnxruntime-web, which is included in the page",
        None,
        group=_EXPORT_GROUP,
    )
    output: str | None = option("folder for the files (default: the next free in exports/)", group=_EXPORT_GROUP)
    data: str | None = option(
        "images on which to compare files with the model, instead of the run's test images",
        None,
        group=_COMPARISON_GROUP,
    )
    push: str | None = option(
        "hub: repository OWNER/NAME to upload the folder to; new repositories are private", group=_EXPORT_GROUP
    )
    data_licence: str | None = option("hub: licence of the training images, to state in README.md", group=_EXPORT_GROUP)
    images: int = option(
        "largest number of images on which to compare files with the model",
        200,
        group=_COMPARISON_GROUP,
        low=1,
        high=MAX_IMAGES,
    )
    max_size: str | None = option(
        "largest size of the file, such as 5MB; writes the best file within the limits, which contains this model or a "
        "smaller model distilled from it",
        None,
        group=_LIMITS_GROUP,
    )
    max_ms: float | None = option(
        "largest time per image in milliseconds on one thread of this machine; chooses the file like --max-size",
        None,
        group=_LIMITS_GROUP,
        above=0,
    )
    time: str | None = option("training time of the smaller model (default: 15m)", None, group=_LIMITS_GROUP)

    @property
    def training_time(self) -> str:
        """The training time of the smaller model: `--time`, or 15 minutes."""
        return self.time or "15m"
