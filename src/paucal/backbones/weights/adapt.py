"""Adapts a model's tensors to the same architecture with another image size, patches, windows or input channels.

If timm has a conversion for the model's family (`checkpoint_filter_fn`), this conversion is applied first. The
conversion also renames the tensors of the papers' checkpoints. Tensors whose shapes still differ are resampled with
timm's functions. Position embeddings are resampled as `families.common.positions` defines for the family.
"""

import math
import re
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import timm
import torch
from timm.layers.patch_embed import resample_patch_embed
from timm.layers.pos_embed import resample_abs_pos_embed_nhwc
from timm.layers.pos_embed_rel import resize_rel_pos_bias_table
from timm.models import adapt_input_conv
from torch import Tensor, nn

from paucal.backbones.families.common.positions import resample_positions, uses_antialiasing
from paucal.backbones.layout import Size
from paucal.backbones.weights.load_report import list_some
from paucal.types import UserError
from paucal.wording import counted

_POSITION_NAME = re.compile(r"(^|\.)(pos_embed\w*|absolute_pos_embed|position_embeddings?|patch_pos)$")
_BIAS_TABLE_NAME = "relative_position_bias_table"
_MAX_PREFIX_TOKENS = 8  # largest number of class, distillation and register tokens
# Ends of the names of tensors that a model computes from sizes when it is built, so that a file need not contain them.
_COMPUTED_NAME_ENDS = ("relative_position_index", "attn_mask", "relative_coords_table", "attention_bias_idxs")


@dataclass
class FittedTensors:
    """The tensors of a file, sorted by whether they fit a model."""

    # Tensors with the model's names and shapes, adapted if needed.
    state: dict[str, Tensor] = field(default_factory=dict)
    changes: dict[str, str] = field(default_factory=dict)  # descriptions of how tensors were adapted, by tensor name
    # Tensors with the model's names but other shapes or types.
    mismatched: dict[str, Tensor] = field(default_factory=dict)
    unused: list[str] = field(default_factory=list)  # names of tensors that the model does not have


def fit_to_model(model: nn.Module, state: Mapping[str, Tensor], grid: Size | None = None) -> FittedTensors:
    """Adapt a state dict to a timm model, without changing the state dict or the model.

    `grid` is the (rows, columns) of the position embedding in `state`; None if unknown, then a square is assumed.
    """
    model_state = model.state_dict()
    source = {name: value for name, value in state.items() if not is_computed_from_sizes(name)}
    # timm's conversions assume a square source grid, so position embeddings with a known grid are not converted.
    positions = {name: source.pop(name) for name in list(source) if grid is not None and is_position_embedding(name)}
    fitted = FittedTensors()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # timm's resampling of tables uses deprecated indexing
        converted = {**_convert_by_timm(model, source), **positions}
        fitted.unused += _dropped_names(source, converted)
        for name, value in converted.items():
            if name not in model_state:
                fitted.unused.append(name)
                continue
            parameter = model_state[name]
            has_other_grid = grid is not None and is_position_embedding(name)
            fits = value.shape == parameter.shape and not has_other_grid
            if not fits and is_position_embedding(name):
                # Use the tensor before timm's conversion, which treated an oblong grid as a square.
                value = source.get(name, value)
            result = value if fits else _resample_tensor(model, name, value, parameter, grid)
            if result.shape != parameter.shape or result.is_floating_point() != parameter.is_floating_point():
                fitted.mismatched[name] = value
                continue
            fitted.state[name] = result
            previous = state.get(name, value)
            if result is not previous:
                fitted.changes[name] = _describe_change(name, previous, result)
    return fitted


def is_computed_from_sizes(name: str) -> bool:
    """Return whether a model computes the named tensor from sizes when it is built, so that files need not have it."""
    return name.endswith(_COMPUTED_NAME_ENDS)


def is_position_embedding(name: str) -> bool:
    """Return whether the named tensor is a position embedding."""
    return _POSITION_NAME.search(name) is not None


def position_grid(model: nn.Module) -> Size | None:
    """Return the (rows, columns) of a model's position embedding; None if the model does not have `grid_size`."""
    grid: Any = getattr(getattr(model, "patch_embed", None), "grid_size", None)
    return (int(grid[0]), int(grid[1])) if grid is not None else None


