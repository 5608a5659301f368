"""Evaluation of a segmentation network: confusion counts of each image's pixels, and predicted masks."""

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

from paucal.data.masks.coding import IGNORED
from paucal.data.views.normalisation import Normalisation
from paucal.distributed import rank, world_size
from paucal.evaluation.predictions import evaluation_mode
from paucal.models.preprocessing import Preprocessing
from paucal.tasks.segmentation.images import SegmentationData
from paucal.tasks.segmentation.model import SegmentationModel
from paucal.tasks.segmentation.pictures import write_mask
from paucal.tasks.segmentation.scores import PixelCounts, count_image_pixels
from paucal.tasks.segmentation.windows import WindowOptions, pixel_probabilities


def count_pixels(
    network: nn.Module,
    data: SegmentationData,
    indices: Sequence[int],
    preprocessing: Preprocessing,
    options: WindowOptions,
    device: torch.device | str,
    on_image: Callable[[int, Tensor], None] = lambda index, probabilities: None,
) -> list[PixelCounts]:
    """Count the pixels of each image by label and prediction.

    The images at `indices` are divided among all processes, and every process returns the counts of all images.
    `on_image` is called for each image of this process, with the image's index and (K, H, W) probabilities.
    """
    normalisation, pixel_counts = Normalisation(preprocessing.mean, preprocessing.std), []
    with evaluation_mode(network):
        for index in map(int, list(indices)[rank() :: world_size()]):
            image = normalisation.apply(data.images.store.read(index)).to(device)
            probabilities = pixel_probabilities(network, image, options)
            pixel_counts.append(
                count_image_pixels(index, probabilities, torch.from_numpy(data.masks.read(index)), IGNORED)
            )
            on_image(index, probabilities)
    if world_size() == 1:
        return pixel_counts
    gathered: list[list[PixelCounts]] = [[] for _ in range(world_size())]
    dist.all_gather_object(gathered, pixel_counts)
    return [counts for process_counts in gathered for counts in process_counts]


def count_and_write_masks(
    model: SegmentationModel,
    data: SegmentationData,
    indices: Sequence[int],
    options: WindowOptions,
    folder: Path,
    advance: Callable[[int, int], None],
) -> list[PixelCounts]:
    """Count pixels like `count_pixels`, and write the predicted masks to a folder.

    `advance` is called after each mask, with the number of written masks and the total number of images.
    """
    mask_files: list[Path] = []

    def write(index: int, probabilities: Tensor) -> None:
        classes = probabilities.argmax(0).cpu().numpy()
        mask_files.append(write_mask(folder, data.images.keys[index], classes, model.card.coding))
        advance(len(mask_files), len(indices))

    return count_pixels(model.network, data, indices, model.card.preprocessing, options, model.device, write)
