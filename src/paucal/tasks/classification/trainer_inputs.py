"""Inputs of the trainer of a classification run: loaders, augmentation, preprocessing, plan and optimizer."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import nn

from paucal.backbones.weights.checkpoints import WeightsPreprocessing, from_scratch_preprocessing
from paucal.data.dataset import ViewDataset
from paucal.data.loader import CachedBatches, TrainLoader
from paucal.data.views.augmentation import Augmentation, Mixing
from paucal.data.views.normalisation import Normalisation
from paucal.data.views.transforms import TrainTransform, ViewTransform
from paucal.evaluation.classification import quick_scores
from paucal.evaluation.predictions import Predictions, predict_all
from paucal.methods.training_settings import TrainSettings
from paucal.models.card import ModelCard
from paucal.models.preprocessing import Preprocessing
from paucal.objectives import Objective
from paucal.recipes.table import RECIPES
from paucal.rules.training import SMALL_SIDE
from paucal.runner.images import SplitImages, eval_loader, step_loader
from paucal.runner.trainer_plan import check_sync_bn, length_warnings, trainer_plan
from paucal.training import CosineWarmup, LaggingEpochs, Optimization, Plan, largest_batch
from paucal.types import Batch, Crops, DataRequest, UserError, height_and_width

LOSS_COLUMN = "val_loss"  # column of the validation loss in `metrics.csv`
PADDING_DIVISOR = 8  # the padding of a padded crop is 1/8 of the image size
# Learning rate at the start of the warm-up, as a fraction of the peak. DrLoc's code starts at 1e-6 for a peak of 1e-3.
WARMUP_START = 1e-3


def make_preprocessing(
    settings: TrainSettings,
    statistics: Normalisation,
    weights_input: WeightsPreprocessing | None = None,
    value_range: tuple[float, float] | None = None,
) -> Preprocessing:
    """Return the preprocessing of the deployed model, without a center crop if training uses whole images.

    The crop ratio and the interpolation come from the recipe, else from the pretrained weights, else from the model.
    """
    size = height_and_width(settings.img_size)
    recipe = None if settings.recipe is None else RECIPES.get(settings.recipe)
    recipe_input = WeightsPreprocessing() if recipe is not None and recipe.imagenet_crop else None
    image_input = recipe_input or weights_input or from_scratch_preprocessing(settings.model)
    uses_full_image = settings.crop in ("padded", "none") or min(size) <= SMALL_SIDE or settings.resize != "crop"
    ratio = 1.0 if uses_full_image else image_input.crop_ratio
    mean, std, interpolation = statistics.mean, statistics.std, image_input.interpolation
    return Preprocessing(size, ratio, interpolation, mean, std, value_range, settings.resize)


def make_augmentation(settings: TrainSettings) -> Augmentation:
    """Return the augmentation of training images."""
    policy = settings.rand_augment
    min_scale = settings.crop_scale if settings.crop == "random-resized" else 1.0
    assert min_scale is not None  # chosen by an automatic rule if not given
    return Augmentation(
        crop=settings.crop,
        scale=(min_scale, 1.0),  # limits of the area of a crop, as fractions of the image area
        padding=max(1, min(height_and_width(settings.img_size)) // PADDING_DIVISOR),
        hflip=settings.hflip,
        rand_augment=None if policy in (None, "none") else policy,
        erase_prob=settings.erase,
    )


def train_loader(
    data: SplitImages,
    preprocess: Preprocessing,
    settings: TrainSettings,
    plan: Plan,
    request: DataRequest,
    first_pass: int,
) -> TrainLoader:
    """Return the training loader for an objective's data request, starting at forward pass `first_pass`."""
    dataset, balanced = make_view_dataset(data, preprocess, settings, request), settings.sampling == "balanced"
    return step_loader(dataset, data, settings, plan, first_pass, settings.repeats, balanced)


def make_view_dataset(
    data: SplitImages, preprocess: Preprocessing, settings: TrainSettings, request: DataRequest
) -> ViewDataset:
    """Return a dataset of the augmented views that an objective's data request lists."""
    return ViewDataset(
        data.images,
        [(make_view_transform(crops, preprocess, settings, request.geometry), crops.count) for crops in request.views],
        settings.seed,
        with_labels=request.labels,
        with_geometry=request.geometry,
        label_maps=data.label_maps if request.label_maps else None,
    )


