"""Frozen features of images: the pooled one, the last blocks or stages side by side, or class token and patches."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from paucal.backbones.features import FeatureBackbone
from paucal.backbones.forward_hooks import HookedTensors, hook_output
from paucal.backbones.layout import Hints, last_tensor, read_layout, to_grid
from paucal.backbones.probe import model_name
from paucal.types import FeatureRequest, UserError
from paucal.wording import counted

LAST_BLOCKS = 4  # of the published linear probe


@dataclass(frozen=True)
class FeatureKind:
    """Which features.

    Attributes:
        levels: "pooled" (class token where the family has one, else the mean over the last grid, after the final norm),
            "blocks" or "stages" (the last `count` of them, side by side), or "class+mean" (class token and mean of the
            patches of each of the last `count` blocks, after the final norm: EsViT's linear probe of ViT-B, DINO's
            `avgpool_patchtokens`).
        count: how many blocks or stages.
    """

    levels: Literal["pooled", "blocks", "stages", "class+mean"] = "pooled"
    count: int = 1

    def __str__(self) -> str:
        if self.levels == "class+mean":
            last = "block" if self.count == 1 else f"{self.count} blocks"
            return f"class token and mean of patches of the last {last}"
        return "pooled" if self.levels == "pooled" else f"last {counted(self.count, self.levels[:-1])}"


POOLED = FeatureKind()
_KIND = re.compile(r"(?P<alone>pooled|class\+mean)|(?P<levels>blocks|stages|class\+mean):(?P<count>[1-9]\d?)")


def parse_kind(text: str) -> FeatureKind:
    """Read "pooled", "blocks:4", "stages:2", "class+mean" (of the last block) or "class+mean:4".

    Raises:
        UserError: it is something else.

    Example:
        >>> parse_kind("blocks:4")
        FeatureKind(levels='blocks', count=4)
    """
    found = _KIND.fullmatch(text)
    if found is None:
        raise UserError(
            f"--features is {text!r}; expected auto, pooled, or the last few as in blocks:4, stages:2 or class+mean:1."
        )
    return FeatureKind(found["alone"] or found["levels"], int(found["count"] or 1))  # type: ignore[arg-type]


def probe_kind(backbone: FeatureBackbone) -> FeatureKind:
    """Return the features of the published linear probe: the last four blocks where a final norm can be put on them.

    A ResNet, which has no such norm and which the published program does not support, gives its pooled feature.
    """
    plan = backbone.plan
    if plan.norm is None or not plan.blocks:
        return POOLED
    return FeatureKind("blocks", min(LAST_BLOCKS, len(plan.blocks)))


class FeatureReader(nn.Module):
    """Reads several kinds of features from one forward pass.

    Of a block or stage the feature is its class token where the family has one at its end (ViT, DeiT), or a token of
    the stage's own (ViL), else the mean over its cells. The model's final norm is applied to every block of the last
    stage before that, and to none of the earlier stages, whose width it does not have; blocks of a staged model are
    read before the merging that follows them (EsViT, section 4.2). With "class+mean" a block gives its class token and
    then the mean over its cells.

    Args:
        backbone: whose features; hooks stay on it.
        kinds: which.

    Raises:
        UserError: the model has fewer blocks or stages than asked for, or no class token where that is asked for.
    """

    def __init__(self, backbone: FeatureBackbone, kinds: Sequence[FeatureKind]) -> None:
        super().__init__()
        self.backbone, self.kinds, self._hooked = backbone, tuple(kinds), HookedTensors()
        self._blocks = {kind: self._last_blocks(kind.count) for kind in kinds if self._reads_blocks(kind)}
        wanted = {name for names in self._blocks.values() for name in names}
        self._handles = [hook_output(backbone.model, name, self._hooked) for name in sorted(wanted)]

    def forward(self, images: Tensor) -> list[Tensor]:
        """Return one (B, D) tensor per kind for normalised (B, C, H, W) images."""
        requests = [FeatureRequest()]
        requests += [FeatureRequest("stages")] if any(kind.levels == "stages" for kind in self.kinds) else []
        self._hooked.tensors = {}
        try:
            last, *stages = self.backbone.extract(images, requests)
            tensors = self._hooked.tensors
        finally:
            self._hooked.tensors = None
        found = []
        for kind in self.kinds:
            if kind.levels == "pooled":
                found.append(last.pooled)
            elif kind.levels == "class+mean" and kind.count == 1:  # of any family, also where no block has the token
                found.append(torch.cat([last.pooled, last.grids[-1].mean((2, 3))], 1))
            elif kind.levels == "stages":
                found.append(self._stages(kind, stages[0].grids, last.pooled))
            else:
                both = kind.levels == "class+mean"
                parts = [self._block(tensors[name], images, last.grids[-1], both) for name in self._blocks[kind]]
                found.append(torch.cat(parts, 1))
        return found

    def close(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()

    def _reads_blocks(self, kind: FeatureKind) -> bool:
        if kind.levels == "class+mean" and not self.backbone.plan.class_token:
            raise UserError(
                "--features class+mean puts the class token beside the mean of the patches, and "
                f"{model_name(self.backbone.model)} has none that it pools by: give pooled, blocks:4 or stages:2."
            )
        return kind.levels == "blocks" or (kind.levels == "class+mean" and kind.count > 1)

    def _last_blocks(self, count: int) -> tuple[str, ...]:
        names = self.backbone.plan.blocks
        if len(names) < count:
            raise UserError(
                f"--features asks for the last {counted(count, 'block')} and "
                f"{model_name(self.backbone.model)} has {len(names)} "
                "that give a grid: ask for fewer, or for pooled."
            )
        return names[-count:]

    def _stages(self, kind: FeatureKind, grids: list[Tensor], pooled: Tensor) -> Tensor:
        if len(grids) < kind.count:
            raise UserError(
                f"--features asks for the last {counted(kind.count, 'stage')} and "
                f"{model_name(self.backbone.model)} has "
                f"{len(grids)}: ask for fewer, or for pooled."
            )
        return torch.cat([*(grid.mean((2, 3)) for grid in grids[len(grids) - kind.count : -1]), pooled], 1)

    def _block(self, output: Any, images: Tensor, last: Tensor, both: bool) -> Tensor:
        plan, size = self.backbone.plan, (images.shape[-2], images.shape[-1])
        output = last_tensor(output)
        hints = Hints(plan.channels_last, (last.shape[2], last.shape[3]))
        layout, grid = (
            read_layout(output.shape, size, plan.prefixes, hints),
            to_grid(output, size, plan.prefixes, hints),
        )
        if layout is None or grid is None:
            raise ValueError(f"no grid for images of {size} pixels in a block of {model_name(self.backbone.model)}")
        # A token that the final grid lacks belongs to its stage alone and sums it up (ViL's global token).
        own_token = layout.prefix > 0 and (plan.class_token or plan.prefixes[0] == 0)
        norm = self._norm() if grid.shape[1] == last.shape[1] else nn.Identity()
        if both and not layout.prefix:
            raise UserError(
                f"--features class+mean of several blocks needs a class token in each, and "
                f"{model_name(self.backbone.model)} adds its own after them: give class+mean for the last one alone."
            )
        if own_token and not both:
            return _normed_tokens(norm, output[:, 0])
        mean = _normed_grid(norm, grid).mean((2, 3))
        return torch.cat([_normed_tokens(norm, output[:, 0]), mean], 1) if both else mean

    def _norm(self) -> nn.Module:
        name = self.backbone.plan.norm
        return nn.Identity() if name is None else self.backbone.model.get_submodule(name)


def _normed_tokens(norm: nn.Module, tokens: Tensor) -> Tensor:
    return _normed_grid(norm, tokens[:, :, None, None])[:, :, 0, 0] if _is_2d(norm) else norm(tokens)


def _normed_grid(norm: nn.Module, grid: Tensor) -> Tensor:
    return norm(grid) if _is_2d(norm) else norm(grid.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


def _is_2d(norm: nn.Module) -> bool:
    """Tell whether a norm takes (B, C, H, W): timm's norms of that kind have it in their names."""
    return "2d" in type(norm).__name__.lower() or isinstance(norm, nn.GroupNorm)
