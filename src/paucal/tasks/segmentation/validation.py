"""A network judged on images with masks: every pixel of every image, counted."""

from collections.abc import Callable, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from paucal.data.masks.coding import IGNORED
from paucal.data.views.normalisation import Normalisation
from paucal.distributed import rank, world_size
from paucal.evaluation.predictions import evaluation_mode
from paucal.models.preprocessing import Preprocessing
from paucal.tasks.segmentation.images import Segmented
from paucal.tasks.segmentation.scores import Tally, segmentation_report, tally
from paucal.tasks.segmentation.windows import WindowOptions, pixel_probabilities

SCORE, LOSS = "val_mean_iou", "val_loss"
See = Callable[[int, Tensor], None]


def count_pixels(
    network: nn.Module,
    data: Segmented,
    indices: Sequence[int],
    preprocess: Preprocessing,
    options: WindowOptions,
    device: torch.device | str,
    progress: Callable[[int], None] | None = None,
    see: See | None = None,
) -> list[Tally]:
    """Return the counts of given images; processes share them, and each knows all.

    Args:
        network: what is judged; its modes are left as they are.
        data: Images and masks.
        indices: of the images.
        preprocess: how they are prepared.
        options: how they are looked at.
        device: where the network is.
        progress: called with the number of images done by this process.
        see: called with the number and the (K, H, W) probabilities of each image of this process.
    """
    statistics, found = Normalisation(preprocess.mean, preprocess.std), []
    with evaluation_mode(network):
        for done, index in enumerate(list(indices)[rank() :: world_size()], start=1):
            image = statistics.apply(data.images.store.read(int(index))).to(device)
            shares = pixel_probabilities(network, image, options)
            mask = torch.from_numpy(data.masks.read(int(index)))
            found.append(tally(int(index), shares, mask, IGNORED))
            if see is not None:
                see(int(index), shares)
            if progress is not None:
                progress(done)
    return _of_all(found)


def scores(
    data: Segmented, preprocess: Preprocessing, classes: Sequence[str], options: WindowOptions
) -> Callable[[nn.Module, torch.device], Mapping[str, float]]:
    """Return a function that scores a network on the validation images, as `training.Watch` calls it."""
    indices = data.part("val").tolist()

    def validate(module: nn.Module, device: torch.device) -> Mapping[str, float]:
        tallies = count_pixels(module, data, indices, preprocess, options, device)
        report = segmentation_report(tallies, classes)
        return {SCORE: report.mean_iou.value, "val_pixel_accuracy": report.accuracy.value, LOSS: report.loss}

    return validate


def _of_all(tallies: list[Tally]) -> list[Tally]:
    if world_size() == 1:
        return tallies
    heard: list[list[Tally]] = [[] for _ in range(world_size())]
    dist.all_gather_object(heard, tallies)
    return [one for several in heard for one in several]