def make_view_transform(
    crops: Crops, preprocess: Preprocessing, settings: TrainSettings, exact_geometry: bool
) -> ViewTransform:
    """Return the training transform for views with the given crops."""
    augmentation, statistics = make_augmentation(settings), preprocess.normalisation
    if crops.scale is not None:  # the method defines the crops, such as local crops of self-distillation
        augmentation = replace(augmentation, crop="random-resized", scale=crops.scale)
    size = crops.sides or preprocess.image_size
    return TrainTransform(size, augmentation, statistics, exact_geometry, preprocess.resize)


def validation_scores(predictions: Predictions) -> dict[str, float]:
    """Return the scores of validation predictions, with the column names of `metrics.csv`, such as "val_loss"."""
    return {f"val_{name}": value for name, value in quick_scores(predictions).items()}


def make_val_predictor(
    data: SplitImages, preprocess: Preprocessing, settings: TrainSettings
) -> Callable[[nn.Module, torch.device], Predictions]:
    """Return a function that predicts the validation images, whose batches are cached if they take little memory."""
    indices, (height, width) = data.split_indices("val"), preprocess.image_size
    batches = CachedBatches(
        lambda workers: eval_loader(data, indices, preprocess, replace(settings, workers=workers)),
        n_bytes=len(indices) * height * width * preprocess.channels * 4,
        workers=settings.workers,
        device=settings.device,
    )
    return lambda module, device: predict_all(module, batches, device)


def training_plan(settings: TrainSettings, n_train: int, n_classes: int) -> Plan:
    """Return the training plan of the run: its length, seed, hardware, and mixup and cutmix."""
    check_sync_bn(settings)
    mixing = Mixing(mixup=settings.mixup, cutmix=settings.cutmix) if settings.mixup or settings.cutmix else None
    return trainer_plan(settings, n_train, mixing, n_classes)


def make_optimization(settings: TrainSettings, plan: Plan) -> Optimization:
    """Return the settings of the optimizer and its schedule, with durations in steps."""
    start = WARMUP_START * settings.lr
    if settings.warmup_lr is not None:
        start = settings.warmup_lr
    schedule = CosineWarmup(
        peak=settings.lr,
        horizon=settings.schedule_epochs * plan.steps_per_epoch,
        warmup=round(settings.warmup_epochs * plan.steps_per_epoch),
        start=start,
        floor=settings.min_lr,
    )
    return Optimization(
        LaggingEpochs(schedule, plan.steps_per_epoch) if settings.schedule == "lagging" else schedule,
        weight_decay=settings.weight_decay,
        clip=settings.clip,
        average_decay=settings.average,
    )


def remarks_on_plan(settings: TrainSettings, n_train: int) -> list[str]:
    """Return a warning if `--sync-bn` has no effect, and the warnings of `length_warnings`."""
    warnings = length_warnings(settings, n_train)
    if settings.sync_bn and settings.processes == 1:
        return ["--sync-bn has no effect on a single device", *warnings]
    return warnings


def reduce_batch_to_memory(
    settings: TrainSettings, data: SplitImages, objective: Objective, card: ModelCard
) -> tuple[TrainSettings, str]:
    """Halve the batch size, and double the accumulation, until a training step fits in the memory of the GPU.

    Returns the settings, whose effective batch size is unchanged, and the reason for the batch size.
    """
    default_size = settings.batch_size_or_1
    if settings.device != "cuda":
        return settings, "suits the data; only the memory of a GPU is tested"
    if settings.strategy == "fsdp":
        raise UserError(
            "--batch-size auto is not supported with --strategy fsdp, since it tries steps with the unsharded model on "
            "one device: give --batch-size as a number."
        )
    plan = training_plan(settings, len(data.split_indices("train")), len(data.images.classes))

    def make_batch(size: int) -> Batch:
        loader_settings = replace(settings, batch_size=size, workers=0)
        loader = train_loader(data, card.preprocessing, loader_settings, plan, objective.data_request, 0)
        return next(iter(loader))  # type: ignore[return-value]

    sizes = [default_size // 2**n for n in range(default_size.bit_length()) if default_size % 2**n == 0]
    size = largest_batch(objective, make_batch, sizes, torch.device("cuda"), settings.precision)
    accumulate = settings.accumulate * (default_size // size)
    if size == default_size:
        return settings, "suits the data and fits in memory"
    reason = f"the largest that fits in memory; with {accumulate} passes per step, the effective batch stays the same"
    return replace(settings, batch_size=size, accumulate=accumulate), reason
