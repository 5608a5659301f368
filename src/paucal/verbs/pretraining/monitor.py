"""Nearest neighbours on labelled images, tried while a backbone is trained without labels."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from paucal.backbones import FeatureBackbone
from paucal.backbones.layout import Size
from paucal.data.batch_cache import KeptBatches
from paucal.data.decode import Reading
from paucal.data.images import ImageSet
from paucal.data.loader import images_together, make_eval_loader
from paucal.data.sources.opening import open_images
from paucal.data.splits.split import make_split
from paucal.distributed import rank, world_size
from paucal.evaluation.predictions import Predictions, predict_all
from paucal.evaluation.protocols.judged_data import balanced, judged_data
from paucal.evaluation.protocols.knn import HEADLINE, knn_scores
from paucal.metrics.measures import hits
from paucal.models.preprocessing import Preprocessing
from paucal.settings.groups import DataSettings
from paucal.types import UserError
from paucal.verbs.run.images import decoded

Monitor = Callable[[nn.Module, torch.device], Mapping[str, float]]

MOST = 5000  # images
ASKED = 4  # one image in so many is asked about, the others are its possible neighbours
NAME = "val_knn"


def knn_monitor(
    location: str,
    preprocess: Preprocessing,
    *,
    most: int = MOST,
    seed: int = 0,
    workers: int = 0,
    device: str = "cpu",
    data_root: str | None = None,
    on_bad_image: Literal["refuse", "skip"] = "refuse",
) -> Monitor:
    """Open labelled images and return a function that scores a backbone by weighted nearest neighbours on them.

    Each test image is given the class of its 20 nearest training images (`protocols.knn`); the score is the share
    given the right one. Nothing is trained, and no image is augmented. Images without parts of their own are split
    once, by the seed. On several processes each reads its part of the images, and all get the score.

    Args:
        location: whatever `paucal train` takes.
        preprocess: how images are prepared for the backbone.
        most: images used; where there are more, three quarters are neighbours and one quarter is asked about, the
            classes as equal in number as they can be.
        seed: chooses them, and the split.
        workers: processes that load images.
        device: what trains; beside a CPU none are started for images that are kept prepared.
        data_root: folder of the sets with names.
        on_bad_image: what to do about unreadable images.

    Returns:
        A function of a timm model and its device that gives {"val_knn": share}; NaN where features are not finite.

    Raises:
        UserError: the images cannot be opened, have no labels or a single class, or are too few.
    """
    if most < ASKED:
        raise UserError(f"--monitor-images is {most}; expected at least {ASKED}, better some thousands.")
    opening = DataSettings(location, data_root, on_bad_image=on_bad_image)
    images, bank, asked = _open(opening, most, seed, preprocess.reading)
    chosen = np.concatenate([bank, asked])
    height, width = preprocess.image_size
    batches = KeptBatches(
        lambda workers: make_eval_loader(
            *(images, chosen, preprocess.transform(), images_together(preprocess.image_size, device)),
            *(workers, rank(), world_size()),
        ),
        n_bytes=len(chosen) * height * width * 3 * 4,
        workers=workers,
        device=device,
    )
    readers: list[_Pooled] = []

    def score(module: nn.Module, device: torch.device) -> Mapping[str, float]:
        if not readers or readers[0].backbone.model is not module:
            readers[:] = [_Pooled(module, preprocess.image_size)]
        found = predict_all(readers[0], batches, device)
        return {NAME: _accuracy(found, bank, asked, len(images.classes))}

    return score


class _Pooled(nn.Module):
    """Gives the pooled features in place of a classifier's answers, so that they are gathered as those are."""

    def __init__(self, model: nn.Module, image_size: Size) -> None:
        super().__init__()
        self.backbone = FeatureBackbone(model, image_size)

    def forward(self, images: Tensor) -> Tensor:
        """Return (B, D) features of (B, C, H, W) images."""
        return self.backbone(images).pooled


def _open(
    settings: DataSettings, most: int, seed: int, reading: Reading
) -> tuple[ImageSet, NDArray[np.int64], NDArray[np.int64]]:
    """Return the images, the positions of the possible neighbours and those of the images asked about."""
    with _asking_for_labels():
        images = open_images(settings.data, root=settings.data_root)
        if not images.labelled:
            raise UserError(f"{images.location} has images without a label")
    try:
        images = decoded(images, settings, reading)
    except UserError as problem:
        raise UserError(f"--monitor: {problem}") from problem
    with _asking_for_labels():
        # The training images of a set with a val part are all neighbours: nothing is selected here.
        data = judged_data(images, make_split(images, seed, val_fraction=0.0))
    asked = balanced(data.labels, data.parts["test"], max(1, most // ASKED), seed)
    return images, balanced(data.labels, data.parts["train"], most - len(asked), seed), asked


@contextmanager
def _asking_for_labels() -> Iterator[None]:
    try:
        yield
    except UserError as problem:
        raise UserError(f"--monitor needs labelled images of two classes or more: {problem}") from problem


def _accuracy(found: Predictions, bank: NDArray[np.int64], asked: NDArray[np.int64], n_classes: int) -> float:
    features, place = found.logits, {index: row for row, index in enumerate(found.ids.tolist())}
    if not torch.isfinite(features).all():
        return float("nan")
    train, test = (torch.tensor([place[int(index)] for index in part]) for part in (bank, asked))
    votes = knn_scores(features[train], found.labels[train], features[test], n_classes, [HEADLINE])
    scores = next(iter(votes.values()))  # of the 20 nearest, or of all where there are fewer
    return float(hits(scores, found.labels[test]).mean())
