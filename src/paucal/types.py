"""The small dataclasses that all folders of paucal use.

Shapes use B for images in a batch, V for views of an image, D for channels and H, W for grid or image sides.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from paucal.wording import sentence

if TYPE_CHECKING:  # the command line imports this file to report mistakes quickly
    import torch
    from torch import Tensor

Level = Literal["last", "stages", "merged", "blocks"]


@dataclass(frozen=True)
class Progress:
    """The progress of a run. Every schedule is a function of this only.

    Attributes:
        step: Optimizer steps completed so far.
        total_steps: Optimizer steps the run will make.
        steps_per_epoch: Optimizer steps in one pass over the training images.
        micro_step: Forward passes completed so far; differs from `step` under gradient accumulation.
            It keys the randomness of the forward pass.
    """

    step: int
    total_steps: int
    steps_per_epoch: int
    micro_step: int = 0

    @property
    def epoch(self) -> int:
        """Completed epochs, counted from 0."""
        return self.step // self.steps_per_epoch

    def half_cosine(self, start: float, end: float) -> float:
        """Return the current value on a half cosine from `start` to `end` over the whole run."""
        return half_cosine(start, end, self.step, self.total_steps)


def half_cosine(start: float, end: float, step: float, horizon: float) -> float:
    """Return the value after `step` steps on a half cosine from `start` to `end`, which it reaches at `horizon`.

    Example:
        >>> half_cosine(0.04, 0.4, 375300, 750600)
        0.22
    """
    position = min(step / max(horizon, 1), 1.0)
    return end + (start - end) * 0.5 * (1 + math.cos(math.pi * position))


@dataclass
class Batch:
    """One batch of training data, the same for every objective.

    Attributes:
        ids: (B,) int64, the index of each image in its image set.
        views: One (B, C, H, W) tensor per crop; a single one for plain training.
        labels: (B,) int64, or (B, K) float after mixing, or None if the objective needs none. If images may have
            several labels, (B, K) float with 1 and 0, NaN where unknown, and values in between after mixing.
        geometry: One (B, 2, 3) float tensor per view, or None. It maps a point of the view to the point of the
            source image it shows, both in normalised coordinates in [-1, 1] as `(x, y, 1)` (x to the right, edges
            of the image at -1 and 1, the convention of `torch.nn.functional.affine_grid`, align_corners=False).
        label_maps: Named tensors with B rows, or None: dense targets stored beside the images.
    """

    ids: Tensor
    views: list[Tensor]
    labels: Tensor | None = None
    geometry: list[Tensor] | None = None
    label_maps: dict[str, Tensor] | None = None

    def __len__(self) -> int:
        return self.ids.shape[0]

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Batch:
        """Return the batch on another device.

        Args:
            device: Target device.
            non_blocking: Whether the caller continues while the copy is made. Only copies to CUDA keep their order with
                later operations; elsewhere it is ignored (on MPS the values may be read before they are there).
        """
        ahead = non_blocking and str(device).startswith("cuda")
        return self._map_tensors(lambda t: t.to(device, non_blocking=ahead))

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
    """Which features a backbone is to return.

    Attributes:
        levels: "last" for the final grid, "stages" for one grid per stage, "merged" for one grid per layer that merges
            patches (Swin's) and the final grid, "blocks" for one grid per block.
        norm: Whether the last grid is read after the backbone's final norm (if it has one) or before it.
    """

    levels: Level = "last"
    norm: bool = True


@dataclass
class Features:
    """The outputs of a backbone from one forward pass.

    Attributes:
        grids: (B, D, H, W) maps, shallow to deep; class tokens and other prefix tokens are left out.
        pooled: (B, D), the class token if the family has one, else the mean over the last grid.
        logits: (B, K), or None if the backbone has no classifier.
        token_logits: (B, H * W, K) of a backbone with a classifier of tokens, if requested; `logits` are then those of
            the class token alone.
        distilled_logits: (B, K) of the distillation token, if a backbone returns them separately, in training; `logits`
            are then those of the class token.
    """

    grids: list[Tensor]
    pooled: Tensor
    logits: Tensor | None
    token_logits: Tensor | None = None
    distilled_logits: Tensor | None = None


@dataclass
class LossTerms:
    """Named, unweighted losses and their weights; they are only summed here.

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
        """The weighted sum, a scalar; a term without a weight counts once."""
        first, *others = [self.weights.get(name, 1.0) * value for name, value in self.values.items()]
        return sum(others, start=first)


def height_and_width(img_size: int | Sequence[int]) -> tuple[int, int]:
    """Return (height, width) of a size in pixels, given as both sides, or as one side of a square.

    Example:
        >>> height_and_width(32), height_and_width([32]), height_and_width([96, 64])
        ((32, 32), (32, 32), (96, 64))
    """
    sides = (img_size,) if isinstance(img_size, int) else tuple(img_size)
    if len(sides) not in (1, 2):
        raise ValueError(f"img_size is {img_size!r}; give a side, or (height, width), in whole pixels")
    return sides[0], sides[-1]


@dataclass(frozen=True)
class Crops:
    """A group of views with the same size and augmentation.

    Attributes:
        count: Number of views of each image.
        size: Side in pixels, or (height, width); None for the run's image size.
        scale: Range of the share of the image's area that a crop covers; None for the run's own setting.
    """

    count: int = 1
    size: int | tuple[int, int] | None = None
    scale: tuple[float, float] | None = None

    @property
    def sides(self) -> tuple[int, int] | None:
        """(height, width) in pixels; None for the run's image size."""
        return None if self.size is None else height_and_width(self.size)


@dataclass(frozen=True)
class DataRequest:
    """What an objective needs from the data.

    Attributes:
        views: The crop groups, in the order of `Batch.views`.
        geometry: Whether `Batch.geometry` is filled.
        label_maps: Whether `Batch.label_maps` is filled.
        mixing: Whether mixup and cutmix may be applied to the images before the objective sees them.
        labels: Whether the images must be labelled.
        smallest_batch: Images per process below which the objective is undefined.
    """

    views: Sequence[Crops] = (Crops(),)
    geometry: bool = False
    label_maps: bool = False
    mixing: bool = True
    labels: bool = True
    smallest_batch: int = 1


@dataclass(frozen=True)
class GroupScale:
    """Factors on the learning rate and the weight decay of a group of parameters."""

    lr: float = 1.0
    weight_decay: float = 1.0


GroupScales = Mapping[str, GroupScale]


class UserError(Exception):
    """A mistake in the user's input: one sentence with the value, what was expected and what to do.

    The command line prints it and exits with code 2; from Python it is an ordinary exception. `wording.sentence` makes
    the message one line that can be shown, whatever its parts are.
    """

    def __init__(self, message: str) -> None:
        super().__init__(sentence(message))


class NoLabelsError(UserError):
    """Images that need labels have none, and their layout suggests none."""
