"""The base class of backbones with several stages of ever coarser grids: CvT, ViL."""

from typing import Any, Literal

import torch
from torch import Tensor, nn

from paucal.backbones.families.common.contract import Classifying, Indices, take_indices, to_map, to_tokens


class StagedBackbone(Classifying):
    """A sequence of stages, then `norm`; the mean of the cells or the class token is classified.

    A stage takes a map (B, C, H, W) and returns its own map and its prefix tokens (B, P, C), or None. Prefix tokens are
    dropped after their stage; those of the last stage reach the final norm.

    Attributes:
        num_prefix_tokens: Prefix tokens of the last stage.
        stages: The stages; within each, the parameters of the patch embedding are called `embed`, the blocks
            `blocks`.
    """

    levels = "stages"
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

    def forward_features(self, x: Tensor) -> Tensor:
        """Return the normed map (B, C, H, W) of the last stage, or tokens (B, P + H * W, C) if it has prefix tokens."""
        prefix = None
        for stage in self.stages:
            x, prefix = stage(x)
        return self._norm_grid(x, prefix)

    def pool(self, x: Tensor) -> Tensor:
        """Return the class token, or the mean of the cells."""
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
        """Return the map of each stage, as timm's staged models do.

        Args:
            x: Images (B, in_chans, H, W).
            indices: Stages: all (None), the last n (a number), or a list of indices.
            norm: Apply the final norm to the last stage's map.
            stop_early: Compute no stage after the last requested one.
            output_fmt: "NCHW" only.
            intermediates_only: Leave out the final features.

        Returns:
            (final features, list of (B, C, H, W)), or the list. The final features are normed if the last stage was
            reached.
        """
        if output_fmt != "NCHW":
            raise ValueError(f"output_fmt is {output_fmt!r}; maps come as 'NCHW'")
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
        """Compute blocks again in the backward pass instead of keeping what they computed."""
        super().set_grad_checkpointing(enable)
        for stage in self.stages:
            stage.grad_checkpointing = enable  # type: ignore[assignment]

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Return how parameters are grouped by depth, for layer-wise learning rates.

        The patch embedding and the tokens of a later stage belong to the stage's first block, just as positions belong
        to the stem in timm's ViT.
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
