"""A model's predictions for all images of a set, gathered from all processes."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn

from paucal.distributed import world_size
from paucal.types import Batch, UserError
from paucal.wording import counted

UNLABELLED = -1


@dataclass(frozen=True)
class Predictions:
    """The outputs of a model, one row per image, on the CPU."""

    ids: Tensor  # (N,) int64 indices of the images in their set, ascending
    logits: Tensor  # (N, K) float32 logits
    labels: Tensor  # (N,) int64, -1 if unknown; if images may have several labels, (N, K): 1, 0 or -1 (unknown)
    groups: NDArray[np.int64] | None = None  # (N,) group of similar images; None if the images are independent

    def __post_init__(self) -> None:
        shapes = (tuple(self.ids.shape), tuple(self.logits.shape), tuple(self.labels.shape))
        n = self.ids.shape[0]
        is_single_label = shapes == ((n,), (n, *self.logits.shape[1:]), (n,))
        fits_multi_label = self.is_multi_label and shapes[0] == (n,) and len(self.logits) == n
        if self.logits.ndim != 2 or not (is_single_label or fits_multi_label):
            raise ValueError(f"expected ids (N,), logits (N, K) and labels (N,) or (N, K), got {shapes}")

    def __len__(self) -> int:
        return self.ids.shape[0]

    @property
    def is_multi_label(self) -> bool:
        """Whether images may have several labels."""
        return self.labels.ndim == 2

    @property
    def probabilities(self) -> Tensor:
        """(N, K) float32 softmax over classes if each image has one label, otherwise sigmoid of each class."""
        return self.logits.sigmoid() if self.is_multi_label else self.logits.softmax(dim=1)

    def at_temperature(self, temperature: float) -> "Predictions":
        """Return the predictions with all logits divided by a temperature. The predicted classes do not change."""
        return self if temperature == 1.0 else replace(self, logits=self.logits / temperature)

    @property
    def n_groups(self) -> int | None:
        """Number of groups of similar images; None if the images are independent."""
        return None if self.groups is None else len(np.unique(self.groups))

    def in_groups(self, groups: NDArray[np.int64] | None) -> "Predictions":
        """Return the predictions with groups; `groups` contains the group number of every image of the image set."""
        return replace(self, groups=None if groups is None else groups[self.ids.numpy()])

    @property
    def predicted(self) -> Tensor:
        """(N,) int64 classes with the highest logits."""
        return self.logits.argmax(dim=1)


def predict_all(
    model: nn.Module,
    loader: Iterable[Batch],
    device: torch.device | str,
    *,
    autocast: torch.dtype | None = None,
    progress: Callable[[int], None] | None = None,
) -> Predictions:
    """Run a classifier on all batches of a loader in evaluation mode and return its outputs.

    Each process runs the model on the first views of its own images and returns the outputs of all processes. Processes
    may have different numbers of images, and a process may have no images. Rows are sorted by id. Samplers may give the
    same image to several processes as padding; such an image is returned once.

    `autocast` is a lower precision for the forward pass, or None for the precision of the weights. `progress` is called
    after each batch with the number of images that this process has processed so far.
    """
    device = torch.device(device)
    rows: list[tuple[Tensor, Tensor, Tensor]] = []
    n_done = 0
    with evaluation_mode(model), torch.inference_mode():
        for batch in loader:
            batch = batch.to(device, non_blocking=True)
            with torch.autocast(device.type, dtype=autocast, enabled=autocast is not None):
                logits = model(batch.views[0])
            rows.append(_batch_rows(batch, logits))
            n_done += len(batch)
            if progress is not None:
                progress(n_done)
    # The columns are concatenated before they are sent, since sending a view, such as a class token, would send the
    # whole tensor that it is a view of. A process without images has no columns.
    columns = [torch.cat(column) for column in zip(*rows, strict=True)]
    if world_size() > 1:
        columns_by_rank: list[Any] = [None] * world_size()
        dist.all_gather_object(columns_by_rank, columns)
        columns = [torch.cat(column) for column in zip(*filter(None, columns_by_rank), strict=True)]
    if not columns or len(columns[0]) == 0:
        raise UserError("there are no images to evaluate: give a folder or a split that contains images.")
    ids, logits, labels = columns
    first_rows = torch.from_numpy(np.unique(ids.numpy(), return_index=True)[1])
    return Predictions(ids[first_rows], logits[first_rows], labels[first_rows])


def predict_in_order(
    model: nn.Module,
    loader: Iterable[Batch],
    indices: NDArray[np.int64],
    device: torch.device | str,
    progress: Callable[[int, int], None] | None = None,
    autocast: torch.dtype | None = None,
) -> Tensor:
    """Return the (N, D) float32 outputs of a model, such as features, in the order of `indices`, on the CPU.

    `indices` are the (N,) positions in the image set that the loader reads, in any order and without duplicates.
    `progress` is called with the number of images processed so far and with N. For `autocast` see `predict_all`.
    """
    advance = None if progress is None else lambda done: progress(done, len(indices))
    predictions = predict_all(model, loader, device, autocast=autocast, progress=advance)
    rank = torch.empty(len(indices), dtype=torch.int64)
    rank[torch.from_numpy(np.argsort(indices, kind="stable"))] = torch.arange(len(indices))
    return predictions.logits[rank]


def majority_classes(labels: Tensor) -> list[int]:
    """Return the most frequent class of (N,) labels, or all such classes if they are tied; labels of -1 are ignored.

    >>> majority_classes(torch.tensor([2, 0, 2, 0, 1, -1, -1, -1]))
    [0, 2]
    """
    labels = labels[labels >= 0]
    if labels.numel() == 0:
        raise ValueError("no image has a label; expected at least one label to find the majority class")
    counts = torch.bincount(labels)
    return torch.nonzero(counts == counts.max())[:, 0].tolist()


def require_class_count(predictions: Predictions, classes: Sequence[str]) -> None:
    """Raise a UserError unless the logits, and the labels if images may have several, have one column per class."""
    n_outputs = predictions.logits.shape[1]
    has_other_labels = predictions.is_multi_label and predictions.labels.shape != predictions.logits.shape
    if n_outputs != len(classes) or has_other_labels:
        raise UserError(
            f"the model has {counted(n_outputs, 'class', 'classes')}, but the data has {len(classes)}: evaluate on "
            "the classes that the model was trained on."
        )


def require_finite(predictions: Predictions) -> None:
    """Raise a UserError if outputs are NaN or infinite."""
    n_broken = int((~torch.isfinite(predictions.logits).all(1)).sum())
    if n_broken:
        raise UserError(
            f"the model's outputs for {n_broken} of {len(predictions)} images are not finite numbers: the weights "
            "are damaged or training diverged; train again with a lower --lr or in full precision."
        )


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Switch a model to evaluation mode; afterwards restore the mode of each module.

    Each module has its own mode, since frozen modules may be in evaluation mode during training.
    """
    flags = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, flag in flags.items():
            module.training = flag


def _batch_rows(batch: Batch, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Check a batch and its logits; return the ids, the float32 logits and the int64 labels on the CPU."""
    if not isinstance(logits, Tensor) or logits.ndim != 2 or logits.shape[0] != len(batch):
        description = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise ValueError(f"expected ({len(batch)}, K) logits from the model, got {description}")
    labels = torch.full((len(batch),), UNLABELLED) if batch.labels is None else batch.labels
    if labels.ndim == 2 and bool(((labels == 0) | (labels == 1) | labels.isnan()).all()):
        labels = labels.nan_to_num(UNLABELLED)
    elif labels.ndim != 1 or labels.is_floating_point():
        raise ValueError(f"expected (B,) integer labels or (B, K) of 0 and 1, got {tuple(labels.shape)} {labels.dtype}")
    return batch.ids.cpu(), logits.float().cpu(), labels.cpu().long()
