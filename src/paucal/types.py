"""Small dataclasses that are used throughout paucal.

In shapes, B is the batch size, D the number of feature channels, K the number of classes, and H and W are the height
and width of an image or feature map.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from paucal.wording import one_line_message

if TYPE_CHECKING:  # the command line imports this file, and must start quickly
    import torch
    from torch import Tensor

Level = Literal["last", "stages", "merged", "blocks"]


@dataclass(frozen=True)
class Progress:
    """The progress of a run; schedules of learning rates and weights depend only on this progress."""

    step: int  # optimizer steps completed so far
    total_steps: int  # optimizer steps of the whole run
    steps_per_epoch: int  # optimizer steps in one pass over the training images
    # Forward passes completed so far, from which the random seed of the next forward pass is derived. With gradient
    # accumulation, this number is larger than `step`.
    micro_step: int = 0

    @property
    def epoch(self) -> int:
        """Number of completed epochs, which equals the index of the current epoch."""
        return self.step // self.steps_per_epoch

    def half_cosine(self, start: float, end: float) -> float:
        """Return the current value on a half cosine from `start` to `end` over the whole run."""
        return half_cosine(start, end, self.step, self.total_steps)


def half_cosine(start: float, end: float, step: float, horizon: float) -> float:
    """Return the value at `step` of a half cosine from `start` at step 0 to `end` at step `horizon`."""
    position = min(step / max(horizon, 1), 1.0)
    return end + (start - end) * 0.5 * (1 + math.cos(math.pi * position))


@dataclass
class Batch:
    """One batch of training data, in the form that every objective takes."""

    ids: Tensor  # (B,) int64 position of each image in its image set
    views: list[Tensor]  # one (B, C, H, W) tensor per view, with C image channels; plain training has a single view
    # (B,) int64 class numbers, or (B, K) float class probabilities after mixup or CutMix; None if the objective needs
    # no labels. If images may have several labels, (B, K) float: 1 for a label of the image, 0 for any other label, NaN
    # for an unknown label, and a value from 0 to 1 after mixing.
    labels: Tensor | None = None
    # One (B, 2, 3) float tensor per view. Each 2 x 3 matrix maps a point (x, y, 1) of the view to the corresponding
    # point of the source image. Coordinates are normalised: the edges are at -1 and 1, and x points to the right, as in
    # `torch.nn.functional.affine_grid` with align_corners=False.
    geometry: list[Tensor] | None = None
    label_maps: dict[str, Tensor] | None = None  # dense targets by name, each a tensor whose first dimension is B

    def __len__(self) -> int:
        return self.ids.shape[0]

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Batch:
        """Return the batch on another device; with `non_blocking`, the caller continues during a copy to CUDA."""
        # Later operations wait for the copy on CUDA. On MPS, they might read values that are not copied yet.
        is_asynchronous = non_blocking and str(device).startswith("cuda")
        return self._map_tensors(lambda t: t.to(device, non_blocking=is_asynchronous))

    def pin_memory(self) -> Batch:
        """Return the batch in page-locked memory, so that copies to a GPU do not block."""
        return self._map_tensors(lambda t: t.pin_memory())

    def _map_tensors(self, move: Callable[[Tensor], Tensor]) -> Batch:
        return replace(
            self,
            ids=move(self.ids),
            views=[move(view) for view in self.views],
            labels=None if self.labels is None else move(self.labels),
            geometry=None if self.geometry is None else [move(theta) for theta in self.geometry],
            label_maps=None if self.label_maps is None else {k: move(v) for k, v in self.label_maps.items()},
        )


@dataclass(frozen=True)
class FeatureRequest:
    """The features that a backbone is asked to return."""

    # Feature maps: "last" for the final map, "stages" for one map per stage, "merged" for one map per patch-merging
    # layer (Swin) and the final map, "blocks" for one map per block.
    levels: Level = "last"
    norm: bool = True  # whether the backbone's final norm (if there is one) is applied to the last map


@dataclass
class Features:
    """The outputs of a backbone from one forward pass."""

    grids: list[Tensor]  # (B, D, H, W) feature maps, shallow to deep, without class tokens and other prefix tokens
    pooled: Tensor  # (B, D) class token if the architecture has a class token, else the mean over the last feature map
    # (B, K) logits, computed from the class token alone if one of the next two fields is not None; None if the backbone
    # has no classifier
    logits: Tensor | None
    # (B, H * W, K) logits of the patch tokens; None if they are not requested or the backbone does not classify patches
    token_logits: Tensor | None = None
    # (B, K) logits of the distillation token; None if the backbone does not return them separately
    distilled_logits: Tensor | None = None


@dataclass
class LossTerms:
    """Unweighted losses, and the weight of each loss in the total, by name.

    Example:
        >>> import torch
        >>> terms = LossTerms({"class": torch.tensor(2.0), "drloc": torch.tensor(0.4)}, {"drloc": 0.5})
        >>> round(terms.total.item(), 3)
        2.2
    """

    values: dict[str, Tensor]
    weights: dict[str, float] = field(default_factory=dict)

    @property
    def total(self) -> Tensor:
        """The weighted sum of the losses, a scalar tensor; the default weight of a loss is 1."""
        first, *others = [self.weights.get(name, 1.0) * value for name, value in self.values.items()]
        return sum(others, start=first)


def height_and_width(img_size: int | Sequence[int]) -> tuple[int, int]:
    """Return (height, width) in pixels for a size given as (height, width) or as the side of a square.

    Example:
        >>> height_and_width(32), height_and_width([32]), height_and_width([96, 64])
        ((32, 32), (32, 32), (96, 64))
    """
    sides = (img_size,) if isinstance(img_size, int) else tuple(img_size)
    if len(sides) not in (1, 2):
        raise ValueError(f"img_size is {img_size!r}; expected one side, or (height, width), in whole pixels")
    return sides[0], sides[-1]


@dataclass(frozen=True)
class Crops:
    """A group of crops of each image that have the same size and augmentation."""

    count: int = 1  # number of crops of each image
    size: int | tuple[int, int] | None = None  # side in pixels, or (height, width); None for the run's image size
    # Smallest and largest fraction of the image's area that a crop covers; None for the range in the run's settings.
    scale: tuple[float, float] | None = None

    @property
    def sides(self) -> tuple[int, int] | None:
        """(height, width) in pixels; None for the run's image size."""
        return None if self.size is None else height_and_width(self.size)


@dataclass(frozen=True)
class DataRequest:
    """The data that an objective needs: which fields of a batch, and in which form."""

    views: Sequence[Crops] = (Crops(),)  # groups of crops, in the order of `Batch.views`
    geometry: bool = False
    label_maps: bool = False
    mixing: bool = True  # whether mixup and CutMix may be applied to the batches
    labels: bool = True
    smallest_batch: int = 1  # smallest number of images per process and batch for which the loss is defined


@dataclass(frozen=True)
class GroupScale:
    """Factors by which the learning rate and the weight decay of a parameter group are multiplied."""

    lr: float = 1.0
    weight_decay: float = 1.0


GroupScales = Mapping[str, GroupScale]


class UserError(Exception):
    """An error in the user's input. The message gives the invalid value, what was expected and what to do.

    The command line prints the message and exits with code 2; in Python this is an ordinary exception. The constructor
    turns the message into a single line that is safe to print (`wording.one_line_message`).
    """

    def __init__(self, message: str) -> None:
        super().__init__(one_line_message(message))


class NoLabelsError(UserError):
    """Raised if a command needs labels, but the images have no labels and their file layout suggests no labels."""
