"""The loader of training crops."""

from dataclasses import replace

from paucal.data.loader import TrainLoader
from paucal.data.views.normalisation import Normalisation
from paucal.training import Plan
from paucal.transfer.segmentation.crops import CropTransform, MaskedCrops
from paucal.verbs.run.loaders import step_loader
from paucal.verbs.segmenting.assembly import AssembledSegmentation, crop_options


def train_loader(
    assembled: AssembledSegmentation, start: int, plan: Plan | None = None, workers: int | None = None
) -> TrainLoader:
    """Return the loader of this process, from a forward pass on.

    Args:
        assembled: the run.
        start: forward passes already made.
        plan: another length than the run's.
        workers: other than the run's.
    """
    settings, fed = assembled.settings, assembled.card.preprocessing
    settings = settings if workers is None else replace(settings, workers=workers)
    transform = CropTransform(crop_options(settings), Normalisation(fed.mean, fed.std))
    crops = MaskedCrops(assembled.prepared.images, assembled.segmented.masks, transform, settings.seed)
    return step_loader(crops, assembled.prepared, settings, plan or assembled.plan, start)
