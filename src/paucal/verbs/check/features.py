"""Frozen features for a check: of a run, of trained weights that are at hand, or else the pixels themselves."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from paucal.backbones.weights.trained import TRAINED, Trained, at_hand
from paucal.data.channels.planes import RGB
from paucal.data.decoded.read_as import AsShown, smaller
from paucal.data.images import ImageSet
from paucal.data.loader import make_eval_loader
from paucal.data.views.transforms import ViewTransform
from paucal.evaluation.predictions import predict_in_order
from paucal.models.features import ClassifierInputs, linear_classifier
from paucal.models.named import find_named, open_named
from paucal.models.preprocessing import Preprocessing
from paucal.runs import RunFolder
from paucal.settings.options import check_size
from paucal.types import UserError
from paucal.verbs.check.settings import CheckSettings

Advance = Callable[[int, int], None]
USUAL, FOR_SMALL, SMALL = 160, 128, 64  # pixels; a check needs no more to tell pictures apart
PIXELS = 16  # side to which images are reduced where there are no weights


@dataclass(frozen=True)
class Reader:
    """Reads features of images.

    Attributes:
        name: of the model, for people; "" for the pixels.
        module: gives (B, D) features; None for the pixels.
        preprocess: how images are prepared for it.
        device: where it computes.
    """

    name: str
    module: nn.Module | None = None
    preprocess: Preprocessing | None = None
    device: str = "cpu"

    @property
    def trained(self) -> bool:
        """Whether there are trained weights; pixels say little about photographs."""
        return self.module is not None

    def read(
        self,
        images: ImageSet,
        indices: NDArray[np.int64],
        settings: CheckSettings,
        progress: Advance | None = None,
        detail: int | None = None,
    ) -> Tensor:
        """Return (N, D) float32 features on the CPU, in the order of `indices`.

        Args:
            images: the set.
            indices: (N,) positions.
            settings: of the check.
            progress: called with (images done, images in all).
            detail: pixels of the shorter side that images are reduced to before the model looks at them: a copy that
                was saved smaller lacks the details of its original, and is told apart from it by nothing else. None
                for all there are.
        """
        if self.module is None or self.preprocess is None:
            return _pixels(smaller(images, 4 * PIXELS), indices, progress)
        images = smaller(images, 2 * max(self.preprocess.image_size))  # as a run keeps its images
        transform = Coarser(self.preprocess.transform(), detail)
        if self.preprocess.channels == RGB != images.reading.channels:  # such weights see the first three
            images = replace(images, store=AsShown(images.store))
        loader = make_eval_loader(images, indices, transform, settings.batch_size, settings.workers, pin_memory=False)
        return predict_in_order(self.module, loader, indices, self.device, progress)


@dataclass(frozen=True)
class Coarser:
    """Reduces an image before a transform; it is picklable, so that loader workers can be spawned.

    Attributes:
        transform: of the reduced image.
        side: pixels of its shorter side; None leaves it as it is.
    """

    transform: ViewTransform
    side: int | None

    def __call__(self, image: Image.Image) -> tuple[Tensor, Tensor]:
        """Return what the transform makes of the image."""
        shorter = min(image.size)
        if self.side is not None and shorter > self.side:
            width, height = (max(1, round(length * self.side / shorter)) for length in image.size)
            image = image.resize((width, height), Image.Resampling.LANCZOS)
        return self.transform(image)


def weights_at_hand() -> Trained | None:
    """Return the first trained weights that need no network; None where there are none."""
    return next((one for one in TRAINED if one.device == "cpu" and at_hand(one)), None)


def open_reader(settings: CheckSettings, side: int) -> Reader:
    """Return a reader of the model that was asked for, of weights at hand, or of pixels.

    Args:
        settings: of the check.
        side: median of the images' shorter sides in pixels.

    Raises:
        UserError: there is no such model, its weights cannot be had, or it has no linear classifier to read before.
    """
    check_size(settings.img_size)
    name = settings.model or getattr(weights_at_hand(), "name", None)
    if name is None:
        return Reader("")
    of_run = isinstance(find_named(name, "--model"), RunFolder)
    if of_run and settings.img_size is not None:
        raise UserError("--img-size: a run's model looks at images of its own size: leave it out.")
    size = None if of_run else settings.img_size or [FOR_SMALL if side <= SMALL else USUAL]
    model = open_named(name, settings.device, size, "--model")
    if linear_classifier(model.module) is None:
        raise UserError(f"--model: {name} has no linear classifier whose inputs could be read; choose another model.")
    preprocess = model.card.preprocessing if of_run else replace(model.card.preprocessing, crop_ratio=1.0)
    return Reader(name, ClassifierInputs(model.module).eval(), preprocess, str(model.device))


def _pixels(images: ImageSet, indices: NDArray[np.int64], progress: Advance | None) -> Tensor:
    found = np.empty((len(indices), PIXELS * PIXELS * 3), dtype=np.float32)
    for place, index in enumerate(indices.tolist()):
        small = images.store.read(index).resize((PIXELS, PIXELS), Image.Resampling.BOX)
        found[place] = np.asarray(small, dtype=np.float32).reshape(-1) / 255
        if progress is not None and place % 256 == 255:
            progress(place + 1, len(indices))
    return torch.from_numpy(found)
