"""Settings turned into transforms and loaders."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import timm
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader

from paucal.data.augment import Augmentation
from paucal.data.dataset import ViewDataset
from paucal.data.kept import KeptBatches
from paucal.data.loader import TrainLoader, make_eval_loader, make_train_loader
from paucal.data.normalisation import Normalisation, compute_normalisation
from paucal.data.preview import sheet
from paucal.data.sampler import StepSampler
from paucal.data.transforms import TrainTransform, ViewTransform
from paucal.evaluation.classification import quick_scores
from paucal.evaluation.deployed import Card, Preprocessing
from paucal.evaluation.predictions import predict_all
from paucal.losses.collectives import rank, world_size
from paucal.recipes.model import image_size
from paucal.recipes.prepare import Prepared
from paucal.recipes.rules_model import SMALL
from paucal.recipes.settings import TrainSettings
from paucal.training import Plan
from paucal.types import Crops, DataRequest

EVAL_BATCH = 256
PAD_SHARE = 8  # a padded crop shifts by up to an eighth of the side


def normalisation(settings: TrainSettings, prepared: Prepared) -> Normalisation:
    """Return mean and deviation: of the training images, ImageNet's, or those the model was published with."""
    if settings.normalise == "computed":
        return compute_normalisation(prepared.images, prepared.part("train"))
    if settings.normalise == "model":
        config = timm.get_pretrained_cfg(settings.model or "", allow_unregistered=True)
        if config is not None:
            return Normalisation(tuple(config.mean), tuple(config.std))  # type: ignore[arg-type]
    return Normalisation()


def preprocessing(settings: TrainSettings, statistics: Normalisation) -> Preprocessing:
    """Return how images are prepared for the trained model: the paper's centre crop, or all of a small image."""
    size = image_size(settings)
    ratio = 1.0 if settings.crop == "padded" or min(size) <= SMALL else 224 / 256
    return Preprocessing(size, ratio, "bicubic", statistics.mean, statistics.std)


def augmentation(settings: TrainSettings) -> Augmentation:
    """Return how training images are changed."""
    policy = settings.rand_augment
    return Augmentation(
        crop=settings.crop or "random-resized",
        scale=(settings.crop_scale or 0.08, 1.0),
        padding=max(1, min(image_size(settings)) // PAD_SHARE),
        hflip=settings.hflip or 0.0,
        rand_augment=None if policy in (None, "none") else policy,
        erase_prob=settings.erase or 0.0,
    )


def train_loader(
    prepared: Prepared,
    preprocess: Preprocessing,
    settings: TrainSettings,
    plan: Plan,
    request: DataRequest,
    start: int,
) -> TrainLoader:
    """Return the loader of what an objective asks for, from a forward pass on."""
    dataset = ViewDataset(
        prepared.images,
        [(view_transform(crops, preprocess, settings, request.geometry), crops.count) for crops in request.views],
        settings.seed,
        labels=request.labels,
        geometry=request.geometry,
        label_maps=prepared.label_maps if request.label_maps else None,
    )
    return step_loader(dataset, prepared, settings, plan, start)


def step_loader(
    dataset: ViewDataset, prepared: Prepared, settings: TrainSettings, plan: Plan, start: int
) -> TrainLoader:
    """Return the loader of this process over the training images, from a forward pass on."""
    sampler = StepSampler(
        prepared.part("train"),
        settings.images_per_pass,
        plan.total_steps * plan.accumulate,
        settings.seed,
        start,
        rank=rank(),
        world=world_size(),
        accumulate=plan.accumulate,
        repeats=settings.repeats,
    )
    return make_train_loader(dataset, sampler, settings.workers or 0, pin_memory=settings.device == "cuda")


def view_transform(crops: Crops, preprocess: Preprocessing, settings: TrainSettings, tracked: bool) -> ViewTransform:
    """Return the training transform of a group of views."""
    size = preprocess.image_size
    if crops.size is not None:
        size = (crops.size, crops.size) if isinstance(crops.size, int) else crops.size
    change = augmentation(settings)
    if crops.scale is not None:  # a method's own crops, such as the local ones of self-distillation
        change = replace(change, crop="random-resized", scale=crops.scale)
    return TrainTransform(size, change, Normalisation(preprocess.mean, preprocess.std), tracked)


def eval_loader(
    prepared: Prepared, indices: NDArray[np.int64], preprocess: Preprocessing, settings: TrainSettings
) -> DataLoader:
    """Return a loader over given images, in order, as the deployed model will see them."""
    return make_eval_loader(
        prepared.images,
        indices,
        preprocess.transform(),
        EVAL_BATCH,
        settings.workers or 0,
        rank=rank(),
        world=world_size(),
    )


def validation(
    prepared: Prepared, preprocess: Preprocessing, settings: TrainSettings
) -> Callable[[nn.Module, torch.device], Mapping[str, float]]:
    """Return a function that scores a model on the validation images.

    Nothing about the images is random, so they are prepared once and kept where they take little memory.
    """
    indices = prepared.part("val")
    height, width = preprocess.image_size
    batches = KeptBatches(
        lambda workers: eval_loader(prepared, indices, preprocess, replace(settings, workers=workers)),
        n_bytes=len(indices) * height * width * 3 * 4,
        workers=settings.workers or 0,
        device=settings.device or "cpu",
    )

    def validate(module: nn.Module, device: torch.device) -> Mapping[str, float]:
        return {f"val_{name}": value for name, value in quick_scores(predict_all(module, batches, device)).items()}

    return validate


def training_sheet(prepared: Prepared, card: Card, settings: TrainSettings, plan: Plan) -> Image.Image:
    """Return a picture of training images as the network will see them, mixed where the run mixes."""
    preprocess = card.preprocessing
    alone = replace(settings, workers=0)
    batch = next(iter(train_loader(prepared, preprocess, alone, plan, DataRequest(), 0)))
    if plan.mixing is not None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(settings.seed)
            batch = plan.mixing.mix(batch, plan.n_classes)
    return sheet(batch, Normalisation(preprocess.mean, preprocess.std), card.classes)  # type: ignore[arg-type]
