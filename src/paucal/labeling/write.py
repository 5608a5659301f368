"""Make the label maps of a set of images."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paucal.data.images import ImageSet
from paucal.data.loader import make_eval_loader
from paucal.data.maps.hashes import content_hashes
from paucal.data.maps.store import MapWriter
from paucal.data.views.transforms import ViewTransform
from paucal.labeling.teacher import DenseTeacher
from paucal.types import Batch

Advance = Callable[[int, int], None]
LARGEST = 60000.0  # float16 ends at 65504


@dataclass(frozen=True)
class TeacherCheck:
    """How well a teacher knows a labelled sample.

    Attributes:
        images: how many were looked at.
        whole: share that its own classification gets right.
        cells: share that the mean over its cells gets right; this is what its maps are worth.
    """

    images: int
    whole: float
    cells: float


@torch.inference_mode()
def check_teacher(
    teacher: DenseTeacher,
    images: ImageSet,
    positions: NDArray[np.int64],
    transform: ViewTransform,
    device: torch.device,
    batch_size: int = 32,
) -> TeacherCheck:
    """Return a teacher's accuracy on labelled images.

    Args:
        teacher: whose outputs are in the order of the set's classes.
        images: labelled.
        positions: those to look at.
        transform: the teacher's preprocessing.
        device: where the teacher is.
        batch_size: images at a time.
    """
    right = torch.zeros(2)
    for batch in make_eval_loader(images, positions, transform, batch_size):
        maps, whole = teacher(batch.views[0].to(device))
        labels = batch.labels.to(device)
        for which, logits in enumerate((whole, maps.mean((2, 3)))):
            right[which] += (logits.argmax(1) == labels).sum().item()
    shares = (right / max(len(positions), 1)).tolist()
    return TeacherCheck(len(positions), shares[0], shares[1])


def hash_images(images: ImageSet, advance: Advance | None = None) -> list[str]:
    """Return the hash of every image's content."""
    return content_hashes(images, range(len(images)), advance)


def write_maps(
    teacher: DenseTeacher,
    writer: MapWriter,
    loader: Iterable[Batch],
    top: int,
    advance: Advance | None = None,
) -> None:
    """Write the maps of the images that a loader gives.

    Args:
        teacher: asked about every cell.
        writer: of the folder they go to; its `missing` are the images to give.
        loader: batches of whole images, made with the teacher's preprocessing.
        top: classes kept at each cell.
        advance: called with (images done, images in all).
    """
    todo, total = len(writer.missing), len(writer)
    done = total - todo
    device = next(teacher.parameters()).device
    for batch in loader:
        with torch.inference_mode():
            maps, _ = teacher(batch.to(device, non_blocking=True).views[0])
            values, indices = strongest(maps, top)
        writer.write(batch.ids.tolist(), values.cpu().numpy(), indices.cpu().numpy())
        done += len(batch)
        if advance is not None:
            advance(done, total)


def strongest(maps: Tensor, top: int) -> tuple[Tensor, Tensor]:
    """Return the k largest logits at each cell, relative to the others, and their classes.

    The classes left out count as zero later, so the logits are stored less the level of those (the logarithm of their
    mean exponential): a cell then keeps the teacher's probabilities. The published maps hold raw logits, where
    "zero" is whatever it happens to mean to the teacher.

    Args:
        maps: (B, K, H, W).
        top: k.

    Returns:
        values (B, k, H, W) float16 and indices (B, k, H, W) int64.
    """
    maps = maps.float()
    values, indices = maps.topk(min(top, maps.shape[1]), 1)
    left = maps.shape[1] - values.shape[1]
    if left:
        others = maps.scatter(1, indices, float("-inf")).logsumexp(1, keepdim=True)
        values = values - (others - torch.tensor(float(left)).log())
    return values.clamp(-LARGEST, LARGEST).half(), indices
