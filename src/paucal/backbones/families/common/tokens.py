"""The base class of transformers whose blocks all have the same grid: DHVT, LV-ViT and T2T-ViT."""

from typing import Any, Literal

from torch import Tensor, nn

from paucal.backbones.families.common.contract import Indices, ModelWithClassifier, recompute, take_indices, to_map
from paucal.backbones.families.common.positions import record_input_size, resample_parameter, resample_positions

Grid = tuple[int, int]


def require_valid_sizes(embed_dim: int, depth: int, num_heads: int, mlp_ratio: float) -> None:
    """Raise a ValueError if blocks with these sizes cannot be built."""
    if num_heads < 1 or embed_dim < 1 or embed_dim % num_heads:
        raise ValueError(f"embed_dim is {embed_dim}, but must be a multiple of num_heads, which is {num_heads}")
    if depth < 1 or int(embed_dim * mlp_ratio) < 1:
        raise ValueError(
            f"depth is {depth} and mlp_ratio {mlp_ratio}, but there must be at least 1 block and 1 channel in the MLP"
        )


def require_whole_patches(size: Grid, patch: int) -> None:
    """Raise a ValueError if the sides of images in pixels are not multiples of the side of a patch."""
    if size[0] < 1 or size[1] < 1 or size[0] % patch or size[1] % patch:
        raise ValueError(
            f"images have {size[0]}x{size[1]} pixels; both sides must be multiples of the patch of {patch} pixels"
        )


class TokenBackbone(ModelWithClassifier):
    """A backbone with `embed`, `blocks` and `norm`, and a classifier on the class token or the mean patch token.

    Subclasses define `embed`, and set `norm` and `blocks`, which are called with tokens and their grid. `reduction` is
    the grid's stride in pixels.
    """

    pools = ("token", "avg", "")
    blocks: nn.ModuleList
    patch_embed: Any  # has `grid_size`, `img_size` and `set_input_size`
    pos_embed: Any  # an `nn.Parameter`; None for no position embedding
    dynamic_img_size: bool  # whether positions are resampled for images of another size
    antialias_positions = False  # see `common.positions`
    stem_names: tuple[str, ...] = ("cls_token", "pos_embed", "patch_embed")  # parameters in layer 0 of layer-wise decay

    def __init__(
        self,
        *,
        num_classes: int,
        in_chans: int,
        embed_dim: int,
        depth: int,
        reduction: int,
        global_pool: str = "token",
        drop_rate: float = 0.0,
    ) -> None:
        super().__init__(num_classes, in_chans, embed_dim, global_pool, drop_rate)
        self.embed_dim = embed_dim
        self.num_prefix_tokens = 1
        self.reduction = reduction
        self.feature_info = [
            {"num_chs": embed_dim, "reduction": reduction, "module": f"blocks.{index}"} for index in range(depth)
        ]

    def embed(self, x: Tensor) -> tuple[Tensor, Grid]:
        """Return the tokens (B, P + H * W, C) of images, including positions, and the (rows, columns) of their grid."""
        raise NotImplementedError

    def add_positions(self, tokens: Tensor, grid: Grid) -> Tensor:
        """Add the position embedding, if there is one, to tokens (B, 1 + H * W, C) with the grid (H, W)."""
        built_grid = self.patch_embed.grid_size
        if self.pos_embed is None:
            return tokens
        if grid == built_grid:
            return tokens + self.pos_embed
        if not self.dynamic_img_size:
            height, width = self.patch_embed.img_size
            raise ValueError(
                f"the images have {grid[0]}x{grid[1]} patches, but the model is built for {built_grid[0]}x"
                f"{built_grid[1]} ({height}x{width} pixels): call set_input_size, or build the model with img_size or "
                "dynamic_img_size"
            )
        return tokens + resample_positions(self.pos_embed, built_grid, grid)

    def set_input_size(self, img_size: int | Grid) -> None:
        """Prepare the model for another image size in pixels; a position embedding is resampled in place."""
        old_grid = self.patch_embed.grid_size
        self.patch_embed.set_input_size(img_size)
        if self.pos_embed is not None:
            self.pos_embed = resample_parameter(self.pos_embed, old_grid, self.patch_embed.grid_size)
        record_input_size(self, self.patch_embed.img_size)

    def run_block(self, block: nn.Module, x: Tensor, grid: Grid) -> Tensor:
        """Apply a block; use gradient checkpointing if `grad_checkpointing` is set."""
        return recompute(block, x, grid) if self.grad_checkpointing and self.training else block(x, grid)

    def forward_features(self, x: Tensor, **embed_arguments: Any) -> Tensor:
        """Return the tokens (B, P + H * W, C) after the final norm; see `embed` for further arguments."""
        x, grid = self.embed(x, **embed_arguments)
        for block in self.blocks:
            x = self.run_block(block, x, grid)
        return self.norm(x)

    def pool(self, x: Tensor) -> Tensor:
        """Return the class token if `global_pool` is "token", else the mean of the patch tokens."""
        return x[:, 0] if self.global_pool == "token" else x[:, self.num_prefix_tokens :].mean(1)

    def forward_intermediates(
        self,
        x: Tensor,
        indices: Indices = None,
        return_prefix_tokens: bool = False,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: Literal["NCHW", "NLC"] = "NCHW",
        intermediates_only: bool = False,
    ) -> Any:
        """Return the outputs of blocks, like `forward_intermediates` of timm's transformers."""
        selected = take_indices(len(self.blocks), indices)
        x, grid = self.embed(x)
        outputs = {}
        for index, block in enumerate(self.blocks[: max(selected) + 1] if stop_early else self.blocks):
            x = self.run_block(block, x, grid)
            if index in selected:
                outputs[index] = self.norm(x) if norm else x
        first = self.num_prefix_tokens
        maps: list[Any] = [outputs[index][:, first:] for index in selected]
        if output_fmt == "NCHW":
            maps = [to_map(tokens, grid) for tokens in maps]
        if return_prefix_tokens:
            maps = [(grid_map, outputs[index][:, :first]) for grid_map, index in zip(maps, selected, strict=True)]
        return maps if intermediates_only else (self.norm(x), maps)

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Return how parameters are grouped by depth for layer-wise learning rates, in timm's format."""
        stem = "|".join(self.stem_names)
        return {"stem": rf"^(?:{stem})", "blocks": [(r"^blocks\.(\d+)", None), (r"^norm", (99999,))]}
