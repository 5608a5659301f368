"""The largest batch that fits in a device's memory."""

from dataclasses import replace

import torch

from paucal.methods.training_settings import TrainSettings
from paucal.models.card import ModelCard
from paucal.objectives import Objective
from paucal.runner.images import SplitImages
from paucal.tasks.classification.loaders import train_loader
from paucal.tasks.classification.optimizer import training_plan
from paucal.training import largest_batch
from paucal.types import Batch, UserError


def fit_batch(
    settings: TrainSettings, data: SplitImages, objective: Objective, card: ModelCard
) -> tuple[TrainSettings, str]:
    """Halve the batch, and double the accumulation, until a training step fits in the device's memory.

    Returns:
        The settings, with the same effective batch, and the reason.

    Raises:
        UserError: Not even one image fits, or the model is sharded over the devices.
    """
    usual = settings.images_per_pass
    if settings.device != "cuda":
        return settings, "suits the data; only the memory of a GPU is tested"
    if settings.strategy == "fsdp":
        raise UserError(
            "--batch-size auto tries steps with the whole model on one device, which --strategy fsdp should "
            "avoid: give --batch-size as a number."
        )
    plan = training_plan(settings, len(data.part("train")), len(data.images.classes))

    def make(size: int) -> Batch:
        alone = replace(settings, batch_size=size, workers=0)
        loader = train_loader(data, card.preprocessing, alone, plan, objective.data_request, 0)
        return next(iter(loader))  # type: ignore[return-value]

    sizes = [usual // 2**n for n in range(usual.bit_length()) if usual % 2**n == 0]
    size = largest_batch(objective, make, sizes, torch.device("cuda"), settings.precision or "32-true")
    accumulate = settings.accumulate * (usual // size)
    if size == usual:
        return settings, "suits the data, and fits in the memory"
    reason = f"the largest that fits in the memory; with {accumulate} passes a step the effective batch stays the same"
    return replace(settings, batch_size=size, accumulate=accumulate), reason
