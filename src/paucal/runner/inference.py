"""Choose the precision of predictions, requested or faster on this machine, and check the memory of a batch."""

from collections.abc import Sequence

from PIL import Image

from paucal.backbones.cost import FLOAT_BYTES
from paucal.backbones.layout import Size
from paucal.data.decode import UnreadableImage
from paucal.memory import read_available_memory
from paucal.models.card import ModelCard
from paucal.models.precision import (
    EXPLICIT_CHOICES,
    FLOAT32,
    MEASURED_IMAGES,
    PrecisionChoice,
    bfloat16_flags,
    choose_precision,
)
from paucal.models.trained import TrainedModel
from paucal.runner.console import Console
from paucal.runner.input_images import InputImages
from paucal.types import UserError

GIB = 2**30
CHANNELS = 3  # assumed number of channels, since the images are not known yet


def choose_precision_for_images(
    model: TrainedModel, requested_precision: str | None, pictures: InputImages, console: Console
) -> PrecisionChoice:
    """Return the requested precision. Without one, measure which precision is faster, and print the result."""
    if requested_precision is not None:
        return EXPLICIT_CHOICES[requested_precision]
    sample: list[Image.Image] = []
    if bfloat16_flags() and len(pictures) > MEASURED_IMAGES:
        for position in range(MEASURED_IMAGES):
            try:
                sample.append(pictures.read(position))
            except UnreadableImage:  # reported later, when the image is classified
                continue
    return choose_precision_on_sample(model, sample, len(pictures), console)


def choose_precision_on_sample(
    model: TrainedModel, sample: Sequence[Image.Image], count: int | None, console: Console
) -> PrecisionChoice:
    """Return the precision that is faster on sample images; float32 if there is no sample.

    The result is also float32 on other devices than the CPU and for other models than classifiers. `count` is the
    number of images to predict; None if the number is unknown.
    """
    is_classifier = type(model.card) is ModelCard  # regression models have no classes to compare
    if not sample or model.device.type != "cpu" or not is_classifier:
        return FLOAT32
    choice = choose_precision(model.module, model.prepared(sample), model.card.backbone.name, count)
    if choice.measured:
        console.say(f"precision: {choice.reason}")
    return choice


def check_batch_memory(batch_size: int, image_size: Size) -> None:
    """Refuse an evaluation batch whose images alone do not fit in the free memory."""
    height, width = image_size
    image_bytes = CHANNELS * height * width * FLOAT_BYTES
    free_bytes = read_available_memory()
    if batch_size * image_bytes > free_bytes:
        raise UserError(
            f"--batch-size {batch_size} takes {batch_size * image_bytes / GIB:.3g} GiB for the images of {height}x"
            f"{width} pixels alone, but only {free_bytes / GIB:.3g} GiB are free: give --batch-size "
            f"{max(1, free_bytes // (4 * image_bytes))} or less."
        )
