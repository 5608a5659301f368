"""T2T-ViT, a narrow and deep transformer whose tokens are computed from overlapping windows.

"Tokens-to-Token ViT: Training Vision Transformers from Scratch on ImageNet" (Yuan et al., ICCV 2021). The state dict
has the names of the published code and of DrLoc's code, which contain the same model, so checkpoints of either code can
be loaded.

Differences from the published code:
- Images need not be square, and the size of the grid is computed instead of assumed to be a sixteenth of the image.
- Drop-path and the dropout rates of the token layers are arguments.
- The performer is computed in float32, even under autocast, and cannot overflow; see `linear_attention`.
- In the blocks, products of queries and keys are divided by the root of the number of channels per head. The published
  functions that build a model use the root of the number of all channels if pretrained weights are requested, but the
  published evaluation does not request pretrained weights. Set `qk_scale` to use another factor.

The token layers have linear attention, or softmax attention in the variants with `_t_`. Variants are built without
drop-path unless `drop_path_rate` is passed (published: 0.1; 0 in DrLoc's code). For images of other sizes than 224
pixels, pass `img_size`; the position embedding of a checkpoint for 224 pixels is then interpolated. Small images need a
smaller `patch_size`: with 4, an image of 32 pixels has 8x8 patches.
"""

from collections.abc import Mapping
from typing import Any

import torch
from timm.layers.drop import calculate_drop_path_rates
from timm.layers.weight_init import trunc_normal_
from timm.models import adapt_input_conv, generate_default_cfgs
from torch import Tensor, nn

from paucal.backbones.families.common.contract import init_linear, make_default_cfg, register_variants
from paucal.backbones.families.common.positions import fit_position_embedding, record_input_size, resample_positions
from paucal.backbones.families.common.tokens import Grid, TokenBackbone, require_valid_sizes
from paucal.backbones.families.lvvit_layers import LvVitBlock
from paucal.backbones.families.t2t_layers import FIRST_WINDOW, Size, TokensToToken

PAPER = "T2T-ViT (Yuan et al. 2021)"  # in the table of models

# Parameters of the first token layer whose shapes depend on the number of image channels.
_PIXEL_PARAMETERS = ("norm1.weight", "norm1.bias", "kqv.weight", "attn.qkv.weight")


