"""Builds models on the meta device, without values, to find out which image sizes and arguments they accept."""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import timm
import torch
from timm.layers.patch_embed import PatchEmbed
from torch import Tensor, nn
from torch.nn import init
from torch.overrides import TorchFunctionMode

from paucal.backbones.features import FeatureBackbone
from paucal.backbones.layout import Size
from paucal.backbones.names import create_model
from paucal.backbones.probe import make_dummy_images, temporary_eval_mode
from paucal.types import UserError

P = ParamSpec("P")
T = TypeVar("T")

# Exceptions that timm's constructors and models raise for unsuitable image sizes.
_SIZE_ERRORS = (
    *(AssertionError, AttributeError, RuntimeError, TypeError, ValueError, IndexError, ZeroDivisionError, UserError),
)

# Functions that only fill a tensor, or that transform random values in place.
_FILLS = frozenset(
    (
        *(Tensor.normal_, Tensor.uniform_, Tensor.erfinv_, Tensor.mul_, Tensor.add_, Tensor.clamp_),
        *(Tensor.fill_, Tensor.zero_, init.normal_, init.uniform_, init.constant_, init.kaiming_uniform_),
    )
)


def cached_by_text(function: Callable[P, T]) -> Callable[P, T]:
    """Cache the results of a function by the text of its arguments, since mappings are not hashable."""
    results: dict[str, T] = {}

    @wraps(function)
    def cached(*arguments: P.args, **options: P.kwargs) -> T:
        key = repr((arguments, options))
        if key not in results:
            results[key] = function(*arguments, **options)
        return results[key]

    return cached


class _NoInitialValues(TorchFunctionMode):
    """Skips the initialization of tensors without values, which takes most of the time of building a transformer."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _FILLS:
            tensor = args[0] if args else kwargs["tensor"]  # torch's initialisers pass all arguments by keyword
            if tensor.is_meta:
                return tensor
        return func(*args, **kwargs)


@contextmanager
def meta_device() -> Iterator[None]:
    """Build models on the meta device within this context, where tensors have shapes but no values."""
    with torch.device("meta"), _NoInitialValues():
        yield


def build_empty(name: str, arguments: Mapping[str, Any]) -> nn.Module:
    """Build a model on the meta device, without initial values."""
    with meta_device(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such as warnings about tensors without elements; other code checks the model
        return create_model(name, **arguments)


def try_size(name: str, image_size: Size, arguments: Mapping[str, Any]) -> FeatureBackbone | None:
    """Build a model on the meta device and run it on one image; return None if the model does not support the size."""
    try:
        with meta_device(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # such as warnings about tensors without elements
            model = timm.create_model(name, **arguments)
        patch = patch_size(model)
        if patch is not None and (image_size[0] % patch[0] or image_size[1] % patch[1]):
            return None  # timm would silently ignore the remaining pixels on the right and bottom
        backbone = FeatureBackbone(model, image_size)
    except _SIZE_ERRORS:
        return None
    # Models that enlarge their input do not support the image size: PiT resizes a grid with a single cell to the grid
    # of its position embedding, and CrossViT enlarges every image.
    is_enlarged = min(backbone.cell_size) < reductions(model)[-1] / 2
    return None if is_enlarged else backbone


@cached_by_text
def supports_sizes(name: str, image_sizes: Sequence[Size], arguments: Mapping[str, Any]) -> bool:
    """Return whether a model, built once with these arguments, runs with images of all these sizes.

    The results are cached, since a run needs them for student and teacher.
    """
    backbone = try_size(name, image_sizes[0], arguments)
    if backbone is None:
        return False
    try:
        with temporary_eval_mode(backbone):
            for size in image_sizes[1:]:
                backbone.forward(make_dummy_images(backbone.model, size))
    except _SIZE_ERRORS:
        return False
    return True


def patch_size(model: nn.Module) -> Size | None:
    """Return the (height, width) of a model's patches in pixels; None if the model has no patches or they overlap."""
    for embed in (getattr(model, "patch_embed", None), getattr(model, "stem", None)):
        if isinstance(embed, PatchEmbed):
            height, width = embed.patch_size  # type: ignore[misc]
            return int(height), int(width)
    return None


def reductions(model: nn.Module) -> list[int]:
    """Return the stride of each stage in pixels, shallow to deep, from timm's `feature_info`."""
    info: Any = model.feature_info
    return [int(entry["reduction"]) for entry in getattr(info, "info", info)]
