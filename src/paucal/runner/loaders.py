"""Loaders of the images of a run, for training and for evaluation."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset

from paucal.data.dataset import collate
from paucal.data.loader import TrainLoader, inference_batch_size, make_eval_loader, make_train_loader
from paucal.data.sampler import StepSampler
from paucal.data.shards.folders import is_remote
from paucal.data.shards.stream import ShardPrefetcher
from paucal.distributed import rank, world_size
from paucal.models.preprocessing import Preprocessing
from paucal.runner.images import SplitImages
from paucal.settings.shared import JobSettings
from paucal.training import Plan


def step_loader(
    dataset: Dataset[Any],
    data: SplitImages,
    settings: JobSettings,
    plan: Plan,
    first_pass: int,
    repeats: int = 1,
    balanced: bool = False,
    collate_fn: Callable[[list[Any]], Any] = collate,
) -> TrainLoader:
    """Return the training loader of this process, which begins with forward pass `first_pass`."""
    train, stream = data.split_indices("train"), data.images.stream
    sampler = StepSampler(
        train,
        settings.batch_size_or_1,
        plan.most_steps * plan.accumulate,
        settings.seed,
        first_pass,
        rank=rank(),
        world_size=world_size(),
        accumulate=plan.accumulate,
        repeats=repeats,
        labels=data.images.labels[train] if balanced else None,
        stream=stream and stream.take(train),
        on_pass=ShardPrefetcher(data.images.store, train).request_shards
        if stream and is_remote(data.images.location)
        else None,
    )
    return make_train_loader(dataset, sampler, settings.workers, settings.device == "cuda", collate_fn)


def eval_loader(
    data: SplitImages, indices: NDArray[np.int64], preprocess: Preprocessing, settings: JobSettings
) -> DataLoader:
    """Return a loader of the images at `indices`, in this order, preprocessed as for the deployed model."""
    return make_eval_loader(
        data.images,
        indices,
        preprocess.transform(),
        inference_batch_size(preprocess.image_size, settings.device),
        settings.workers,
        rank=rank(),
        world_size=world_size(),
        pin_memory=settings.device == "cuda",
    )
