"""Monitor of pre-training: the accuracy of a nearest-neighbour classifier on labelled images."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from paucal.backbones import FeatureBackbone
from paucal.backbones.layout import Size
from paucal.data.loader import CachedBatches, inference_batch_size, make_eval_loader
from paucal.data.sources.opening import open_images
from paucal.data.splits.split import make_split
from paucal.distributed import rank, world_size
from paucal.evaluation.predictions import Predictions, predict_all
from paucal.evaluation.protocols.data import balanced_sample, evaluation_data
from paucal.evaluation.protocols.knn import PRINTED_K, knn_scores
from paucal.methods.pretraining_settings import PretrainSettings
from paucal.metrics.measures import hits
from paucal.models.preprocessing import Preprocessing
from paucal.runner.images import decode_images
from paucal.types import UserError

# A function that takes a model and the device of the model, and returns scores by name.
Monitor = Callable[[nn.Module, torch.device], Mapping[str, float]]

QUERY_EVERY = 4  # one image in four is a query; the other images are possible neighbours
KNN_SCORE = "val_knn"  # name of the accuracy in the metrics


def open_monitor(settings: PretrainSettings, preprocess: Preprocessing) -> Monitor | None:
    """Open the labelled images of `--monitor`; return a function that scores a timm model by its nearest neighbours.

    Each test image is classified by its 20 nearest training images (`protocols.knn`); the score is the accuracy.
    Nothing is trained, and no image is augmented. Images without a declared split are split once, by the seed. With
    several processes, each process reads some of the images. Every process returns {"val_knn": accuracy}; the accuracy
    is NaN if features are not finite. The result is None if `--monitor` is not given.

    From a larger data set, only `--monitor-images` images are used: three quarters as neighbours and one quarter as
    queries, with the classes as balanced as possible.
    """
    if settings.monitor is None:
        return None
    if settings.monitor_images < QUERY_EVERY:
        raise UserError(
            f"--monitor-images is {settings.monitor_images}; expected at least {QUERY_EVERY}, preferably some "
            "thousands."
        )
    max_images, seed = settings.monitor_images, settings.seed
    with _explain_missing_labels():
        images = open_images(settings.monitor, root=settings.data_root)
        if not images.has_single_labels:
            raise UserError(f"{images.location} has images without a label")
    try:
        images = decode_images(images, settings, preprocess.decode_options)
    except UserError as problem:
        raise UserError(f"--monitor: {problem}") from problem
    with _explain_missing_labels():
        # The monitor selects no model, so no validation images are split off, and more images can serve as neighbours.
        data = evaluation_data(images, make_split(images, seed, val_fraction=0.0))
    queries = balanced_sample(data.labels, data.split_positions["test"], max(1, max_images // QUERY_EVERY), seed)
    bank = balanced_sample(data.labels, data.split_positions["train"], max_images - len(queries), seed)
    indices, batch_size = np.concatenate([bank, queries]), inference_batch_size(preprocess.image_size, settings.device)
    height, width = preprocess.image_size
    batches = CachedBatches(
        lambda workers: make_eval_loader(
            images, indices, preprocess.transform(), batch_size, workers, rank(), world_size()
        ),
        n_bytes=len(indices) * height * width * 3 * 4,
        workers=settings.workers,
        device=settings.device,  # on a CPU, batches that fit in the cache are read without worker processes
    )
    feature_models: list[_PooledFeatures] = []  # holds only the model of the last call; empty before the first call

    def score(model: nn.Module, device: torch.device) -> Mapping[str, float]:
        if not feature_models or feature_models[0].backbone.model is not model:
            feature_models[:] = [_PooledFeatures(model, preprocess.image_size)]
        features = predict_all(feature_models[0], batches, device)
        return {KNN_SCORE: _accuracy(features, bank, queries, len(images.classes))}

    return score


class _PooledFeatures(nn.Module):
    """Returns pooled features in place of logits, so that `predict_all` can gather them from all processes."""

    def __init__(self, model: nn.Module, image_size: Size) -> None:
        super().__init__()
        self.backbone = FeatureBackbone(model, image_size)

    def forward(self, images: Tensor) -> Tensor:
        """Return (B, D) features of (B, C, H, W) images."""
        return self.backbone(images).pooled


@contextmanager
def _explain_missing_labels() -> Iterator[None]:
    try:
        yield
    except UserError as problem:
        raise UserError(f"--monitor needs labelled images of two classes or more: {problem}") from problem


def _accuracy(predicted: Predictions, bank: NDArray[np.int64], queries: NDArray[np.int64], n_classes: int) -> float:
    features, row_of = predicted.logits, {index: row for row, index in enumerate(predicted.ids.tolist())}
    if not torch.isfinite(features).all():
        return float("nan")
    train, test = (torch.tensor([row_of[int(index)] for index in positions]) for positions in (bank, queries))
    votes = knn_scores(features[train], predicted.labels[train], features[test], n_classes, [PRINTED_K])
    # Votes of the 20 nearest neighbours, or of all neighbours if there are fewer than 20.
    scores = next(iter(votes.values()))
    return float(hits(scores, predicted.labels[test]).mean())
