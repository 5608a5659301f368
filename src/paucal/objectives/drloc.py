"""Dense relative localization as an extra loss for any supervised training.

Source: Liu et al., "Efficient Training of Visual Transformers with Small Datasets", NeurIPS 2021.
The formulas are in `paucal.losses.drloc`. This file adds the heads, the schedule of the loss weight, and the choice of
pairs.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from paucal.distributed import rank, world_size
from paucal.losses.drloc import draw_pairs, drloc_loss, pool_grid
from paucal.losses.drloc_chance import drloc_chance_level
from paucal.losses.drloc_targets import class_counts
from paucal.objectives.base import Term
from paucal.objectives.drloc_head import LocalizationHead
from paucal.objectives.drloc_options import PAPER, DrLocOptions, preset_options
from paucal.objectives.random_streams import derive_seed
from paucal.types import Batch, FeatureRequest, Features, Progress, UserError


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
        self.sizes = [self._pooled_size(size) for size in grids]
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

        `dims` and `grids` are passed to the class, and the other arguments to `preset_options`.

        Example:
            >>> DrLoc.from_preset("reference", [768], [(14, 14)], model_name="vit_base_patch16_224").sizes
            [(14, 14)]
        """
        return cls(dims, grids, preset_options(preset, model_name=model_name, **overrides))

    def forward(self, features: Features, batch: Batch, progress: Progress) -> Tensor:
        """Return the unweighted loss, summed over the feature maps and averaged over images and pairs."""
        grids = features.grids[-1:] if self.options.levels == "last" else features.grids
        if len(grids) != len(self.heads):
            raise ValueError(f"DrLoc has a head for each of {len(self.heads)} grids, got {len(grids)} grids")
        generator = torch.Generator(device=grids[0].device)
        generator.manual_seed(derive_seed(self.options.seed, progress.micro_step))
        levels = zip(grids, self.heads, self.sizes, strict=True)
        return torch.stack([self._grid_loss(*level, generator) for level in levels]).sum()

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

    def _pooled_size(self, size: tuple[int, int]) -> tuple[int, int]:
        height, width = self.pooled(torch.empty(1, 1, *size, device="meta")).shape[-2:]
        if height * width < 2:
            raise UserError(
                f"DrLoc compares the cells of a grid and needs at least 2, but a grid of {size[0]} x {size[1]} cells "
                "has only 1 after pooling: use larger images, a backbone with a smaller stride, or less pooling."
            )
        return height, width

    def _grid_loss(self, grid: Tensor, head: nn.Module, size: tuple[int, int], generator: torch.Generator) -> Tensor:
        grid = self.pooled(grid)
        batch, (height, width) = grid.shape[0], grid.shape[-2:]
        if self._classifies and (height, width) != size:
            raise ValueError(f"DrLoc's head has the offset classes of a {size} grid, got a {(height, width)} grid")
        all_pairs = draw_pairs(world_size() * batch, self.options.n_pairs, height, width, generator=generator)
        pairs = all_pairs[rank() * batch : (rank() + 1) * batch]  # the pairs for this process's images
        return drloc_loss(grid, head, self.options, pairs=pairs)