def _convert_by_timm(model: nn.Module, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Convert a checkpoint with timm's function for the model's family; return it unchanged if there is no function.

    The function is in the module that defines the model's variant, the model's class or a base class.
    """
    name = (getattr(model, "pretrained_cfg", None) or {}).get("architecture") or ""
    modules = [timm.model_entrypoint(name).__module__] if timm.is_model(name) else []
    modules += [base.__module__ for base in type(model).__mro__]
    converters = (getattr(sys.modules.get(module), "checkpoint_filter_fn", None) for module in modules)
    convert = next((function for function in converters if function is not None), None)
    if convert is None:
        return state
    try:
        converted = convert(dict(state), model)
    except Exception:  # not a checkpoint of this family, which the comparison of names will report
        return state
    return {name: value for name, value in converted.items() if isinstance(value, Tensor)}


def _dropped_names(source: Mapping[str, Tensor], converted: Mapping[str, Tensor]) -> list[str]:
    """Return the names of tensors that a conversion dropped.

    The list is empty if the conversion made new tensors with new names, since it may have merged tensors into them.
    """
    kept_ids = {id(value) for value in converted.values()}
    source_ids = {id(value) for value in source.values()}
    if any(name not in source and id(value) not in source_ids for name, value in converted.items()):
        return []
    return [name for name, value in source.items() if name not in converted and id(value) not in kept_ids]


def _resample_tensor(model: nn.Module, name: str, value: Tensor, parameter: Tensor, grid: Size | None) -> Tensor:
    """Adapt a tensor to the shape of a model's parameter; return the tensor unchanged if this is not possible."""
    try:
        if is_position_embedding(name):
            if value.ndim == parameter.ndim == 4:
                return _resample_position_map(value, parameter, grid, uses_antialiasing(model))
            return _resample_positions(model, value, parameter, grid)
        if name.endswith(_BIAS_TABLE_NAME):
            module: Any = model.get_submodule(name.rpartition(".")[0])
            return resize_rel_pos_bias_table(value, module.window_size, tuple(parameter.shape))  # type: ignore[arg-type]
        if value.ndim == parameter.ndim == 4 and name.endswith(".weight"):
            return _adapt_kernel(model, name.removesuffix(".weight"), value, parameter)
    except (AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError):
        pass  # the tensor has another meaning in this model, which the comparison of shapes will report
    return value


def _resample_positions(model: nn.Module, value: Tensor, parameter: Tensor, grid: Size | None) -> Tensor:
    """Resample (1, P + H * W, C) position embeddings; return other embeddings unchanged."""
    if value.ndim != 3 or parameter.ndim != 3 or value.shape[-1] != parameter.shape[-1]:
        return value
    new_grid = position_grid(model) or _square_grid(parameter.shape[1])
    prefix = parameter.shape[1] - new_grid[0] * new_grid[1]
    old_grid = grid if grid is not None else _square_grid(value.shape[1] - prefix)
    if not 0 <= prefix <= _MAX_PREFIX_TOKENS or old_grid[0] * old_grid[1] + prefix != value.shape[1]:
        return value
    return resample_positions(value, old_grid, new_grid, prefix, uses_antialiasing(model))


def _resample_position_map(value: Tensor, parameter: Tensor, grid: Size | None, antialias: bool) -> Tensor:
    """Resample (1, H, W, C) or (1, C, H, W) position embeddings; return other embeddings, such as NesT's, unchanged."""
    channels_last = value.shape[-1] == parameter.shape[-1]
    old_map, new_map = (tensor if channels_last else tensor.permute(0, 2, 3, 1) for tensor in (value, parameter))
    old_grid = grid or (old_map.shape[1], old_map.shape[1])
    if old_map.shape[-1] != new_map.shape[-1] or tuple(old_map.shape[1:3]) != old_grid:
        return value
    cells = resample_abs_pos_embed_nhwc(old_map, [new_map.shape[1], new_map.shape[2]], antialias=antialias)
    return cells if channels_last else cells.permute(0, 3, 1, 2).contiguous()


def _square_grid(cells: int) -> Size:
    side = math.isqrt(max(cells, 0))
    return side, side


def _adapt_kernel(model: nn.Module, layer: str, value: Tensor, parameter: Tensor) -> Tensor:
    """Adapt the kernel of a patch embedding without overlap in size, and of the first layer in its input channels."""
    module = model.get_submodule(layer)
    is_patch_embedding = isinstance(module, nn.Conv2d) and module.kernel_size == module.stride
    if is_patch_embedding and value.shape[2:] != parameter.shape[2:]:
        value = resample_patch_embed(value, [parameter.shape[2], parameter.shape[3]])
    first: Any = (getattr(model, "pretrained_cfg", None) or {}).get("first_conv") or ()
    channels = parameter.shape[1]
    if layer not in ((first,) if isinstance(first, str) else tuple(first)) or value.shape[1] == channels:
        return value
    if channels != getattr(model, "in_chans", channels):
        return value  # the input of the first layer is not the image
    return adapt_input_conv(channels, value, base_chans=value.shape[1])


def _describe_change(name: str, old_value: Tensor, new_value: Tensor) -> str:
    if is_position_embedding(name):
        counts = [str(v.shape[1]) if v.ndim == 3 else _sizes_text(v.shape[1:]) for v in (old_value, new_value)]
        return f"resampled from {counts[0]} to {counts[1]} positions"
    if name.endswith(_BIAS_TABLE_NAME):
        return f"resampled from {old_value.shape[0]} to {new_value.shape[0]} offsets"
    if old_value.ndim == new_value.ndim == 4 and old_value.shape[0] == new_value.shape[0]:
        parts = []
        if old_value.shape[2:] != new_value.shape[2:]:
            parts.append(
                f"kernel resampled from {_sizes_text(old_value.shape[2:])} to {_sizes_text(new_value.shape[2:])}"
            )
        if old_value.shape[1] != new_value.shape[1]:
            parts.append(f"input channels from {old_value.shape[1]} to {new_value.shape[1]}")
        if parts:
            return " and ".join(parts)
    return "converted by timm"


def _sizes_text(sizes: Any) -> str:
    return "x".join(map(str, sizes))


def choose_classifier_tensors(
    loaded_tensors: Mapping[str, Tensor],
    shapes: Mapping[str, torch.Size],
    loaded_classes: Sequence[str] | None,
    classes: Sequence[str] | None,
    head: Literal["auto", "keep", "fresh"],
) -> tuple[dict[str, Tensor], str]:
    """Choose the classifier tensors to load, with rows in the order of the model's classes, and give the reason.

    No tensors are returned if the classifier keeps its random weights. The `shapes` are those of the model's
    classifier. Class names are None if unknown. See `start_from` for `head`.
    """
    if not shapes:
        return {}, "none"
    if head == "fresh":
        return {}, "fresh, as requested"
    kept_tensors, reason = _match_classes(loaded_tensors, shapes, loaded_classes, classes)
    if head == "keep" and not kept_tensors:
        raise UserError(f"--init-head keep: the classifier cannot be kept ({reason}); remove the option.")
    return kept_tensors, reason


def _match_classes(
    loaded_tensors: Mapping[str, Tensor],
    shapes: Mapping[str, torch.Size],
    loaded_classes: Sequence[str] | None,
    classes: Sequence[str] | None,
) -> tuple[dict[str, Tensor], str]:
    if set(loaded_tensors) != set(shapes):
        return {}, "fresh, since the loaded weights have none"
    counts = {value.shape[0] if value.ndim and value.is_floating_point() else 0 for value in loaded_tensors.values()}
    n_classes, available = next(iter(shapes.values()))[0], max(counts)
    if loaded_classes is not None and classes is not None and len(loaded_classes) == available:
        if unknown := [name for name in classes if name not in set(loaded_classes)]:
            return {}, f"fresh, since the loaded weights have no class {list_some(unknown)}"
        rows = [loaded_classes.index(name) for name in classes]
        reason = f"kept, {n_classes} of {available} classes found by name"
    elif available == n_classes:
        rows = list(range(n_classes))
        reason = f"kept, since the loaded weights also have {counted(n_classes, 'class', 'classes')}, without names"
    else:
        count_text = counted(available, "class", "classes")
        return {}, f"fresh, since the loaded weights have {count_text} and this run {n_classes}"
    if len(counts) > 1 or any(value[:n_classes].shape != shapes[name] for name, value in loaded_tensors.items()):
        return {}, "fresh, since the classifier of the loaded weights has another shape"
    return {name: value[torch.tensor(rows)] for name, value in loaded_tensors.items()}, reason
