"""The frame of the three flavours of CvT: their stages, what values they take, and the names of published tensors."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from paucal.backbones.families.common.staged import StagedBackbone
from paucal.backbones.families.cvt.layers import ConvEmbed, CvtStage, MakeNorm

Rules = Sequence[tuple[str, str]]


class CvtBackbone(StagedBackbone):
    """Stages of a CvT: the first with 4 pixels per cell, each further one with twice as many.

    Args:
        in_chans: channels of the images.
        embed_dims: channels of each stage.
        depths: blocks of each stage.
        stem_padding: zeros around the image in the first convolution, 7x7 with stride 4.
        make_norm: the norm over that many channels.
        make_block: the block of a stage, by their numbers.
        class_token: whether the last stage has a class token.
        classifying: `num_classes`, `global_pool` and `drop_rate`, as `StagedBackbone` takes them.
    """

    embed_layer: type[ConvEmbed] = ConvEmbed

    def __init__(
        self,
        *,
        in_chans: int,
        embed_dims: Sequence[int],
        depths: Sequence[int],
        stem_padding: int,
        make_norm: MakeNorm,
        make_block: Callable[[int, int], nn.Module],
        class_token: bool = False,
        **classifying: Any,
    ) -> None:
        super().__init__(
            in_chans=in_chans,
            widths=tuple(embed_dims),
            reductions=tuple(4 * 2**stage for stage in range(len(embed_dims))),
            num_prefix_tokens=int(class_token),
            **classifying,
        )
        last = len(embed_dims) - 1
        self.stages = nn.ModuleList()
        for stage, (width, depth) in enumerate(zip(embed_dims, depths, strict=True)):
            before, window = (in_chans, (7, 4, stem_padding)) if stage == 0 else (embed_dims[stage - 1], (3, 2, 1))
            embed = self.embed_layer(before, width, *window, make_norm(width))
            blocks = [make_block(stage, number) for number in range(depth)]
            self.stages.append(CvtStage(embed, blocks, width, class_token and stage == last))

    def no_weight_decay(self) -> set[str]:
        """Return the names of the parameters that are not pulled to zero."""
        return {name for name, _ in self.named_parameters() if name.endswith("cls_token")}


def require_sound(
    embed_dims: Sequence[int],
    depths: Sequence[int],
    num_heads: Sequence[int],
    mlp_ratio: float,
    drop_path_rate: float,
) -> None:
    """Check the values that describe the stages of a CvT.

    Raises:
        ValueError: a value that makes no model.
    """
    if not len(embed_dims) == len(depths) == len(num_heads) > 0:
        raise ValueError(
            f"embed_dims has {len(embed_dims)} entries, depths {len(depths)} and num_heads {len(num_heads)}; give one "
            "of each per stage"
        )
    for width, heads in zip(embed_dims, num_heads, strict=True):
        if heads < 1 or width < 1 or width % heads:
            raise ValueError(f"embed_dims has {width} for {heads} heads; it must be a multiple of the heads")
        if int(width * mlp_ratio) < 1:
            raise ValueError(f"mlp_ratio is {mlp_ratio}; it must leave {width} channels at least one hidden channel")
    if min(depths) < 1:
        raise ValueError(f"depths is {tuple(depths)}; each stage must have a block or more")
    if not 0 <= drop_path_rate < 1:
        raise ValueError(f"drop_path_rate is {drop_path_rate}; give a chance from 0 up to, not including, 1")


def renamed(state: Mapping[str, Tensor], rules: Rules) -> dict[str, Tensor]:
    """Return a published state dict under our names and in our shapes; other names are left alone.

    1x1 convolutions become linear layers, norms of shape (1, C, 1, 1) become (C).

    Args:
        state: tensors by name; a prefix before the names that the first rule knows is taken off.
        rules: (pattern of the beginning of a name, what replaces it); of those that fit, the first counts.
    """
    known = (re.match(rf"(.*?)(?:{rules[0][0]})", name) for name in state)
    prefix = next((found[1] for found in known if found is not None), "")
    result = {}
    for name, value in state.items():
        plain = name.removeprefix(prefix)
        ours = _renamed(plain, rules)
        result[ours] = _flattened(ours, value) if ours != plain else value
    return result


def _renamed(name: str, rules: Rules) -> str:
    for pattern, replacement in rules:
        ours, count = re.subn(rf"^(?:{pattern})", replacement, name)
        if count:
            return ours
    return name


def _flattened(name: str, value: Tensor) -> Tensor:
    if value.ndim != 4 or value.shape[2:] != (1, 1):
        return value
    return value.flatten() if re.search(r"norm\d?\.\w+$", name) else value.flatten(1)
