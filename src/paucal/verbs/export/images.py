"""Real images for an export: for comparing it with the original, and for calibrating 8-bit activations."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from paucal.data.channels.decoding import convert_image
from paucal.data.images import evenly_spaced
from paucal.runner.console import Console
from paucal.runner.input_images import open_sources, read_all
from paucal.types import UserError
from paucal.verbs.export.subjects import Subject

NOISE = 16  # number of noise pictures on which a model is compared if there are no images
CALIBRATING = 100  # number of training images from which the ranges of 8-bit activations are measured


@dataclass(frozen=True, eq=False)
class Pictures:
    """Images, upright and in the format that the model reads.

    Attributes:
        pictures: Pictures of any sizes.
        labels: Class of each picture in the order of the model's classes, or classes of its pixels; None if unknown.
        what: Description of the images for messages.
    """

    pictures: list[Image.Image]
    labels: list[Tensor] | None
    what: str


TESTED, JUDGED = ("test", "val", "train"), ("val", "train")  # parts of the images, of which the first one is taken


def compared_images(
    data: str | None, max_images: int, subject: Subject, console: Console, parts: Sequence[str] = TESTED
) -> Pictures:
    """Return images to compare an export on: the given images, or those of the first non-empty part of a run."""
    if data is not None:
        named_pictures = read_all(open_sources([data], console, subject.reading), subject.reading, "refuse", console)
        pictures = [picture for _, picture in islice(named_pictures, max_images)]
        if not pictures:
            raise UserError(f"--data: {data!r} holds no images: give images for comparing the export.")
        return Pictures(pictures, None, f"images of {data}")
    if not subject.run.config.exists():
        return Pictures(
            _noise_pictures(subject, min(max_images, NOISE)), None, "images of noise (give others with --data)"
        )
    images, split, label = subject.images
    part = next((name for name in parts if len(split.indices(name))), "train")
    part_rows = split.indices(part)
    # Evenly spaced, since images of the same class are adjacent.
    rows = part_rows[evenly_spaced(len(part_rows), max_images)].tolist()
    labels = None if label is None else [label(row) for row in rows]
    return Pictures([images.store.read(row) for row in rows], labels, f"{part} images")


def has_images(subject: Subject) -> bool:
    """Return whether the images of the model's run are available."""
    try:
        return subject.run.config.exists() and bool(subject.images)
    except UserError:
        return False


def calibrating_inputs(subject: Subject) -> Iterator[NDArray[np.float32]]:
    """Yield inputs of the graph, made from training images of a run."""
    if not subject.run.config.exists():
        raise UserError(
            f"--int8 needs the training images of a run, but {subject.run.path} is only a model: give its run."
        )
    images, split, _ = subject.images
    train = split.indices("train")
    for row in train[evenly_spaced(len(train), CALIBRATING)].tolist():
        yield subject.calibrate(images.store.read(row)).numpy()


def _noise_pictures(subject: Subject, count: int) -> list[Image.Image]:
    """Return pictures of random pixels, in the format in which the model reads images."""
    generator, preprocess = np.random.default_rng(0), subject.card.preprocessing
    shape = (*preprocess.image_size, preprocess.channels)
    return [convert_image(generator.integers(0, 256, shape, dtype=np.uint8), subject.reading) for _ in range(count)]
