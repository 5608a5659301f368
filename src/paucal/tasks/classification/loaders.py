"""Loaders of a classification run: augmented images for training, and the deployed preprocessing for validation."""

from collections.abc import Callable
from dataclasses import replace

import torch
from PIL import Image
from torch import nn

from paucal.backbones.weights.inputs import WeightsPreprocessing, from_scratch_preprocessing
from paucal.data.dataset import ViewDataset
from paucal.data.images import evenly_spaced
from paucal.data.loader import CachedBatches, TrainLoader
from paucal.data.views.augmentation import Augmentation
from paucal.data.views.normalisation import Normalisation
from paucal.data.views.sheets import MAX_IMAGES, draw_sheet
from paucal.data.views.transforms import TrainTransform, ViewTransform
from paucal.evaluation.classification import quick_multi_label_scores, quick_scores
from paucal.evaluation.predictions import Predictions, predict_all
from paucal.methods.training_settings import TrainSettings
from paucal.models.card import ModelCard
from paucal.models.preprocessing import Preprocessing
from paucal.recipes.table import RECIPES
from paucal.rules.training import SMALL_SIDE
from paucal.runner.images import SplitImages, eval_loader, normalisation, step_loader, stored_preprocessing
from paucal.runs import RunFolder
from paucal.training import Plan
from paucal.types import Crops, DataRequest, height_and_width

PADDING_DIVISOR = 8  # the padding of a padded crop is 1/8 of the image size


def load_or_make_preprocessing(
    settings: TrainSettings, data: SplitImages, weights_input: WeightsPreprocessing | None, run: RunFolder | None
) -> Preprocessing:
    """Return the preprocessing stored in `run`, or else the preprocessing for the settings.

    `weights_input` is the image input that the pretrained weights expect; None for random weights.
    """
    stored = stored_preprocessing(run)
    if stored is not None and stored.image_size == height_and_width(settings.img_size):
        return stored  # stored preprocessing for another image size belongs to the probe
    reading = data.images.decode_options
    chosen_input = make_preprocessing(
        settings, normalisation(settings, data, weights_input), weights_input, reading.value_range
    )
    return replace(chosen_input, channel_ranges=reading.channel_ranges)


def make_preprocessing(
    settings: TrainSettings,
    statistics: Normalisation,
    weights_input: WeightsPreprocessing | None = None,
    value_range: tuple[float, float] | None = None,
) -> Preprocessing:
    """Return the preprocessing of the deployed model.

    There is no center crop if training uses whole images. The crop ratio and the interpolation come from the recipe,
    else from the pretrained weights, else from the defaults of the model.
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
    # Smallest area of a crop, as a fraction of the image area.
    min_scale = settings.crop_scale if settings.crop == "random-resized" else 1.0
    assert min_scale is not None  # chosen by an automatic rule if not given
    return Augmentation(
        crop=settings.crop,
        scale=(min_scale, 1.0),
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
    size = crops.sides or preprocess.image_size
    view_augmentation = make_augmentation(settings)
    if crops.scale is not None:  # the method defines the crops, such as local crops of self-distillation
        view_augmentation = replace(view_augmentation, crop="random-resized", scale=crops.scale)
    statistics = Normalisation(preprocess.mean, preprocess.std)
    return TrainTransform(size, view_augmentation, statistics, exact_geometry, preprocess.resize)


def validation_scores(predictions: Predictions) -> dict[str, float]:
    """Return the scores of validation predictions, with the column names of `metrics.csv`, such as "val_loss"."""
    score = quick_scores if predictions.labels.ndim == 1 else quick_multi_label_scores
    return {f"val_{name}": value for name, value in score(predictions).items()}


def make_val_predictor(
    data: SplitImages, preprocess: Preprocessing, settings: TrainSettings
) -> Callable[[nn.Module, torch.device], Predictions]:
    """Return a function that predicts the validation images.

    The preprocessing is deterministic, so the batches are cached if they take little memory.
    """
    indices = data.split_indices("val")
    height, width = preprocess.image_size
    batches = CachedBatches(
        lambda workers: eval_loader(data, indices, preprocess, replace(settings, workers=workers)),
        n_bytes=len(indices) * height * width * preprocess.channels * 4,
        workers=settings.workers,
        device=settings.device,
    )
    return lambda module, device: predict_all(module, batches, device)


def draw_eval_images(data: SplitImages, card: ModelCard, settings: TrainSettings) -> Image.Image:
    """Draw validation images as the deployed model sees them; without validation images, draw training images."""
    indices = data.split_indices("val") if len(data.split_indices("val")) else data.split_indices("train")
    sample = indices[evenly_spaced(len(indices), MAX_IMAGES)]
    batch = next(iter(eval_loader(data, sample, card.preprocessing, replace(settings, workers=0))))
    return draw_sheet(batch, Normalisation(card.preprocessing.mean, card.preprocessing.std), card.classes)


def draw_training_images(data: SplitImages, card: ModelCard, settings: TrainSettings, plan: Plan) -> Image.Image:
    """Draw a training batch as the network sees the images: augmented, and mixed if the run uses mixup or cutmix."""
    preprocess = card.preprocessing
    batch = next(iter(train_loader(data, preprocess, replace(settings, workers=0), plan, DataRequest(), 0)))
    if plan.mixing is not None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(settings.seed)
            batch = plan.mixing.mix(batch, plan.n_classes)
    return draw_sheet(batch, Normalisation(preprocess.mean, preprocess.std), card.classes)  # type: ignore[arg-type]
