"""Real images for an export: for comparing it with the original, and for calibrating 8-bit activations."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from paucal.data.channels.decoding import convert_image
from paucal.data.images import ImageSet, evenly_spaced
from paucal.data.splits.split_csv import read_split
from paucal.models.trained import TrainedModel
from paucal.runner.console import Console
from paucal.runner.images import open_again
from paucal.runner.input_images import open_sources, read_all
from paucal.runs import RunFolder
from paucal.types import UserError

NOISE = 16  # number of noise pictures on which a model is compared if there are no images
CALIBRATING = 100  # number of training images from which the ranges of 8-bit activations are measured


@dataclass(frozen=True, eq=False)
class Pictures:
    """Images, upright and in RGB.

    Attributes:
        pictures: Pictures of any sizes.
        labels: (N,) in the order of the model's classes; None if they are not known.
        what: Description of the images for people.
    """

    pictures: list[Image.Image]
    labels: Tensor | None
    what: str


def compared_images(run: RunFolder, data: str | None, most: int, model: TrainedModel, console: Console) -> Pictures:
    """Return images to compare an export on: the given images, or the run's test images (else validation images).

    Raises:
        UserError: there are no images, or the run's images are gone.
    """
    if data is not None:
        found = [picture for _, picture in islice(_given(data, model, console), most)]
        if not found:
            raise UserError(f"--data: {data!r} holds no images: give some to compare the export on.")
        return Pictures(found, None, f"images of {data}")
    if not run.config.exists():
        return Pictures(_noise(model, min(most, NOISE)), None, "images of noise (--data names others)")
    images = _opened(run, model, console)
    split = read_split(run.split, images)
    part = next((name for name in ("test", "val", "train") if len(split.indices(name))), "train")
    part_rows = split.indices(part)
    rows = part_rows[evenly_spaced(len(part_rows), most)].tolist()  # images of the same class are adjacent
    pictures = [images.store.read(row) for row in rows]
    labels = None if model.card.several else torch.from_numpy(images.labels[rows])
    return Pictures(pictures, labels, f"{part} images")


def calibrating_images(run: RunFolder, model: TrainedModel, console: Console) -> Iterator[Image.Image]:
    """Yield training images of a run.

    Raises:
        UserError: the images are gone, or the model's folder is not a run.
    """
    if not run.config.exists():
        raise UserError(f"--int8 needs the training images of a run, and {run.path} is a model alone: give its run.")
    images = _opened(run, model, console)
    train = read_split(run.split, images).indices("train")
    rows = train[evenly_spaced(len(train), CALIBRATING)].tolist()
    return (images.store.read(row) for row in rows)


def _noise(model: TrainedModel, count: int) -> list[Image.Image]:
    """Return pictures of random pixels, in the format in which the model reads images."""
    generator, fed = np.random.default_rng(0), model.card.preprocessing
    shape = (*fed.image_size, fed.channels)
    return [convert_image(generator.integers(0, 256, shape, dtype=np.uint8), fed.reading) for _ in range(count)]


def _opened(run: RunFolder, model: TrainedModel, console: Console) -> ImageSet:
    with console.progress("reading images") as advance:
        return open_again(run, advance, reading=model.card.preprocessing.reading)


def _given(data: str, model: TrainedModel, console: Console) -> Iterator[tuple[str | None, Image.Image]]:
    reading = model.card.preprocessing.reading
    return read_all(open_sources([data], console, reading), reading, "refuse", console)
