"""The methods that timm requires of every model, as a base class for the families of this package.

timm repeats this code in each of its models (see `timm.models.vision_transformer`); the behaviour is the same here.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Literal

import torch
from timm.layers.weight_init import trunc_normal_
from timm.models import build_model_with_cfg, checkpoint, register_model
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

Indices = int | Sequence[int] | None
DEIT_CROP_RATIO = 224 / 256  # side of the centre crop divided by the resized side, in DeiT's code and code based on it
PAPERS: dict[str, str] = {}  # source of each registered model, for the table of models
IMAGENET_STATISTICS = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}


def make_default_cfg(first_conv: str, classifier: str | tuple[str, ...] = "head", **changes: Any) -> dict[str, Any]:
    """Return timm's configuration of a model without published weights, for `generate_default_cfgs`.

    `first_conv` is the dotted name of the layer whose input is the image. `classifier` is the dotted name of the layer
    whose outputs are the logits, or a tuple of names. Models that need `img_size` when they are built have
    `fixed_input_size=True`.
    """
    return {
        "url": "",
        "num_classes": 1000,
        "input_size": (3, 224, 224),
        "pool_size": None,
        "crop_pct": 0.9,
        "interpolation": "bicubic",
        "fixed_input_size": False,
        **IMAGENET_STATISTICS,
        "first_conv": first_conv,
        "classifier": classifier,
        "license": "apache-2.0",
        **changes,
    }


def register_variants(
    module: str,
    paper: str,
    model_class: Callable[..., nn.Module],
    variants: Mapping[str, Mapping[str, Any]],
    filter_fn: Callable[..., Any] | None = None,
    out_indices: int | Sequence[int] = (0, 1, 2, 3),
    changes: Callable[[Mapping[str, Any]], dict[str, Any]] = lambda arguments: {},
) -> None:
    """Register the variants of a model family with timm, without a function for each variant.

    Args:
        module: `__name__` of the family's module, whose `default_cfgs` are the configurations of the variants.
        paper: Source of the variants, for the table of models.
        model_class: Class of the models, or a function that builds a model.
        variants: Constructor arguments of each variant, by name; the user's arguments take precedence.
        filter_fn: Function that converts checkpoints of the family (timm's `checkpoint_filter_fn`).
        out_indices: Indices of the levels that `features_only` returns, or n for the last n (3 in timm's ViT).
        changes: Function from the constructor arguments to changes of the configuration.
    """

    def make_builder(name: str, settings: Mapping[str, Any]) -> Callable[..., nn.Module]:
        def build(pretrained: bool = False, **overrides: Any) -> nn.Module:
            arguments = {**settings, **overrides}
            overlay = {**(arguments.pop("pretrained_cfg_overlay", None) or {}), **changes(arguments)}
            return build_model_with_cfg(
                model_class,
                name,
                pretrained,
                pretrained_cfg_overlay=overlay,
                pretrained_filter_fn=filter_fn,
                # A new dictionary for each model, since timm removes entries.
                feature_cfg={"out_indices": out_indices, "feature_cls": "getter"},
                **arguments,
            )

        build.__module__, build.__name__, build.__qualname__ = module, name, name
        return build

    for name, settings in variants.items():
        register_model(make_builder(name, settings))
        PAPERS[name] = paper


def take_indices(count: int, indices: Indices) -> list[int]:
    """Return the indices of the selected levels: all for None, the last n for an integer n, or those of a list.

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


class ModelWithClassifier(nn.Module):
    """The base class of models with a classifier: pooling, dropout (`head_drop`) and a linear layer (`head`)."""

    pools: tuple[str, ...] = ("avg", "")  # allowed values of `global_pool`
    # Name of the attribute with the modules whose outputs are intermediate features.
    level_modules: Literal["blocks", "stages"] = "blocks"
    undecayed_names: tuple[str, ...] = ("cls_token",)  # suffixes of the names of parameters without weight decay
    norm: nn.Module
    feature_info: list[dict[str, Any]]

    def __init__(self, num_classes: int, in_chans: int, num_features: int, global_pool: str, drop_rate: float) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.in_chans = in_chans
        self.num_features = self.head_hidden_size = num_features
        self.global_pool = self._check_pool(global_pool)
        self.grad_checkpointing = False
        self.head_drop = nn.Dropout(drop_rate)
        self.head = new_classifier(num_features, num_classes)

    def get_classifier(self) -> nn.Module | tuple[nn.Module, ...]:
        """Return the classifier's linear layer (an identity if there are no classes), or a tuple of several layers."""
        return self.head

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """Replace the classifier by a new one with random weights on the same device; set `global_pool` if given."""
        self.num_classes = num_classes
        if global_pool is not None:
            self.global_pool = self._check_pool(global_pool)
        self.head = match_model(self, new_classifier(self.num_features, num_classes))

    def no_weight_decay(self) -> set[str]:
        """Return the names of the parameters without weight decay."""
        return {name for name, _ in self.named_parameters() if name.endswith(self.undecayed_names)}

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Set whether blocks are computed again in the backward pass, instead of keeping their activations."""
        self.grad_checkpointing = enable

    def prune_intermediate_layers(
        self, indices: Indices = 1, prune_norm: bool = False, prune_head: bool = True
    ) -> list[int]:
        """Remove what follows the last requested level; return the indices of the requested levels."""
        modules = getattr(self, self.level_modules)
        selected = take_indices(len(modules), indices)
        setattr(self, self.level_modules, modules[: max(selected) + 1])
        if prune_norm:
            self.norm = nn.Identity()
        if prune_head:
            self.reset_classifier(0, "")
        return selected

    def forward_features(self, x: Tensor) -> Tensor:
        """Return the features after the final norm, before any pooling."""
        raise NotImplementedError

    def pool(self, x: Tensor) -> Tensor:
        """Return the pooled features (B, C) from the output of `forward_features`."""
        raise NotImplementedError

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """Return the logits from the output of `forward_features`; with `pre_logits`, the pooled features instead."""
        x = self.head_drop(self.pool(x) if self.global_pool else x)
        return x if pre_logits else self.head(x)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits (B, num_classes) of images (B, in_chans, H, W)."""
        return self.forward_head(self.forward_features(x))

    def _check_pool(self, global_pool: str) -> str:
        if global_pool not in self.pools:
            raise ValueError(
                f"global_pool is {global_pool!r}, but {type(self).__name__} only supports "
                f"{', '.join(map(repr, self.pools))}"
            )
        return global_pool


def new_classifier(features: int, classes: int) -> nn.Module:
    """Return a linear layer with the papers' initialisation; an identity if `classes` is 0."""
    if classes < 1:
        return nn.Identity()
    layer = nn.Linear(features, classes)
    init_linear(layer)
    return layer


def init_linear(module: nn.Module) -> None:
    """Initialise a linear layer as in the papers' code: truncated normal with standard deviation 0.02, biases 0.

    Other modules are not changed, so that this function can be passed to `Module.apply`.
    """
    if isinstance(module, nn.Linear):
        init_table(module.weight)
        if module.bias is not None:
            nn.init.zeros_(module.bias)


def init_table(table: Tensor) -> None:
    """Initialise tokens or positions as in the papers' code: truncated normal with standard deviation 0.02."""
    if not table.is_meta:  # tensors on the meta device have no values, but the call would take 15 ms
        trunc_normal_(table, std=0.02)


def match_model(model: nn.Module, new_module: nn.Module) -> nn.Module:
    """Give a new module the device, dtype and training mode of a model, in place; return the module."""
    weight = next((p for p in model.parameters() if p.is_floating_point()), None)
    moved = new_module if weight is None else new_module.to(device=weight.device, dtype=weight.dtype)
    return moved.train(model.training)


def rename(name: str, rules: Iterable[tuple[str, str]]) -> str:
    """Rename by the first rule that matches: a regular expression for the start of the name, and its replacement."""
    for pattern, replacement in rules:
        renamed, count = re.subn(rf"^(?:{pattern})", replacement, name)
        if count:
            return renamed
    return name


def to_map(tokens: Tensor, grid: tuple[int, int]) -> Tensor:
    """Convert tokens (B, H * W, C), row by row, to a contiguous map (B, C, H, W)."""
    batch, _, channels = tokens.shape
    return tokens.transpose(1, 2).reshape(batch, channels, *grid).contiguous()


def to_tokens(cells: Tensor) -> Tensor:
    """Convert a map (B, C, H, W) to tokens (B, H * W, C), row by row."""
    return cells.flatten(2).transpose(1, 2)


def recompute(block: nn.Module, *arguments: Any) -> Any:
    """Run a block with gradient checkpointing, which computes activations again in the backward pass to save memory.

    The second forward pass does not update the running statistics of batch norms again, so that the statistics are the
    same with and without gradient checkpointing. (In compiled code, buffers are updated only once anyway.)
    """
    norms = [module for module in block.modules() if isinstance(module, _BatchNorm) and module.track_running_stats]
    if not norms or torch.compiler.is_compiling():
        return checkpoint(block, *arguments)
    # `context_fn` returns the contexts of the first and of the second forward pass.
    return checkpoint(
        block, *arguments, use_reentrant=False, context_fn=lambda: (nullcontext(), unchanged_statistics(norms))
    )


@contextmanager
def unchanged_statistics(norms: Sequence[_BatchNorm]) -> Iterator[None]:
    """Let batch norms update copies of their running statistics in the `with` block; restore the originals later."""
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
