"""The base class of backbones whose grids get coarser from stage to stage: CvT and ViL."""

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from paucal.backbones.families.common.contract import Indices, ModelWithClassifier, take_indices, to_map, to_tokens


class StagedBackbone(ModelWithClassifier):
    """A sequence of stages, a final norm, and a classifier on the mean of the last map or on the class token.

    A stage gets a map (B, C, H, W) and returns a pair: a map, and prefix tokens (B, P, C) or None. Prefix tokens are
    dropped after their stage, except in the last stage, where they go through the final norm. Stages have the
    submodules `embed` (the patch embedding) and `blocks`.
    """

    level_modules = "stages"
    stages: nn.ModuleList

    def __init__(
        self,
        *,
        num_classes: int,
        in_chans: int,
        widths: tuple[int, ...],
        reductions: tuple[int, ...],
        global_pool: str = "avg",
        drop_rate: float = 0.0,
        num_prefix_tokens: int = 0,
    ) -> None:
        super().__init__(num_classes, in_chans, widths[-1], global_pool, drop_rate)
        self.num_prefix_tokens = num_prefix_tokens
        self.feature_info = [
            {"num_chs": width, "reduction": reduction, "module": f"stages.{index}"}
            for index, (width, reduction) in enumerate(zip(widths, reductions, strict=True))
        ]

    def require_size(self, size: Sequence[int]) -> None:
        """Raise a ValueError if images with this (height, width) in pixels are not supported."""

    def forward_features(self, x: Tensor) -> Tensor:
        """Return the normalised map (B, C, H, W) of the last stage; with prefix tokens, tokens (B, P + H * W, C)."""
        self.require_size(x.shape[2:])
        prefix = None
        for stage in self.stages:
            x, prefix = stage(x)
        return self._norm_grid(x, prefix)

    def pool(self, x: Tensor) -> Tensor:
        """Return the class token if `global_pool` is "token", else the mean of the map."""
        if x.ndim == 4:
            return x.mean((2, 3))
        return x[:, 0] if self.global_pool == "token" else x[:, self.num_prefix_tokens :].mean(1)

    def forward_intermediates(
        self,
        x: Tensor,
        indices: Indices = None,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: Literal["NCHW"] = "NCHW",
        intermediates_only: bool = False,
    ) -> Any:
        """Return the feature map of each stage, like `forward_intermediates` of timm's models with stages.

        `norm` applies the final norm to the last stage's map. The final features are normalised if the last stage was
        computed.
        """
        if output_fmt != "NCHW":
            raise ValueError(f"output_fmt is {output_fmt!r}, but only 'NCHW' is supported")
        self.require_size(x.shape[2:])
        selected, last = take_indices(len(self.stages), indices), len(self.feature_info) - 1
        outputs, prefix, index = {}, None, 0
        for index, stage in enumerate(self.stages[: max(selected) + 1] if stop_early else self.stages):
            x, prefix = stage(x)
            outputs[index] = x
        final = self._norm_grid(x, prefix) if index == last else x
        if norm and index == last:
            outputs[last] = (
                final if final.ndim == 4 else to_map(final[:, self.num_prefix_tokens :], (x.shape[2], x.shape[3]))
            )
        maps = [outputs[index].contiguous() for index in selected]
        return maps if intermediates_only else (final, maps)

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Set whether blocks are computed again in the backward pass, instead of keeping their activations."""
        super().set_grad_checkpointing(enable)
        for stage in self.stages:
            stage.grad_checkpointing = enable  # type: ignore[assignment]

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Return how parameters are grouped by depth for layer-wise learning rates, in timm's format.

        The patch embedding and the tokens of a later stage belong to the stage's first block, as position embeddings
        belong to the stem in timm's ViT.
        """
        if coarse:
            blocks: list[Any] = [(r"^stages\.(\d+)", None), (r"^norm", (99999,))]
        else:
            blocks = [
                (r"^stages\.(\d+)\.(?!blocks)", (0,)),
                (r"^stages\.(\d+)\.blocks\.(\d+)", None),
                (r"^norm", (99999,)),
            ]
        return {"stem": r"^stages\.0\.(?!blocks)", "blocks": blocks}

    def _norm_grid(self, x: Tensor, prefix: Tensor | None) -> Tensor:
        if prefix is None:
            return to_map(self.norm(to_tokens(x)), (x.shape[2], x.shape[3]))
        return self.norm(torch.cat((prefix, to_tokens(x)), 1))
