"""Dense relative localization as an extra loss on any supervised run.

Source: Liu et al., "Efficient Training of Visual Transformers with Small Datasets", NeurIPS 2021.
The formulas are in `paucal.losses.drloc`; here are the heads they need, the weight and its schedule, and the
choice of pairs.
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
from paucal.objectives.random_streams import stream_seed
from paucal.types import Batch, FeatureRequest, Features, Progress, UserError


class DrLoc(Term):
    """Dense relative localization: predict the offset between two cells of the final grid.

    Pairs are a function of the seed, the forward pass and the position of an image in the joint batch of all
    processes, so several processes train on the same pairs as one process would on their joint batch.

    Args:
        dims: Channels of each grid.
        grids: (height, width) of each grid before pooling. In modes "l1" and "signed", whose heads do not
            depend on it, later grids may have another size.
        options: Further options.

    Raises:
        UserError: a grid has a single cell (after pooling).

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
            raise ValueError(f"levels {options.levels!r} do not fit {len(dims)} dims and {len(grids)} grids")
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
        """Build the term as in the paper or in the authors' code.

        The arguments are those of the class and of `preset_options`, which also lists the exceptions.

        Example:
            >>> DrLoc.from_preset("reference", [768], [(14, 14)], model_name="vit_base_patch16_224").sizes
            [(14, 14)]
        """
        return cls(dims, grids, preset_options(preset, model_name=model_name, **overrides))

    def forward(self, features: Features, batch: Batch, progress: Progress) -> Tensor:
        """Return the unweighted loss, summed over the grids and averaged over images and pairs."""
        grids = features.grids[-1:] if self.options.levels == "last" else features.grids
        if len(grids) != len(self.heads):
            raise ValueError(f"the term has {len(self.heads)} heads and was given {len(grids)} grids")
        generator = torch.Generator(device=grids[0].device)
        generator.manual_seed(stream_seed(self.options.seed, progress.micro_step))
        levels = zip(grids, self.heads, self.sizes, strict=True)
        return torch.stack([self._grid_loss(*level, generator) for level in levels]).sum()

    def weight(self, progress: Progress) -> float:
        """Return lambda; a "ramp" depends on `progress.epoch`, and without warm-up starts at its full height."""
        options = self.options
        if options.schedule == "constant":
            return options.weight
        epoch, warmup, horizon = progress.epoch, options.warmup_epochs, options.horizon_epochs
        if epoch < warmup:
            return options.weight * epoch / warmup
        return options.weight * max(0.0, 1 - (epoch - warmup) / (horizon - warmup))

    def chance_level(self) -> float:
        """Return the expected loss of the best predictions that ignore the image (`drloc_chance_level`)."""
        return sum(drloc_chance_level(*size, self.options) for size in self.sizes)

    @property
    def _classifies(self) -> bool:
        return self.options.mode in ("ce", "reg")

    def pooled(self, grid: Tensor) -> Tensor:
        """Return the pooled grid, from which pairs are drawn."""
        pool = self.options.pool
        return grid if self.options.levels != "last" and not isinstance(pool, int) else pool_grid(grid, pool)

    def _pooled_size(self, size: tuple[int, int]) -> tuple[int, int]:
        height, width = self.pooled(torch.empty(1, 1, *size, device="meta")).shape[-2:]
        if height * width < 2:
            raise UserError(
                f"DrLoc compares cells of a grid, but the grid of {size[0]} x {size[1]} leaves only "
                "one to compare; use larger images, a backbone with a smaller stride, or less pooling."
            )
        return height, width

    def _grid_loss(self, grid: Tensor, head: nn.Module, size: tuple[int, int], generator: torch.Generator) -> Tensor:
        grid = self.pooled(grid)
        batch, (height, width) = grid.shape[0], grid.shape[-2:]
        if self._classifies and (height, width) != size:
            raise ValueError(f"the classes are those of a grid of {size}, got {(height, width)}")
        pairs = draw_pairs(world_size() * batch, self.options.n_pairs, height, width, generator=generator)
        own_pairs = pairs[rank() * batch : (rank() + 1) * batch]
        return drloc_loss(grid, head, self.options, pairs=own_pairs)
