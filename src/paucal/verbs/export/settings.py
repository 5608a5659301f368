"""The settings of `paucal export`."""

from dataclasses import dataclass
from typing import Literal, get_args

from paucal.settings.options import MAX_COUNT, option

_GROUP, _COMPARED, _FITTING = "export", "comparison", "a file that fits"
Format = Literal["safetensors", "hub", "pt2", "onnx", "openvino", "litert", "coreml", "html"]
FORMATS: tuple[Format, ...] = get_args(Format)


@dataclass(frozen=True)
class ExportSettings:
    """Every setting of `paucal export`; the command line and `paucal.export_model` share it."""

    format: list[Format] | None = option(
        "any of safetensors (weights and JSON, as timm reads them), hub (the same, with a page for the Hugging Face "
        "hub), pt2 (torch.export), onnx, "
        "openvino (Intel processors), litert (Android and small boards), coreml (Apple's devices) and html (one page "
        "that classifies pictures in a browser); by default safetensors and pt2, and onnx where its packages are "
        "installed",
        group=_GROUP,
    )
    with_preprocessing: bool = option(
        "pt2, onnx and openvino: include resizing and normalisation; take bytes of any size and return probabilities",
        False,
        group=_GROUP,
    )
    mirror: bool = option(
        "classifiers: average the predictions for an image and its mirror image within the files; takes twice the time",
        False,
        group=_GROUP,
    )
    int8: bool = option(
        "onnx, openvino and litert: write a second file with weights and activations of 8 bits, calibrated with "
        "training images",
        False,
        group=_GROUP,
    )
    onnxruntime_web: str | None = option(
        "html: unpacked folder of the npm package onnxruntime-web, which is included in the page", None, group=_GROUP
    )
    output: str | None = option("folder for the files (default: the next free in exports/)", group=_GROUP)
    data: str | None = option("images to compare with, instead of the run's test images", None, group=_COMPARED)
    push: str | None = option("hub: OWNER/NAME to upload the folder to; a new repository is private", group=_GROUP)
    data_licence: str | None = option("hub: licence of the training images, to state in README.md", group=_GROUP)
    images: int = option("largest number of images to compare with", 200, group=_COMPARED, low=1, high=MAX_COUNT)
    max_size: str | None = option(
        "largest size of the file, such as 5MB: the best file within the limits is written, of this model or of "
        "a smaller one distilled from it",
        None,
        group=_FITTING,
    )
    max_ms: float | None = option(
        "maximum milliseconds per image on one thread of this machine; chooses the file as --max-size does",
        None,
        group=_FITTING,
        above=0,
    )
    time: str | None = option("training time of a smaller model (default: 15m)", None, group=_FITTING)
