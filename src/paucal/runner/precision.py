"""Choose the precision with which a trained model runs: as requested, or the faster one on this machine."""

from collections.abc import Sequence

from PIL import Image

from paucal.data.decode import UnreadableImage
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


def choose_for_images(
    model: TrainedModel, asked: str | None, pictures: InputImages, console: Console
) -> PrecisionChoice:
    """Return the precision `asked`; if it is None, measure which one is faster on the first pictures, and print it."""
    if asked is not None:
        return EXPLICIT_CHOICES[asked]
    sample: list[Image.Image] = []
    if bfloat16_flags() and len(pictures) > MEASURED_IMAGES:
        for position in range(MEASURED_IMAGES):
            try:
                sample.append(pictures.read(position))
            except UnreadableImage:  # reported later, when the image is classified
                continue
    return choose_on_sample(model, sample, len(pictures), console)


def choose_on_sample(
    model: TrainedModel, few: Sequence[Image.Image], count: int | None, console: Console
) -> PrecisionChoice:
    """Return the precision that is faster on the pictures `few`, of `count` in total; float32 if `few` is empty."""
    classifies = type(model.card) is ModelCard  # regressions have no classes to compare
    if not few or model.device.type != "cpu" or not classifies:
        return FLOAT32
    choice = choose_precision(model.module, model.prepared(few), model.card.backbone.name, count)
    if choice.measured:
        console.say(f"precision: {choice.reason}")
    return choice
