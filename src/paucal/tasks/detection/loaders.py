"""Loaders of a detection run: augmented images for training, images as in deployment for evaluation."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.utils.data import DataLoader

from paucal.data.loader import TrainLoader, make_ordered_loader, make_train_loader
from paucal.data.sampler import StepSampler
from paucal.distributed import rank, world_size
from paucal.tasks.detection.assembly import DetectionSetup
from paucal.tasks.detection.batch import BoxedDataset, collate_boxes
from paucal.tasks.detection.card import DetectorCard
from paucal.tasks.detection.instance_masks.copy_paste import CopyPaste
from paucal.tasks.detection.judging import MASKS, Found, coco_scores, detect_all
from paucal.tasks.detection.views import evaluation_view, training_view

EVAL_BATCH = 4  # images
SCORE, MISSED = "val_ap", "val_missed"


def train_loader(setup: DetectionSetup, start: int) -> TrainLoader:
    """Return the training loader of this process, starting at a forward pass."""
    settings, plan = setup.settings, setup.plan
    fed = setup.card.preprocessing
    hflip, jitter = settings.hflip, settings.jitter
    view = training_view(setup.sides, fed.mean, fed.std, hflip, jitter)
    sampler = StepSampler(
        setup.data.part("train"),
        settings.images_per_pass,
        plan.most_steps * plan.accumulate,
        settings.seed,
        start,
        rank=rank(),
        world=world_size(),
        accumulate=plan.accumulate,
    )
    partners = [int(index) for index in setup.data.part("train")]
    pasting = CopyPaste(settings.copy_paste, partners) if settings.copy_paste else None
    dataset = BoxedDataset(setup.images, view, settings.seed, pasting, settings.least_box)
    return make_train_loader(dataset, sampler, settings.workers, settings.device == "cuda", collate_boxes)


def ordered_loader(setup: DetectionSetup, indices: NDArray[np.int64], card: DetectorCard | None = None) -> DataLoader:
    """Return a loader over some images as the deployed detector sees them."""
    card, settings = card or setup.detector_card, setup.settings
    view = evaluation_view(card.resize_to, card.preprocessing.mean, card.preprocessing.std)
    dataset = BoxedDataset(setup.images, view, seed=0)
    return make_ordered_loader(dataset, indices, EVAL_BATCH, collate_boxes, settings.workers)


def validation(setup: DetectionSetup) -> Callable[[nn.Module, torch.device], Mapping[str, float]]:
    """Return the function that scores a detector on the validation images."""

    def scores(detector: nn.Module, device: torch.device) -> Mapping[str, float]:
        indices = setup.data.part("val")
        found = detect_all(detector, ordered_loader(setup, indices), device)
        judged = scores_of(setup, found, indices)
        masks = {f"val_{MASKS}ap": judged[f"{MASKS}ap"]} if f"{MASKS}ap" in judged else {}
        return {SCORE: judged["ap"], "val_ap50": judged["ap50"], **masks, MISSED: 1 - judged["recall"]}

    return scores


def scores_of(setup: DetectionSetup, found: Mapping[int, Found], indices: Sequence[int] | NDArray[np.int64]):
    """Return COCO's scores of the objects found in some images."""
    order = [int(index) for index in indices]
    truth = [setup.images.of(index) for index in order]
    return coco_scores([found[index] for index in order], truth, len(setup.images.classes))
