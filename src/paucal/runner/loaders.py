"""Loaders and preprocessing from the settings, for any job."""

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import DataLoader

from paucal.backbones.weights.inputs import ImageInput, input_of_timm
from paucal.data.channels.planes import RGB
from paucal.data.dataset import ViewDataset
from paucal.data.decode import Reading
from paucal.data.loader import TrainLoader, images_together, make_eval_loader, make_train_loader
from paucal.data.sampler import StepSampler
from paucal.data.views.normalisation import Normalisation, compute_normalisation
from paucal.distributed import rank, world_size
from paucal.models.preprocessing import Preprocessing
from paucal.models.saved import stored_card
from paucal.runner.images import SplitImages
from paucal.runs import RunFolder
from paucal.settings.groups import JobSettings
from paucal.training import Plan


def stored_preprocessing(run: RunFolder | None) -> Preprocessing | None:
    """Return the preprocessing of a resumed run; None if it has not stored any yet.

    Raises:
        UserError: The run's model card is damaged.
    """
    card = stored_card(run)
    return None if card is None else card.preprocessing


def stored_reading(run: RunFolder | None) -> Reading | None:
    """Return how a resumed run reads its images; None if it has not stored that yet."""
    stored = stored_preprocessing(run)
    return None if stored is None else stored.reading


def normalisation(settings: JobSettings, data: SplitImages, start: ImageInput | None = None) -> Normalisation:
    """Return mean and standard deviation: of the training images, of ImageNet, or of the pretrained weights.

    Images with other than three channels always use their own.
    """
    if settings.normalise == "computed" or data.images.reading.channels != RGB:
        return compute_normalisation(data.images, data.part("train"))
    if settings.normalise == "model":
        fed = start or input_of_timm(settings.model or "")
        return Normalisation(fed.mean, fed.std)
    return Normalisation()


def step_loader(
    dataset: ViewDataset,
    data: SplitImages,
    settings: JobSettings,
    plan: Plan,
    start: int,
    repeats: int = 1,
    balanced: bool = False,
) -> TrainLoader:
    """Return the training loader of this process, starting at a forward pass."""
    train, stream = data.part("train"), data.images.stream
    sampler = StepSampler(
        train,
        settings.images_per_pass,
        plan.most_steps * plan.accumulate,
        settings.seed,
        start,
        rank=rank(),
        world=world_size(),
        accumulate=plan.accumulate,
        repeats=repeats,
        labels=data.images.labels[train] if balanced else None,
        stream=stream and stream.take(train),
    )
    return make_train_loader(dataset, sampler, settings.workers or 0, pin_memory=settings.device == "cuda")


def eval_loader(
    data: SplitImages, indices: NDArray[np.int64], preprocess: Preprocessing, settings: JobSettings
) -> DataLoader:
    """Return a loader of some images in order, preprocessed as for the deployed model."""
    return make_eval_loader(
        data.images,
        indices,
        preprocess.transform(),
        images_together(preprocess.image_size, settings.device or "cpu"),
        settings.workers or 0,
        rank=rank(),
        world=world_size(),
        pin_memory=settings.device == "cuda",
    )
