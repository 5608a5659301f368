"""Samples and batches of images with boxes, and the loaders of training and evaluation."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset
from torchvision import tv_tensors

from paucal.data.dataset import SampleKey
from paucal.data.loader import make_ordered_loader
from paucal.data.randomness import preserve_generators, reseed
from paucal.tasks.detection.images import BoxedImages
from paucal.tasks.detection.masks import stack_masks
from paucal.tasks.detection.model import DetectorCard
from paucal.tasks.detection.views import BoxTransform, CopyPaste, Target, make_evaluation_transform

EVAL_BATCH = 4  # images per batch in evaluation; all are padded to the largest height and width in the batch


class BoxSample(NamedTuple):
    """One transformed image with its boxes."""

    id: int  # position of the image in the image set
    image: Tensor  # (3, H, W) float, normalised
    boxes: Tensor  # (N, 4) float, corners in pixels of `image`
    labels: Tensor  # (N,) int64, class of each box, from 0
    size: tuple[int, int]  # (height, width) of the annotated image in pixels
    masks: Tensor | None = None  # (N, H, W) uint8 of 0 and 1; None if unknown


@dataclass
class BoxBatch:
    """A batch of images with the boxes, labels and masks of each image as in `BoxSample`."""

    ids: Tensor  # (B,) int64
    images: Tensor  # (B, 3, H, W) float; smaller images are padded with zeros on the right and bottom
    sizes: Tensor  # (B, 2) int64, height and width of each image within its padding, in pixels
    boxes: list[Tensor]
    labels: list[Tensor]
    original_sizes: Tensor  # (B, 2) int64, height and width of each annotated image, in pixels
    masks: list[Tensor] | None = None  # masks of each image, without the padding; None if unknown

    def __len__(self) -> int:
        return len(self.ids)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> "BoxBatch":
        """Return the batch on another device; ids and sizes stay on the CPU, since Python code reads their values."""
        is_async = non_blocking and str(device).startswith("cuda")
        return self._map_tensors(lambda tensor: tensor.to(device, non_blocking=is_async))

    def pin_memory(self) -> "BoxBatch":
        """Return the batch in page-locked memory."""
        return self._map_tensors(lambda tensor: tensor.pin_memory())

    def image_sizes(self) -> list[tuple[int, int]]:
        """Return the (height, width) of each image within its padding."""
        return [(int(height), int(width)) for height, width in self.sizes.tolist()]

    def _map_tensors(self, move: Callable[[Tensor], Tensor]) -> "BoxBatch":
        boxes, labels = [move(tensor) for tensor in self.boxes], [move(tensor) for tensor in self.labels]
        masks = None if self.masks is None else [move(tensor) for tensor in self.masks]
        return replace(self, images=move(self.images), boxes=boxes, labels=labels, masks=masks)


class BoxedDataset(Dataset[BoxSample]):
    """Reads an image and its boxes by key, and applies the same transforms to the image and the boxes.

    The transform draws from torch's global generator, which is seeded from (seed, epoch, index, repeat) for each
    sample. Boxes with a side below `min_side` pixels of the annotated image, which may be larger than the stored image,
    are left out.
    """

    def __init__(
        self,
        boxed: BoxedImages,
        transform: BoxTransform,
        seed: int,
        pasting: CopyPaste | None = None,
        min_side: float = 0.0,
    ) -> None:
        self._boxed, self._transform, self._seed, self._pasting = boxed, transform, seed, pasting
        self._min_side = min_side

    def __len__(self) -> int:
        return len(self._boxed.images)

    def __getitem__(self, key: SampleKey) -> BoxSample:
        """Return a sample; raise `UnreadableImage` for an image that was damaged after it was checked."""
        return self.__getitems__([key])[0]

    def __getitems__(self, keys: list[SampleKey]) -> list[BoxSample]:
        """Return several samples; the global random generators are restored at the end."""
        with preserve_generators():
            return [self._sample(key) for key in keys]

    def _sample(self, key: SampleKey) -> BoxSample:
        stored = self._read_annotated(key.index)
        reseed(self._seed, *key)
        image, target = self._transform(*stored)
        other = None if self._pasting is None else self._pasting.draw_source_index(key.index)
        if self._pasting is not None and other is not None:
            image, target = self._pasting((image, target), self._transform(*self._read_annotated(other)))
        boxes = torch.as_tensor(target["boxes"]).as_subclass(Tensor).float()
        masks = target["masks"].as_subclass(Tensor) if "masks" in target else None
        size = self._boxed.boxes_of(key.index).size
        return BoxSample(key.index, image.as_subclass(Tensor), boxes, target["labels"], size, masks)

    def _read_annotated(self, index: int) -> tuple[tv_tensors.Image, Target]:
        """Return a stored image with its boxes, labels and masks, without crowds and small boxes."""
        image = tv_tensors.Image(self._boxed.images.store.read(index))
        boxes = self._boxed.boxes_of(index)
        height, width = boxes.size
        scale = torch.tensor([image.shape[-1] / width, image.shape[-2] / height]).repeat(2)
        is_large = (boxes.corners[:, 2:] - boxes.corners[:, :2]).min(1, initial=np.inf) >= self._min_side
        keep = torch.from_numpy(~boxes.crowd & is_large)
        corners = (torch.from_numpy(boxes.corners) * scale)[keep]
        sides = (int(image.shape[-2]), int(image.shape[-1]))
        target: Target = {
            "boxes": tv_tensors.BoundingBoxes(corners, format="XYXY", canvas_size=sides),  # type: ignore[call-overload]
            "labels": torch.from_numpy(boxes.labels)[keep],
        }
        if boxes.masks is not None:
            masks = [mask for mask, is_kept in zip(boxes.masks, keep.tolist(), strict=True) if is_kept]
            target["masks"] = tv_tensors.Mask(stack_masks(masks, sides))
        return image, target


def stack_padded(grids: Sequence[Tensor]) -> Tensor:
    """Pad (C, H, W) images or feature maps on the right and bottom to the largest height and width, and stack them."""
    rows, columns = (max(grid.shape[axis] for grid in grids) for axis in (1, 2))
    return torch.stack([F.pad(grid, (0, columns - grid.shape[2], 0, rows - grid.shape[1])) for grid in grids])


def collate_boxes(samples: list[BoxSample]) -> BoxBatch:
    """Collate samples into a batch, padding images on the right and bottom to the largest height and width."""
    masks = [sample.masks for sample in samples if sample.masks is not None]
    return BoxBatch(
        ids=torch.tensor([sample.id for sample in samples]),
        images=stack_padded([sample.image for sample in samples]),
        sizes=torch.tensor([tuple(sample.image.shape[1:]) for sample in samples]),
        boxes=[sample.boxes for sample in samples],
        labels=[sample.labels for sample in samples],
        original_sizes=torch.tensor([sample.size for sample in samples]),
        masks=masks if len(masks) == len(samples) else None,
    )


def evaluation_loader(
    boxed: BoxedImages,
    indices: NDArray[np.int64],
    card: DetectorCard,
    workers: int | None = None,
    batch_size: int = EVAL_BATCH,
) -> DataLoader:
    """Return a loader of the images at `indices`, transformed as for the deployed detector."""
    view = make_evaluation_transform(card.resize_to, card.preprocessing.mean, card.preprocessing.std)
    dataset = BoxedDataset(boxed, view, seed=0)
    return make_ordered_loader(dataset, indices, batch_size, collate_boxes, workers or 0)
