"""Assigns a model's parameters to its stem, stages, blocks and classifier, with timm's `group_matcher`."""

from collections.abc import Iterable
from typing import Any

from timm.models import group_parameters
from timm.optim._param_groups import auto_group_layers
from torch import nn

from paucal.backbones.probe import model_name
from paucal.types import UserError


def classifier_modules(model: nn.Module) -> tuple[str, ...]:
    """Return the names of the modules that compute the logits; empty if the model has no classifier."""
    classifier: Any = (getattr(model, "pretrained_cfg", None) or {}).get("classifier")
    names = [classifier] if isinstance(classifier, str) else list(classifier or ())
    if not names and hasattr(model, "get_classifier"):
        layers: Any = model.get_classifier()  # type: ignore[operator]
        outputs = layers if isinstance(layers, tuple | list) else [layers]
        names = [name for name, module in model.named_modules() if any(module is output for output in outputs)]
    modules = dict(model.named_modules())
    return tuple(name for name in names if name in modules and any(True for _ in modules[name].parameters()))


def classifier_parameters(model: nn.Module) -> set[str]:
    """Return the names of the classifier's parameters."""
    modules = classifier_modules(model)
    return {name for name, _ in model.named_parameters() if is_inside(name, modules)}


def is_inside(name: str, modules: Iterable[str]) -> bool:
    """Return whether the parameter with this name belongs to one of the named modules."""
    return any(name.startswith(f"{module}.") for module in modules)


def layer_ids(model: nn.Module) -> dict[str, int]:
    """Return the layer number of each parameter: 0 for the stem, then 1, 2, ... for blocks, then the classifier.

    The numbers come from timm's `group_matcher`. In a model without a `group_matcher`, every twelve consecutive tensors
    form a layer, as in timm's optimizer groups. A final norm before pooling belongs to the last block.

    Example:
        >>> import timm
        >>> ids = layer_ids(timm.create_model("vit_tiny_patch16_224"))
        >>> ids["pos_embed"], ids["blocks.3.attn.qkv.weight"], ids["norm.weight"], ids["head.weight"]
        (0, 4, 12, 13)
    """
    matcher = getattr(model, "group_matcher", None)
    numbers: Any = auto_group_layers(model)
    if matcher is not None:
        numbers = group_parameters(model, matcher(coarse=False), reverse=True)
    last = max(numbers.values())
    return {name: int(numbers.get(name, last)) for name, _ in model.named_parameters()}


def layer_lr_scales(model: nn.Module, decay: float) -> dict[str, float]:
    """Return the learning-rate factor of each parameter: `decay` to the power of the number of layers above.

    This is the layer-wise decay of BEiT (Bao et al., ICLR 2022, appendix), as in timm's `param_groups_layer_decay`. The
    classifier has the factor 1, the last block `decay`, which is in (0, 1], and the stem the smallest factor.
    """
    ids = layer_ids(model)
    last = max(ids.values())
    return {name: decay ** (last - number) for name, number in ids.items()}


def count_stages(model: nn.Module) -> int:
    """Return the number of stages (or blocks, if the model has no stages) between the stem and the classifier."""
    return max(_stage_numbers(model).values()) - 1


def first_stage_parameters(model: nn.Module, count: int) -> set[str]:
    """Return the names of the parameters of the stem and of the first `count` stages."""
    stages, n_stages = _stage_numbers(model), count_stages(model)
    if not 0 <= count <= n_stages:
        available = "1 stage or block" if n_stages == 1 else f"{n_stages} stages or blocks"
        raise UserError(
            f"--freeze is {count}, but {model_name(model)} has {available}: give a number from 0 (only the stem) to "
            f"{n_stages}, or 'backbone'."
        )
    return {name for name, number in stages.items() if number <= count} - classifier_parameters(model)


def stage_parameters(model: nn.Module, number: int) -> list[str]:
    """Return the names of the parameters of a stage; stages count from 1, and 0 is the stem."""
    return [name for name, stage in _stage_numbers(model).items() if stage == number]


def _stage_numbers(model: nn.Module) -> dict[str, int]:
    matcher = getattr(model, "group_matcher", None)
    if matcher is None:
        raise UserError(
            f"timm does not define the stages of {model_name(model)}: use --freeze backbone, with which only the "
            "classifier is trained."
        )
    return group_parameters(model, matcher(coarse=True), reverse=True)  # type: ignore[return-value]
