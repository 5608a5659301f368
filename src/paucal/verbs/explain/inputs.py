"""Read the images to explain: each image as model input, and as pixels to draw."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional

from paucal.data.arguments import ImageInMemory
from paucal.data.channels.decoding import convert_image
from paucal.explain.figures.pictures import Picture, visible_region
from paucal.models.preprocessing import Preprocessing
from paucal.models.trained import TrainedModel
from paucal.runner.console import Console
from paucal.runner.input_images import open_sources, read_all
from paucal.types import UserError


@dataclass(frozen=True, eq=False)
class ExplainInput:
    """An image to explain: name, (H, W, 3) pixels of the part that the model sees, and (3, H, W) model input."""

    name: str
    picture: Picture
    view: Tensor


def read_images(
    sources: Sequence[str | ImageInMemory], model: TrainedModel, on_bad: str, console: Console
) -> tuple[int, Iterator[ExplainInput]]:
    """Return an upper bound on the number of images, and an iterator that reads one image at a time."""
    decode_options = model.card.preprocessing.decode_options
    image_sets = open_sources(sources, console, decode_options)

    def read() -> Iterator[ExplainInput]:
        for number, (path, picture) in enumerate(read_all(image_sets, decode_options, on_bad, console), start=1):
            name = f"image {number}" if path is None else Path(path).name
            try:
                explain_input = prepare_input(name, picture, model.card.preprocessing)
            except ValueError as problem:
                raise UserError(f"image {number} is not supported ({problem}): convert the image to RGB.") from problem
            yield explain_input

    return sum(map(len, image_sets)), read()


def prepare_input(name: str, picture: Image.Image, preprocessing: Preprocessing) -> ExplainInput:
    """Preprocess an image as model input."""
    upright = convert_image(picture, preprocessing.decode_options)
    view, geometry = preprocessing.transform()(upright)
    return ExplainInput(name, visible_region(upright, geometry, preprocessing.image_size), view)


def stack_views(batch: Sequence[ExplainInput], model: TrainedModel) -> Tensor:
    """Return a batch of images as (B, 3, H, W) model input on the model's device."""
    return torch.stack([image.view for image in batch]).to(model.device)


def convert_model_input(images: Tensor, model: TrainedModel, target_model: TrainedModel) -> Tensor:
    """Convert (B, 3, H, W) inputs of `model` to the normalisation and input size of the model `target_model`."""
    old_input, new_input = model.card.preprocessing, target_model.card.preprocessing
    images = images.to(target_model.device)
    if (old_input.mean, old_input.std) != (new_input.mean, new_input.std):
        mean, std, new_mean, new_std = (
            images.new_tensor(values).view(1, -1, 1, 1)
            for values in (old_input.mean, old_input.std, new_input.mean, new_input.std)
        )
        images = (images * std + mean - new_mean) / new_std
    if tuple(images.shape[2:]) != new_input.image_size:
        images = functional.interpolate(images, new_input.image_size, mode="bicubic", antialias=True)
    return images


def file_stem(name: str) -> str:
    """Return an image's name without its suffix; the file names of the image's figures begin with this stem."""
    return Path(name).stem or name
