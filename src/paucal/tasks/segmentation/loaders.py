"""The loader of training crops."""

from dataclasses import replace

from paucal.data.loader import TrainLoader
from paucal.data.views.normalisation import Normalisation
from paucal.runner.images import step_loader
from paucal.tasks.segmentation.assembly import SegmentationSetup, crop_options
from paucal.tasks.segmentation.crops import CropTransform, MaskedCrops
from paucal.training import Plan


def train_loader(
    setup: SegmentationSetup, start: int, plan: Plan | None = None, workers: int | None = None
) -> TrainLoader:
    """Return the loader of this process, from a forward pass on.

    Args:
        setup: the run.
        start: forward passes already made.
        plan: another length than the run's.
        workers: other than the run's.
    """
    settings, fed = setup.settings, setup.card.preprocessing
    settings = settings if workers is None else replace(settings, workers=workers)
    transform = CropTransform(crop_options(settings), Normalisation(fed.mean, fed.std))
    crops = MaskedCrops(setup.data.images, setup.segmented.masks, transform, settings.seed)
    return step_loader(crops, setup.data, settings, plan or setup.plan, start)
