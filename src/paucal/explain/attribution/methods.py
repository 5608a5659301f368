"""The attribution methods by name, and the choice of the best method for a model."""

import importlib.util
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paucal.backbones.attention_maps import attention_layers
from paucal.backbones.timm_attention import relevance_family
from paucal.explain.attention.reading import read_attention
from paucal.explain.attention.rollout import attention_rollout, pooling_weights
from paucal.explain.attribution.gradients import grad_cam, gradient_features, gradient_rollout, integrated_gradients
from paucal.explain.attribution.relevance import has_relevance, relevance
from paucal.types import UserError


class Method(NamedTuple):
    """An attribution method, which computes how much each region of an image is evidence for a class."""

    title: str  # name of the method in figures and messages
    compute: Callable[[nn.Module, Tensor, Tensor], Tensor]  # returns (B, rows, columns) maps
    needs: str = "nothing"  # what the model must have: "attention", or "rules" (relevance rules for its family)
    is_class_specific: bool = True  # whether the map depends on the class


def last_attention(model: nn.Module, images: Tensor, classes: Tensor | None = None) -> Tensor:
    """Return the last layer's attention from the class token to each patch, averaged over heads, (B, rows, columns).

    For a model that averages its patch tokens instead of using a class token, the map is the mean attention of all
    patches to each patch. The map does not depend on the class.
    """
    last = read_attention(model, images)[-1]
    pooling = pooling_weights(model, last.tokens, len(images), last.weights)
    queries = F.pad(pooling.values, (0, len(last.tokens) - pooling.values.shape[1]))
    return last.key_tokens.to_grid(last.flow(queries))


METHODS: Mapping[str, Method] = {
    "relevance": Method("relevance (Chefer et al.)", relevance, "rules"),
    "gradient-rollout": Method("gradient x attention rollout", gradient_rollout, "attention"),
    "libra-rollout": Method(
        "pruned gradient x attention rollout (LibraGrad)", partial(gradient_rollout, pruned=True), "attention"
    ),
    "libra": Method("pruned gradient x features (LibraGrad)", gradient_features),
    "grad-cam": Method("Grad-CAM", grad_cam),
    "integrated-gradients": Method("integrated gradients", integrated_gradients),
    "rollout": Method(
        "attention rollout", lambda model, images, classes: attention_rollout(model, images), "attention", False
    ),
    "attention": Method("attention of the last layer", last_attention, "attention", is_class_specific=False),
}
RANDOM = "random"  # name of random maps, which serve as a baseline


def attribute(model: nn.Module, images: Tensor, classes: Tensor, method: str) -> Tensor:
    """Return (B, rows, columns) maps of the evidence for a class; rows and columns depend on the method.

    Args:
        model: A timm model, in training or evaluation mode.
        images: (B, C, H, W) images, normalised as the model expects.
        classes: (B,) class indices, or a single index for all images.
        method: A key of `METHODS`, or "random" for random maps, as a baseline.

    Raises:
        UserError: the method or class does not exist, or the method does not work with the model.

    Example:
        >>> import timm
        >>> model = timm.create_model("vit_tiny_patch16_224", depth=2, img_size=64, num_classes=3)
        >>> attribute(model, torch.zeros(2, 3, 64, 64), torch.tensor(1), "relevance").shape
        torch.Size([2, 4, 4])
    """
    if method == RANDOM:
        return random_maps(len(images), (8, 8), seed=0).to(images.device)
    if method not in METHODS:
        raise UserError(f"the method is {method!r}; expected one of {', '.join(METHODS)}.")
    return METHODS[method].compute(model, images, classes)


def methods_of(model: nn.Module) -> list[str]:
    """Return the methods that work with a model."""
    available = {"nothing"}
    if attention_layers(model):
        available.add("attention")
    if has_relevance(model):
        available.add("rules")
    return [name for name, method in METHODS.items() if method.needs in available]


def random_maps(count: int, grid: tuple[int, int], seed: int) -> Tensor:
    """Return random maps (count, rows, columns) of uniform values in [0, 1), as a baseline."""
    return torch.rand(count, *grid, generator=torch.Generator().manual_seed(seed))


# The best methods for each model family, best first. Methods are ranked by the mean of their ranks in two scores on 200
# photographs: insertion minus deletion, and the fraction of a map's positive values that is on a pasted object. If
# methods are tied, the faster method comes first. The first method that the model and the installation support is used.
# Families that were not evaluated use the methods of the most similar family.
BEST_METHODS: Mapping[str, tuple[str, ...]] = {
    "vit": ("gradient-rollout", "libra-rollout", "libra"),
    "dhvt": ("libra", "integrated-gradients", "gradient-rollout"),
    "lvvit": ("libra", "integrated-gradients", "libra-rollout"),
    "staged": ("gradient-rollout", "libra", "libra-rollout"),
    "convolutional": ("libra", "integrated-gradients", "grad-cam"),
}


def family_of(model: nn.Module) -> str:
    """Return the key of `BEST_METHODS` for a model's architecture family."""
    model = getattr(model, "_orig_mod", model)
    return relevance_family(model) or ("staged" if attention_layers(model) else "convolutional")


def best_method(model: nn.Module, among: Collection[str] = METHODS) -> tuple[str, str]:
    """Return the method that scored best for a model's family, and the reason as a clause for messages.

    Methods that need captum are skipped if it is not installed.

    Args:
        model: A timm model.
        among: Methods to choose from.
    """
    family, applicable = family_of(model), [name for name in methods_of(model) if name in among]
    ranked = [name for name in BEST_METHODS[family] if name in applicable]
    method = next(name for name in ranked if has_captum() or name not in CAPTUM_METHODS)
    reason = f"it scored best on {_SCORED_MODELS[family]}"
    if method != ranked[0]:
        reason += f" among methods without captum; {ranked[0]} scored better (pip install 'paucal[explain]')"
    return method, reason


def ranked_methods(model: nn.Module) -> list[str]:
    """Return the class-specific methods that work with a model; the best methods for its family come first."""
    applicable = [name for name in methods_of(model) if METHODS[name].is_class_specific]
    best = [name for name in BEST_METHODS[family_of(model)] if name in applicable]
    return [*best, *(name for name in applicable if name not in best)]


def has_captum() -> bool:
    """Return whether captum is installed."""
    return importlib.util.find_spec("captum") is not None


CAPTUM_METHODS = ("integrated-gradients", "grad-cam")
_SCORED_MODELS = {
    "vit": "a small DeiT",
    "dhvt": "DHVT",
    "lvvit": "a small LV-ViT",
    "staged": "a small Swin",
    "convolutional": "an EfficientNet",
}
