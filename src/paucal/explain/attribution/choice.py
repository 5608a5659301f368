"""Which method to believe: the one that scored best for a model's family (benchmarks/results/explaining)."""

import importlib.util
from collections.abc import Collection, Mapping

from torch import nn

from paucal.backbones.families.dhvt import Dhvt
from paucal.backbones.families.lvvit import LvVit
from paucal.explain.attribution.methods import METHODS, methods_of

# By the mean of two ranks on 200 photographs: insertion minus deletion, and the share of a map on a pasted object; of
# equals the quicker. The first that the model and the installation have is taken. What has not been scored follows
# what is nearest to it.
BEST: Mapping[str, tuple[str, ...]] = {
    "vit": ("gradient-rollout", "libra-rollout", "libra"),
    "dhvt": ("libra", "integrated-gradients", "gradient-rollout"),
    "lvvit": ("libra", "integrated-gradients", "libra-rollout"),
    "staged": ("gradient-rollout", "libra", "libra-rollout"),
    "convolutional": ("libra", "integrated-gradients", "grad-cam"),
}


def family_of(model: nn.Module) -> str:
    """Return the family a model is scored with.

    Example:
        >>> import timm
        >>> family_of(timm.create_model("test_vit")), family_of(timm.create_model("test_resnet"))
        ('vit', 'convolutional')
    """
    model = getattr(model, "_orig_mod", model)
    if isinstance(model, Dhvt):
        return "dhvt"
    if isinstance(model, LvVit):
        return "lvvit"
    found = methods_of(model)
    if "relevance" in found:
        return "vit"
    return "staged" if "gradient-rollout" in found else "convolutional"


def best_method(model: nn.Module, among: Collection[str] = METHODS) -> tuple[str, str]:
    """Return the method that scored best for a model's family, and the reason as a sentence's end.

    Methods that need captum are passed over where it is not installed.

    Args:
        model: a timm model.
        among: methods to choose from.
    """
    family, possible = family_of(model), [name for name in methods_of(model) if name in among]
    by_score = [name for name in BEST[family] if name in possible]
    found = next(name for name in by_score if has_captum() or name not in OF_CAPTUM)
    if found != by_score[0]:
        return found, (
            f"it scored best on {_SAID[family]} of what needs no captum; {by_score[0]} scored better (pip install "
            "'paucal[explain]')"
        )
    return found, f"it scored best on {_SAID[family]}"


def ranked_methods(model: nn.Module) -> list[str]:
    """Return the methods that a model has what they need for, the ones that scored best for its family first."""
    possible = [name for name in methods_of(model) if METHODS[name].asks_class]
    best = [name for name in BEST[family_of(model)] if name in possible]
    return [*best, *(name for name in possible if name not in best)]


def has_captum() -> bool:
    """Tell whether captum is installed."""
    return importlib.util.find_spec("captum") is not None


OF_CAPTUM = ("integrated-gradients", "grad-cam")
_SAID = {
    "vit": "a small DeiT",
    "dhvt": "DHVT",
    "lvvit": "a small LV-ViT",
    "staged": "a small Swin",
    "convolutional": "an EfficientNet",
}
