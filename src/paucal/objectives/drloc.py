"""Dense relative localization as an extra loss for any supervised training.

Source: Liu et al., "Efficient Training of Visual Transformers with Small Datasets", NeurIPS 2021.
The formulas are in `paucal.losses.drloc`. This file adds the heads, the schedule of the loss weight, and the choice of
pairs.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paucal.distributed import rank, world_size
from paucal.losses.drloc import DrLocReading, Mode, Pool, draw_pairs, drloc_chance_level, drloc_loss, pool_grid
from paucal.losses.drloc_targets import ClassSet, Scale, class_counts, gather_cells, pair_index
from paucal.objectives.base import Term, seed_of_step
from paucal.types import Batch, FeatureRequest, Features, Level, Progress, UserError

Schedule = Literal["constant", "ramp"]


@dataclass(frozen=True)
class DrLocOptions(DrLocReading):
    """All options of DrLoc; the options of the loss formula are inherited from `DrLocReading`.

    Attributes:
        weight: Weight lambda of the loss; see `default_weight` for the published weights by backbone.
        n_pairs: Number m of random pairs per image; None to pair each cell with a cell of a random permutation.
        hidden: Width of the head's two hidden layers.
        extra_layer: Whether the head has another linear layer in the modes "ce" and "reg", as in the authors' code.
        pool: Pooling of the last feature map before pairs are drawn, see `paucal.losses.drloc.pool_grid`. If `levels`
            selects several maps, "paper" and "reference" pool none of them, as in the paper and the authors' code.
        levels: Feature maps on which the loss is computed, see `FeatureRequest`: "last" for the final map; "stages",
            "merged" or "blocks" for the sum of the losses on several maps, each with its own head. (The paper computes
            L_all on blocks, and the authors' code on the outputs of Swin's stages after patch merging.)
        norm: Whether the backbone's final norm is applied to the last feature map.
        schedule: "constant" or "ramp". The ramp rises linearly from 0 to `weight` over `warmup_epochs` and then falls
            linearly to 0 at `horizon_epochs`, as in the authors' code. The run may end long before `horizon_epochs`.
        warmup_epochs: Number of epochs in which the ramp rises.
        horizon_epochs: Epoch at which the ramp has fallen to 0.
        seed: Seed of the random pairs.
    """

    weight: float = 0.5
    n_pairs: int | None = 64
    hidden: int = 512
    extra_layer: bool = False
    pool: Pool | int = "paper"
    levels: Level = "last"
    norm: bool = True
    schedule: Schedule = "constant"
    warmup_epochs: int = 20
    horizon_epochs: int = 300
    seed: int = 0

    def __post_init__(self):
        for name, allowed in _CHOICES.items():
            value = getattr(self, name)
            if value not in allowed and not (name == "pool" and type(value) is int and value > 0):
                pool_text = " or a number of cells" if name == "pool" else ""
                choices = ", ".join(allowed)
                raise UserError(f"The DrLoc option {name} is {value!r}, but must be one of {choices}{pool_text}.")
        for name, minimum in _MIN_VALUES.items():
            value = getattr(self, name)
            if value is not None and not value >= minimum:
                raise UserError(f"The DrLoc option {name} is {value!r}, but must be at least {minimum}.")
        if self.schedule == "ramp" and self.horizon_epochs <= self.warmup_epochs:
            raise UserError(
                f"The DrLoc option horizon_epochs is {self.horizon_epochs}, but must be larger than warmup_epochs, "
                f"which is {self.warmup_epochs}."
            )


_CHOICES: dict[str, tuple[Any, ...]] = {
    "mode": get_args(Mode),
    "scale": get_args(Scale),
    "coordinates": ("mean", "sum"),
    "classes": get_args(ClassSet),
    "log_of": ("sigma", "variance"),
    "pool": get_args(Pool),
    "levels": get_args(Level),
    "schedule": get_args(Schedule),
}
_MIN_VALUES = {"weight": 0, "alpha": 0, "n_pairs": 1, "hidden": 1, "warmup_epochs": 0, "seed": 0}

# The options of the paper, which are the defaults, and the options of the authors' code.
# docs/reference/drloc_options.md lists every difference.
PAPER = DrLocOptions()
PRESETS = {
    "paper": PAPER,
    "reference": DrLocOptions(
        scale="none",
        shifted=True,
        classes="absolute",
        log_of="variance",
        extra_layer=True,
        pool="reference",
        norm=False,
        schedule="ramp",
    ),
}

# By family of backbones: pattern of the backbones' names, default weight of the loss, and source of this weight. The
# first pattern that matches counts; "other" matches every name.
_FAMILIES = {
    "swin": (re.compile(r"(^|_)swin"), 0.5, "the paper's value for Swin-T"),
    "t2t": (re.compile(r"(^|_)t2t_"), 0.1, "the paper's value for T2T-ViT-14"),
    "cvt": (re.compile(r"(^|_)cvt_"), 0.1, "the paper's value for CvT-13"),
    "vit": (re.compile(r"^(esvit_|drloc_)?(vit(?!_mini)|deit3?|flexivit)_"), 0.01, "the paper's value for ViT-B/16"),
    "other": (
        re.compile(""),
        0.1,
        "the paper has none for this backbone; 0.1 improved all three backbones of its Table 2b",
    ),
}


def default_weight(model_name: str) -> tuple[float, str]:
    """Return the default weight of the loss for the backbone with this name, and the source of the weight as text.

    Example:
        >>> default_weight("swin_tiny_patch4_window7_224")
        (0.5, "the paper's value for Swin-T")
    """
    _, weight, source = _FAMILIES[_find_family(model_name)]
    return weight, source


def _find_family(model_name: str) -> str:
    return next(family for family, (pattern, _, _) in _FAMILIES.items() if pattern.search(model_name))


class LocalizationHead(nn.Module):
    """Three linear layers on the concatenated embeddings of a pair of cells (Table 15 of the paper's supplement).

    A ReLU follows each of the first two layers. For regression, the last layer has one output for the row offset and
    one for the column offset. For classification, the last layer has logits for the row offset followed by logits for
    the column offset. The layers have torch's default initialisation. The paper does not specify an initialisation; in
    the authors' code, the initialisation depends on the backbone (truncated normal with a standard deviation of 0.02
    for Swin and T2T-ViT, torch's default for others).

    If a feature map has fewer cells than pairs, the first layer is applied once per cell and the outputs are gathered,
    which gives the same result with less work.

    Args:
        dim: Number of channels of the feature map.
        hidden: Width of the two hidden layers.
        classes: Number of classes of the row offset and number of classes of the column offset; None to regress the
            offsets.
        extra_layer: Whether a head with `classes` has another linear layer before the last, as in the authors' code.
            No non-linearity follows this layer, so it adds parameters but no expressive power.

    Example:
        >>> head = LocalizationHead(768)
        >>> sum(p.numel() for p in head.parameters())
        1050626
        >>> rows, columns = head(torch.rand(2, 768, 7, 7), torch.zeros(2, 64, 2, 2, dtype=torch.int64))
        >>> rows.shape
        torch.Size([2, 64, 1])
    """

    def __init__(
        self, dim: int, hidden: int = 512, *, classes: tuple[int, int] | None = None, extra_layer: bool = False
    ):
        super().__init__()
        self.outputs = (1, 1) if classes is None else classes
        self.first = nn.Linear(2 * dim, hidden)
        self.second = nn.Linear(hidden, hidden)
        self.extra = nn.Linear(hidden, hidden) if extra_layer and classes is not None else nn.Identity()
        self.last = nn.Linear(hidden, sum(self.outputs))

    def forward(self, grid: Tensor, pairs: Tensor) -> tuple[Tensor, Tensor]:
        """Return the predictions for the row offset and for the column offset of each pair.

        Args:
            grid: (B, D, H, W) feature map.
            pairs: (B, m, 2, 2) pairs of cells, see `paucal.losses.drloc_targets`.

        Returns:
            Two (B, m, C) tensors; C is 1 for regression, else the number of classes.
        """
        cells = grid.flatten(2).transpose(1, 2).to(self.first.weight.dtype)
        index = pair_index(pairs, grid.shape[-1])
        # The first layer needs 2 * dim * hidden multiplications per pair, or the same number per cell if the layer is
        # applied to single cells.
        if cells.shape[1] < index.shape[1]:
            # One half of the layer's weight applies to the first cell of a pair and the other half to the second cell.
            # Both halves are applied to every cell, in a single matrix product, and then added for each pair.
            halves = F.linear(cells, torch.cat(self.first.weight.chunk(2, dim=1))).chunk(2, dim=-1)
            first = gather_cells(halves[0], index[..., 0]) + gather_cells(halves[1], index[..., 1]) + self.first.bias
        else:
            first = self.first(gather_cells(cells, index.flatten(1)).unflatten(1, index.shape[1:]).flatten(2))
        hidden = self.second(first.relu()).relu()
        rows, columns = self.last(self.extra(hidden)).split(self.outputs, dim=-1)
        return rows, columns


class DrLoc(Term):
    """Dense relative localization, which predicts the offset between two positions ("cells") of the final feature map.

    The pairs depend only on the seed, the index of the forward pass and the position of an image in the joint batch of
    all processes. So several processes train on the same pairs as one process with the joint batch.

    Args:
        dims: Number of channels of each feature map.
        grids: (height, width) of each feature map before pooling. In the modes "l1" and "signed", the heads do not
            depend on this size, so the maps that `forward` receives may have other sizes.
        options: Options of the loss.

    Raises:
        UserError: A feature map has a single cell after pooling.

    Example:
        >>> term = DrLoc([32], [(7, 7)], DrLocOptions(weight=0.1, n_pairs=16))
        >>> features = Features([torch.rand(2, 32, 7, 7)], torch.rand(2, 32), None)
        >>> progress = Progress(step=0, total_steps=10, steps_per_epoch=5)
        >>> term(features, Batch(torch.arange(2), []), progress).shape, term.weight(progress)
        (torch.Size([]), 0.1)
    """

    def __init__(self, dims: Sequence[int], grids: Sequence[tuple[int, int]], options: DrLocOptions = PAPER):
        super().__init__()
        if len(dims) != len(grids) or not grids or (options.levels == "last" and len(grids) > 1):
            raise ValueError(
                f"expected one entry of dims per grid, and a single grid for levels 'last'; got {len(dims)} dims and "
                f"{len(grids)} grids for levels {options.levels!r}"
            )
        self.options = options
        self.request = FeatureRequest(options.levels, options.norm)
        self.sizes: list[tuple[int, int]] = []  # (height, width) of each feature map after pooling
        for grid in grids:
            height, width = self.pooled(torch.empty(1, 1, *grid, device="meta")).shape[-2:]
            if height * width < 2:
                raise UserError(
                    f"DrLoc compares the cells of a grid and needs at least 2, but a grid of {grid[0]} x {grid[1]} "
                    "cells has only 1 after pooling: use larger images, a backbone with a smaller stride, or less "
                    "pooling."
                )
            self.sizes.append((height, width))
        self.heads = nn.ModuleList()
        for dim, size in zip(dims, self.sizes, strict=True):
            classes = class_counts(*size, options.classes) if self._classifies else None
            head = LocalizationHead(dim, options.hidden, classes=classes, extra_layer=options.extra_layer)
            self.heads.append(head)

    @classmethod
    def from_preset(
        cls,
        preset: str,
        dims: Sequence[int],
        grids: Sequence[tuple[int, int]],
        *,
        model_name: str | None = None,
        **overrides: Any,
    ) -> "DrLoc":
        """Build the loss with the options of the paper or of the authors' code.

        Args:
            preset: "paper" or "reference" (the authors' code).
            dims: Number of channels of each feature map.
            grids: (height, width) of each feature map before pooling.
            model_name: Name of the backbone, which determines the weight (`default_weight`). For the preset
                "reference", the name also determines two options as in the authors' code: the feature map of a plain
                ViT is not pooled, and the feature map of T2T-ViT is taken after the final norm.
            **overrides: Fields of `DrLocOptions` that override the preset.

        Example:
            >>> DrLoc.from_preset("reference", [768], [(14, 14)], model_name="vit_base_patch16_224").sizes
            [(14, 14)]
        """
        if preset not in PRESETS:
            raise UserError(f"DrLoc has no preset {preset!r}; the presets are {', '.join(PRESETS)}.")
        option_names = sorted(field.name for field in fields(DrLocOptions))
        for name in overrides:
            if name not in option_names:
                raise UserError(f"DrLoc has no option {name!r}; the options are {', '.join(option_names)}.")
        options = PRESETS[preset]
        if model_name is not None:
            options = replace(options, weight=default_weight(model_name)[0])
            if preset == "reference":
                exceptions: dict[str, dict[str, Any]] = {"vit": {"pool": "none"}, "t2t": {"norm": True}}
                options = replace(options, **exceptions.get(_find_family(model_name), {}))
        return cls(dims, grids, replace(options, **overrides))

    def forward(self, features: Features, batch: Batch, progress: Progress) -> Tensor:
        """Return the unweighted loss, summed over the feature maps and averaged over images and pairs."""
        grids = features.grids[-1:] if self.options.levels == "last" else features.grids
        if len(grids) != len(self.heads):
            raise ValueError(f"DrLoc has a head for each of {len(self.heads)} grids, got {len(grids)} grids")
        generator = torch.Generator(device=grids[0].device)
        generator.manual_seed(seed_of_step(self.options.seed, progress.micro_step))
        losses = []
        for grid, head, size in zip(map(self.pooled, grids), self.heads, self.sizes, strict=True):
            batch_size, (height, width) = grid.shape[0], grid.shape[-2:]
            if self._classifies and (height, width) != size:
                raise ValueError(f"DrLoc's head has the offset classes of a {size} grid, got a {(height, width)} grid")
            n_images = world_size() * batch_size
            all_pairs = draw_pairs(n_images, self.options.n_pairs, height, width, generator=generator)
            pairs = all_pairs[rank() * batch_size : (rank() + 1) * batch_size]  # the pairs for this process's images
            losses.append(drloc_loss(grid, head, self.options, pairs=pairs))
        return torch.stack(losses).sum()

    def weight(self, progress: Progress) -> float:
        """Return the weight lambda, which depends on the epoch if the schedule is "ramp"."""
        options = self.options
        if options.schedule == "constant":
            return options.weight
        epoch, warmup, horizon = progress.epoch, options.warmup_epochs, options.horizon_epochs
        if epoch < warmup:
            return options.weight * epoch / warmup
        return options.weight * max(0.0, 1 - (epoch - warmup) / (horizon - warmup))

    def chance_level(self) -> float:
        """Return the expected loss of the best constant prediction (`drloc_chance_level`), summed over feature maps."""
        return sum(drloc_chance_level(*size, self.options) for size in self.sizes)

    @property
    def _classifies(self) -> bool:
        return self.options.mode in ("ce", "reg")

    def pooled(self, grid: Tensor) -> Tensor:
        """Return the feature map after pooling, from which pairs are drawn."""
        pool = self.options.pool
        return grid if self.options.levels != "last" and not isinstance(pool, int) else pool_grid(grid, pool)
