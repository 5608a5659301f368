"""The methods that timm expects of every model, written once for the families of this package.

timm's own models each repeat this code (see `timm.models.vision_transformer`); the behaviour is the same.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal

import torch
from timm.layers.weight_init import trunc_normal_
from timm.models import build_model_with_cfg, checkpoint, register_model
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

Indices = int | Sequence[int] | None
DEIT_CROP = 224 / 256  # centre crop over resized side, in DeiT's code and code derived from it
IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}


def configuration(first_conv: str, classifier: str | tuple[str, ...] = "head", **changes: Any) -> dict[str, Any]:
    """Return timm's description of a model without published weights on the hub, for `generate_default_cfgs`.

    Args:
        first_conv: Dotted name of the layer that reads the image.
        classifier: Dotted names of the layers that produce the logits.
        changes: Entries that differ, for instance `input_size=(3, 32, 32)` or `fixed_input_size=True` for models
            that need `img_size` when they are built.
    """
    return {
        "url": "",
        "num_classes": 1000,
        "input_size": (3, 224, 224),
        "pool_size": None,
        "crop_pct": 0.9,
        "interpolation": "bicubic",
        "fixed_input_size": False,
        **IMAGENET,
        "first_conv": first_conv,
        "classifier": classifier,
        "license": "apache-2.0",
        **changes,
    }


def register_variants(
    module: str,
    kind: type[nn.Module],
    variants: Mapping[str, Mapping[str, Any]],
    filter_fn: Callable[..., Any] | None = None,
    out_indices: int | Sequence[int] = (0, 1, 2, 3),
    changes: Callable[[Mapping[str, Any]], dict[str, Any]] = lambda arguments: {},
) -> None:
    """Register the variants of a family with timm; its `register_model` would need a function for each.

    Args:
        module: `__name__` of the family's module, whose `default_cfgs` describe the variants.
        kind: The class of the models.
        variants: Constructor arguments by registered name; the user's arguments override them.
        filter_fn: timm's `checkpoint_filter_fn` of the family.
        out_indices: Levels that `features_only` gives; a number stands for the last n (3 in timm's ViT).
        changes: Returns the changes that constructor arguments make to a variant's configuration.
    """
    for name, settings in variants.items():
        register_model(_variant_builder(module, name, kind, settings, filter_fn, out_indices, changes))


def _variant_builder(
    module: str,
    name: str,
    kind: type[nn.Module],
    settings: Mapping[str, Any],
    filter_fn: Callable[..., Any] | None,
    out_indices: int | Sequence[int],
    changes: Callable[[Mapping[str, Any]], dict[str, Any]],
) -> Callable[..., nn.Module]:
    def build(pretrained: bool = False, **overrides: Any) -> nn.Module:
        arguments = {**settings, **overrides}
        overlay = {**(arguments.pop("pretrained_cfg_overlay", None) or {}), **changes(arguments)}
        return build_model_with_cfg(
            kind,
            name,
            pretrained,
            pretrained_cfg_overlay=overlay,
            pretrained_filter_fn=filter_fn,
            feature_cfg={"out_indices": out_indices, "feature_cls": "getter"},  # timm takes entries out of it
            **arguments,
        )

    build.__module__, build.__name__, build.__qualname__ = module, name, name
    return build


def take_indices(count: int, indices: Indices) -> list[int]:
    """Return the indices of the selected levels: all (None), the last n (a number), or the listed ones.

    Example:
        >>> take_indices(4, None), take_indices(4, 2), take_indices(4, [0, -1])
        ([0, 1, 2, 3], [2, 3], [0, 3])
    """
    if indices is None:
        return list(range(count))
    if isinstance(indices, int):
        if not 0 < indices <= count:
            raise ValueError(f"indices is {indices}, but the model has {count} levels: give 1 to {count}")
        return list(range(count - indices, count))
    invalid = [index for index in indices if not -count <= index < count]
    if invalid:
        raise ValueError(f"indices has {invalid}, but the model has {count} levels: give {-count} to {count - 1}")
    return [index % count for index in indices]


class Classifying(nn.Module):
    """The classifier of a model: `head_drop`, then the linear layer `head`, on one pooled feature.

    Attributes:
        num_classes: Outputs of the classifier; 0 for none.
        in_chans: Channels of the images.
        num_features: Channels of `forward_features`.
        head_hidden_size: Channels before the classifier.
        global_pool: How tokens become one feature; "" keeps all tokens.
        grad_checkpointing: Whether blocks are computed again in the backward pass to save memory.
    """

    pools: tuple[str, ...] = ("avg", "")  # allowed values of `global_pool`
    levels: Literal["blocks", "stages"] = "blocks"  # list of modules whose outputs are intermediate features
    norm: nn.Module
    feature_info: list[dict[str, Any]]

    def __init__(self, num_classes: int, in_chans: int, num_features: int, global_pool: str, drop_rate: float) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.in_chans = in_chans
        self.num_features = self.head_hidden_size = num_features
        self.global_pool = self._checked_pool(global_pool)
        self.grad_checkpointing = False
        self.head_drop = nn.Dropout(drop_rate)
        self.head = new_classifier(num_features, num_classes)

    def get_classifier(self) -> nn.Module | tuple[nn.Module, ...]:
        """Return the last linear layer, an identity if there are no classes; a tuple where there are several."""
        return self.head

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """Replace the classifier by a fresh one on the same device, and the pooling if one is given."""
        self.num_classes = num_classes
        if global_pool is not None:
            self.global_pool = self._checked_pool(global_pool)
        self.head = like(self, new_classifier(self.num_features, num_classes))

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Compute blocks again in the backward pass instead of keeping what they computed."""
        self.grad_checkpointing = enable

    def prune_intermediate_layers(
        self, indices: Indices = 1, prune_norm: bool = False, prune_head: bool = True
    ) -> list[int]:
        """Drop the blocks or stages after the last requested one, and optionally the final norm and the classifier."""
        modules = getattr(self, self.levels)
        selected = take_indices(len(modules), indices)
        setattr(self, self.levels, modules[: max(selected) + 1])
        if prune_norm:
            self.norm = nn.Identity()
        if prune_head:
            self.reset_classifier(0, "")
        return selected

    def forward_features(self, x: Tensor) -> Tensor:
        """Return the features after the final norm, before any pooling."""
        raise NotImplementedError

    def pool(self, x: Tensor) -> Tensor:
        """Return one feature (B, C) from the output of `forward_features`."""
        raise NotImplementedError

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """Return the logits from the output of `forward_features`, or with `pre_logits` the pooled feature."""
        x = self.head_drop(self.pool(x) if self.global_pool else x)
        return x if pre_logits else self.head(x)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits (B, num_classes) of images (B, in_chans, H, W)."""
        return self.forward_head(self.forward_features(x))

    def _checked_pool(self, global_pool: str) -> str:
        if global_pool not in self.pools:
            raise ValueError(
                f"global_pool is {global_pool!r}; {type(self).__name__} has {', '.join(map(repr, self.pools))}"
            )
        return global_pool


def new_classifier(features: int, classes: int) -> nn.Module:
    """Return a linear layer with the papers' initialisation, or an identity for no classes."""
    if classes < 1:
        return nn.Identity()
    layer = nn.Linear(features, classes)
    init_linear(layer)
    return layer


def init_linear(module: nn.Module) -> None:
    """Initialise a linear layer as all four papers do: truncated normal with deviation 0.02, biases zero."""
    if isinstance(module, nn.Linear):
        init_table(module.weight)
        if module.bias is not None:
            nn.init.zeros_(module.bias)


def init_table(table: Tensor) -> None:
    """Draw tokens or positions as all four papers do: truncated normal with deviation 0.02."""
    if not table.is_meta:  # without values there is nothing to draw, and trying takes 15 ms
        trunc_normal_(table, std=0.02)


def like(model: nn.Module, new: nn.Module) -> nn.Module:
    """Move a new part to a model's device, precision and mode."""
    weight = next((p for p in model.parameters() if p.is_floating_point()), None)
    moved_part = new if weight is None else new.to(device=weight.device, dtype=weight.dtype)
    return moved_part.train(model.training)


def to_map(tokens: Tensor, grid: tuple[int, int]) -> Tensor:
    """Return tokens (B, H * W, C), row by row, as a contiguous map (B, C, H, W)."""
    batch, _, channels = tokens.shape
    return tokens.transpose(1, 2).reshape(batch, channels, *grid).contiguous()


def to_tokens(cells: Tensor) -> Tensor:
    """Return a map (B, C, H, W) as tokens (B, H * W, C), row by row."""
    return cells.flatten(2).transpose(1, 2)


class _Contexts:
    """The contexts of a checkpoint's two passes: none for the first, `untouched` norms for the second."""

    def __init__(self, norms: Sequence[_BatchNorm]) -> None:
        self.norms = norms

    def __call__(self) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return nullcontext(), untouched(self.norms)


def recompute(block: nn.Module, *arguments: Any) -> Any:
    """Run a block and, in the backward pass, run it again instead of keeping what it computed.

    In training, the second pass would update the running statistics of batch norms again, so a model with checkpoints
    would end with different statistics from one without; here it does not. (Compiled code needs no such care: there a
    buffer changes once.)
    """
    norms = [part for part in block.modules() if isinstance(part, _BatchNorm) and part.track_running_stats]
    if not norms or torch.compiler.is_compiling():
        return checkpoint(block, *arguments)
    return checkpoint(block, *arguments, use_reentrant=False, context_fn=_Contexts(norms))


@contextmanager
def untouched(norms: Sequence[_BatchNorm]) -> Iterator[None]:
    """Let batch norms update copies of their running statistics instead of the originals."""
    originals = [dict(norm.named_buffers(recurse=False)) for norm in norms]
    try:
        for norm, buffers in zip(norms, originals, strict=True):
            for name, buffer in buffers.items():
                setattr(norm, name, buffer.clone())
        yield
    finally:
        for norm, buffers in zip(norms, originals, strict=True):
            for name, buffer in buffers.items():
                setattr(norm, name, buffer)
