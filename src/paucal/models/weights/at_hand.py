"""Pretrained weights on this machine: added by the user, in packages, or in the cache of timm and the hub.

A package's file is verified by its checksum. Its tensors have the order of timm's model and are given the model's
names; nothing of the package is imported or run.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import timm
from torch import Tensor, nn

from paucal.backbones.names import timm_config
from paucal.backbones.weights.fetching import is_cached, require_reachable
from paucal.backbones.weights.inputs import ImageInput, input_of_timm
from paucal.models.weights import table
from paucal.models.weights.store import AddedWeights, file_digest, find_added, list_added
from paucal.models.weights.table import Package, PretrainedWeights
from paucal.types import UserError

ADDED = "file that you added"  # location of weights, for messages


def find_added_weights(model: str) -> AddedWeights | None:
    """Return the weights of a timm model that the user has added; None if there are none."""
    return find_added(model) or find_added(full_name(model))


def input_of_weights(model: str) -> ImageInput:
    """Return the preprocessing of a model's weights: from added weights, else from timm's configuration."""
    card = find_added_weights(model)
    return input_of_timm(model) if card is None else ImageInput.from_dict(card.input)


def checked_path(package: Package) -> Path:
    """Return the path of a package's file."""
    path = package.path()
    if path is None or not path.is_file() or path.stat().st_size != package.size or file_digest(path) != package.sha256:
        raise UserError(
            f"the weights in the package {package.distribution} are damaged, or not those that were published "
            f"({package.file}): reinstall it with pip install --force-reinstall {package.distribution}."
        )
    return path


def find_packaged_weights(model: str) -> PretrainedWeights | None:
    """Return the weights of a timm model that an installed package contains; None if there are none."""
    name = full_name(model)
    packaged = (weights for weights in table.TRAINED if weights.package and weights.package.path())
    return next((weights for weights in packaged if weights.name == name), None)


def licence_of(model: str) -> str | None:
    """Return the licence of a timm model's weights, added or published; None if none is stated."""
    added_card = find_added_weights(model)
    if added_card is not None:
        return added_card.licence
    carried = next((weights for weights in table.TRAINED if weights.name == model), None)
    if carried is not None:
        return carried.licence
    config = timm_config(model)
    return None if config is None else config.license


def at_hand(weights: PretrainedWeights) -> str | None:
    """Return the location of weights on this machine; None if they would have to be fetched."""
    if find_added(weights.name) is not None:
        return ADDED
    if weights.package is not None and weights.package.path() is not None:
        return "package"
    return "cache" if is_cached(timm.get_pretrained_cfg(weights.name)) else None


def suitable_weights(device: str) -> list[PretrainedWeights]:
    """Return the weights of the table that a run may choose on a device, in order: free to use, and fast enough."""
    kinds = dict.fromkeys((device, "cpu"))
    return [weights for kind in kinds for weights in table.TRAINED if weights.device == kind and not weights.has_terms]


def ready_weights(device: str) -> dict[PretrainedWeights | AddedWeights, str]:
    """Return the weights on this machine that a run may choose, in order, each with its location.

    Weights of the table come first, since they are known to be fast; then weights added by the user. Weights with
    special terms are only used when named.
    """
    table_names = {weights.name for weights in table.TRAINED}
    free_cards = [card for card in list_added() if card.name not in table_names and not card.has_terms]
    return {
        **{weights: place for weights in suitable_weights(device) if (place := at_hand(weights))},
        **dict.fromkeys(free_cards, ADDED),
    }


def can_be_fetched(weights: PretrainedWeights) -> str | None:
    """Check once, with a short timeout, whether weights can be downloaded; return the reason if not, else None."""
    try:
        require_reachable(timm.get_pretrained_cfg(weights.name))
    except ConnectionError as problem:
        return str(problem)
    return None


def named_in_order(tensors: Mapping[str, Any], model: nn.Module) -> dict[str, Tensor]:
    """Return tensors with the names of a model's tensors; both are in the same order."""
    model_state = model.state_dict()
    if [value.shape for value in model_state.values()] != [value.shape for value in tensors.values()]:
        raise ValueError("the tensors do not match those of the model in number, order and shape")
    return dict(zip(model_state, tensors.values(), strict=True))


def full_name(model: str) -> str:
    """Return the name with the tag that timm takes by default.

    Example:
        >>> full_name("tf_efficientnet_lite0")
        'tf_efficientnet_lite0.in1k'
    """
    config = timm_config(model)
    return f"{config.architecture}.{config.tag}" if config is not None and config.tag else model