class T2tVit(TokenBackbone):
    """A T2T-ViT; the defaults are those of T2T-ViT-14.

    The position embedding consists of fixed sines and cosines of a token's position in the sequence, the class token
    first. The embedding is computed for the image size for which the model is built. For other sizes (`set_input_size`,
    `dynamic_img_size` and checkpoints), the embedding is interpolated on the grid, so that positions keep their meaning
    for a trained model.

    Args:
        img_size: Side, or (height, width), of the images in pixels, for which the position embedding is built.
        patch_size: Side of a patch in pixels, a multiple of 4 up to 28; see `TokensToToken`.
        global_pool: Input of the classifier: "token" for the class token, "avg" for the mean of the patch tokens, ""
            for all tokens.
        tokens_type: Attention of the token layers, "performer" or "transformer" (T2T-ViT_t).
        token_dim: Number of channels of the token layers.
        kernel_ratio: Number of the performer's random features, divided by `token_dim`; at most 1.
        token_drop_rate: Dropout rate in the token layers; None for the published rates, 0.1 in the performer and 0 in
            the transformer.
        qk_scale: Factor of the products of queries and keys; None for the inverse root of a head's width.
        dynamic_img_size: Whether to interpolate the position embedding in every forward pass, so that images may have
            other sizes.
        drop_path_rate: Probability that a residual branch of the last block is skipped in training; the probability
            rises linearly from 0 at the first block. Published: 0.1; 0 in DrLoc's code.

    Attributes:
        pos_embed: (1, 1 + H * W, C) position embedding, which is not trained but is in the state dict.
    """

    stem_names = ("cls_token", "pos_embed", "tokens_to_token")

    def __init__(  # noqa: PLR0913 (timm's models take plain arguments)
        self,
        *,
        img_size: int | Size = 224,
        patch_size: int = 16,
        in_chans: int = 3,
        num_classes: int = 1000,
        global_pool: str = "token",
        tokens_type: str = "performer",
        token_dim: int = 64,
        kernel_ratio: float = 0.5,
        token_drop_rate: float | None = None,
        embed_dim: int = 384,
        depth: int = 14,
        num_heads: int = 6,
        mlp_ratio: float = 3.0,
        qkv_bias: bool = False,
        qk_scale: float | None = None,
        dynamic_img_size: bool = False,
        drop_rate: float = 0.0,
        pos_drop_rate: float = 0.0,
        proj_drop_rate: float = 0.0,
        attn_drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
    ) -> None:
        require_valid_sizes(embed_dim, depth, num_heads, mlp_ratio)
        super().__init__(
            num_classes=num_classes,
            in_chans=in_chans,
            embed_dim=embed_dim,
            depth=depth,
            reduction=patch_size,
            global_pool=global_pool,
            drop_rate=drop_rate,
        )
        self.dynamic_img_size = dynamic_img_size
        self.tokens_to_token = TokensToToken(
            img_size, patch_size, in_chans, embed_dim, tokens_type, token_dim, kernel_ratio, token_drop_rate
        )
        rows, columns = self.tokens_to_token.grid_size
        self.cls_token = nn.Parameter(torch.zeros(1, 1, embed_dim))
        self.pos_embed = nn.Parameter(sinusoid(1 + rows * columns, embed_dim), requires_grad=False)
        self.pos_drop = nn.Dropout(pos_drop_rate)
        rates: list[float] = calculate_drop_path_rates(drop_path_rate, depth)  # type: ignore[assignment]
        self.blocks = nn.ModuleList(
            LvVitBlock(  # with a divisor of 1 this is the block of T2T-ViT
                embed_dim,
                num_heads,
                mlp_ratio,
                qkv_bias,
                skip_lam=1.0,
                proj_drop=proj_drop_rate,
                attn_drop=attn_drop_rate,
                drop_path=rate,
            )
            for rate in rates
        )
        for block in self.blocks if qk_scale is not None else ():
            block.attn.scale = float(qk_scale)  # type: ignore[union-attr]
        self.norm = nn.LayerNorm(embed_dim)
        self.apply(init_linear)
        trunc_normal_(self.cls_token, std=0.02)

    @property
    def patch_embed(self) -> TokensToToken:
        """The tokens-to-token module, under timm's name of a patch embedding."""
        return self.tokens_to_token

    def embed(self, x: Tensor) -> tuple[Tensor, Grid]:
        """Return the tokens (B, 1 + H * W, C) of images, including positions, and the (rows, columns) of their grid."""
        self._require_size(x.shape[2], x.shape[3])
        cells, grid = self.tokens_to_token(x)
        positions, built_grid = self.pos_embed, self.tokens_to_token.grid_size
        if grid != built_grid:
            positions = resample_positions(positions, built_grid, grid)
        tokens = torch.cat((self.cls_token.expand(cells.shape[0], -1, -1), cells), 1)
        return self.pos_drop(tokens + positions), grid

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Set whether blocks and token layers are computed again in the backward pass, to save memory."""
        super().set_grad_checkpointing(enable)
        self.tokens_to_token.grad_checkpointing = enable

    def set_input_size(self, img_size: int | Size) -> None:
        """Interpolate the position embedding in place for images of another size in pixels."""
        stem = self.tokens_to_token
        old_grid = stem.grid_size
        stem.set_input_size(img_size, stem.patch_size[0])
        if stem.grid_size != old_grid:
            table = resample_positions(self.pos_embed.detach(), old_grid, stem.grid_size)
            self.pos_embed = nn.Parameter(table, requires_grad=False)
        record_input_size(self, stem.img_size)

    def no_weight_decay(self) -> set[str]:
        """Return the names of the parameters without weight decay."""
        return {"cls_token"}

    def _require_size(self, height: int, width: int) -> None:
        built_size = self.tokens_to_token.img_size
        if (height, width) != built_size and not self.dynamic_img_size:
            raise ValueError(
                f"the images have {height}x{width} pixels, but the model is built for {built_size[0]}x{built_size[1]}: "
                "call set_input_size, or build the model with img_size or dynamic_img_size"
            )


def sinusoid(count: int, channels: int) -> Tensor:
    """Return a position embedding (1, count, channels) of sines and cosines.

    Channel j of position p is the sine, or for odd j the cosine, of p / 10000^(2 * floor(j / 2) / channels).
    """
    index = torch.arange(count, dtype=torch.float64).unsqueeze(1)
    entry = torch.arange(channels)
    angle = index / 10000 ** (2 * (entry // 2).double() / channels)
    return torch.where(entry % 2 == 0, angle.sin(), angle.cos()).float().unsqueeze(0)


def checkpoint_filter_fn(state: Mapping[str, Tensor], model: T2tVit) -> dict[str, Tensor]:
    """Interpolate a checkpoint's position embedding for square images of another size, and adapt the input channels.

    As in timm's conversion of convolutions, weights are summed over the channels for grey images, and repeated for more
    channels. The parameters of the preceding layer norm are averaged over the channels. Therefore, the
    output for a grey image equals the output for three equal channels, if the norm's parameters were equal for all
    channels.
    """
    stem = model.tokens_to_token
    fitted = fit_position_embedding(state, model.pos_embed, stem.grid_size)
    for name, parameter in stem.attention1.named_parameters(prefix="tokens_to_token.attention1"):
        value = fitted.get(name)
        if value is not None and value.shape != parameter.shape and name.endswith(_PIXEL_PARAMETERS):
            fitted[name] = _with_channels(value, parameter, model.in_chans)
            if name.endswith("attn.qkv.weight") and fitted[name] is not value:
                # Attention divides by the root of the layer's width, which has changed; scaled queries correct this.
                fitted[name][: len(parameter) // 3] *= (parameter.shape[1] / value.shape[1]) ** 0.5
    return fitted


def _with_channels(value: Tensor, parameter: Tensor, channels: int) -> Tensor:
    """Return a parameter (..., C * 7 * 7) of the first layer for another C; return other tensors unchanged."""
    count, remainder = divmod(value.shape[-1], FIRST_WINDOW**2) if value.ndim else (0, 1)
    if remainder or not count or value.ndim != parameter.ndim or value.shape[:-1] != parameter.shape[:-1]:
        return value
    split = value.unflatten(-1, (count, FIRST_WINDOW, FIRST_WINDOW))
    if value.ndim == 1:
        return split.mean(0).repeat(channels, 1, 1).flatten()
    return adapt_input_conv(channels, split, base_chans=count).flatten(1).clone()


# Names of the first linear layer, whose input is the image, by `tokens_type`.
_FIRST_LAYERS = {"performer": "tokens_to_token.attention1.kqv", "transformer": "tokens_to_token.attention1.attn.qkv"}
_NARROW = {"embed_dim": 256, "num_heads": 4, "mlp_ratio": 2.0}
_DEPTH_14 = {"embed_dim": 384, "depth": 14, "num_heads": 6}
_DEPTH_19 = {"embed_dim": 448, "depth": 19, "num_heads": 7}
_DEPTH_24 = {"embed_dim": 512, "depth": 24, "num_heads": 8}
_VARIANTS: dict[str, dict[str, Any]] = {
    "t2t_vit_7": {"depth": 7, **_NARROW},  # 4.3M parameters
    "t2t_vit_10": {"depth": 10, **_NARROW},  # 5.9M parameters
    "t2t_vit_12": {"depth": 12, **_NARROW},  # 6.9M parameters
    "t2t_vit_14": _DEPTH_14,  # 21.5M parameters
    "t2t_vit_19": _DEPTH_19,  # 39.2M parameters
    "t2t_vit_24": _DEPTH_24,  # 64.1M parameters
    "t2t_vit_t_14": {**_DEPTH_14, "tokens_type": "transformer"},
    "t2t_vit_t_19": {**_DEPTH_19, "tokens_type": "transformer"},
    "t2t_vit_t_24": {**_DEPTH_24, "tokens_type": "transformer"},
}
default_cfgs = generate_default_cfgs(
    {
        name: make_default_cfg(
            _FIRST_LAYERS[settings.get("tokens_type", "performer")], fixed_input_size=True, license="bsd-3-clause-clear"
        )
        for name, settings in _VARIANTS.items()
    }
)


def _config_changes(arguments: Mapping[str, Any]) -> dict[str, Any]:
    tokens = arguments.get("tokens_type")
    # The model raises an error for other values.
    return {"first_conv": _FIRST_LAYERS[tokens]} if tokens in _FIRST_LAYERS else {}


register_variants(__name__, T2tVit, _VARIANTS, checkpoint_filter_fn, 3, _config_changes)
