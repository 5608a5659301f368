"""Reads published weights: timm's weights (from a package, the cache or the network), and checkpoint files."""

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import timm
import torch
from timm.data.imagenet_info import ImageNetInfo, infer_imagenet_subset
from torch import nn

from paucal.backbones.names import error_reason, quiet_logs, require_reachable, timm_config
from paucal.backbones.spec import BackboneSpec
from paucal.backbones.weights.adapt import position_grid
from paucal.backbones.weights.load_report import LoadReport
from paucal.backbones.weights.start import Head, StartWeights, pick_network, start_from, suggest_model
from paucal.models.card import ModelCard
from paucal.models.preprocessing import Preprocessing
from paucal.models.weights.local import (
    find_added_weights,
    find_packaged_weights,
    input_of_weights,
    match_by_order,
    verified_path,
)
from paucal.models.weights.store import AddedWeights
from paucal.models.weights.table import Package
from paucal.runs.weights import read_untrusted
from paucal.types import UserError, height_and_width


def published_card(name: str, image_size: Sequence[int] | None = None) -> ModelCard:
    """Return the card of a timm model with its published weights, without reading the weights.

    `image_size` is the side or (height, width) in pixels; None for the model's default.
    """
    added_card, config = find_added_weights(name), timm_config(name)
    if config is None and added_card is None:
        raise UserError(f"timm publishes no weights of {name}: give a run.")
    count = added_card.classes if added_card is not None else config.num_classes  # type: ignore[union-attr]
    size = height_and_width(image_size or (224 if config is None else config.input_size[1:]))
    spec = BackboneSpec(name, count, image_size=size, pretrained=added_card is None)
    classes = imagenet_classes(name) if added_card is None else _added_classes(added_card)
    classes = classes or tuple(f"class {number}" for number in range(count))
    return ModelCard(spec, classes, Preprocessing.from_image_input(spec.image_size, input_of_weights(name)))


def imagenet_classes(name: str) -> tuple[str, ...] | None:
    """Return the ImageNet class names of a timm model's weights; None if timm does not know the classes."""
    config = timm_config(name)
    subset = None if config is None or not config.has_weights else infer_imagenet_subset(config.to_dict())
    return None if subset is None else _class_names(subset)


def read_timm(name: str, init: bool = True) -> StartWeights:
    """Return the weights that the user has added for a model, else timm's weights from a package, the cache or the web.

    Error messages mention `--init` if the weights are for this option (`init`).
    """
    added_card = find_added_weights(name)
    if added_card is not None:
        source = f"the weights that were added for {added_card.name} (SHA-256 {added_card.sha256[:12]})"
        with torch.device("meta"):
            grid = position_grid(timm.create_model(added_card.name, pretrained=False))
        state = read_untrusted(added_card.verified_content())
        return StartWeights(state, source, added_card.name, _added_classes(added_card), grid)
    packaged = find_packaged_weights(name)
    if packaged is not None and packaged.package is not None:
        return _read_package(name, packaged.package)
    config = timm_config(name)
    if config is None or not config.has_weights:
        raise UserError(
            f"--init timm: timm publishes no weights of {name}; give --init a run, a file, or none for random weights."
            if init
            else f"timm publishes no weights of {name}: give a run."
        )
    try:
        require_reachable(config)
        with torch.random.fork_rng(devices=[]), quiet_logs():
            model = timm.create_model(name, pretrained=True)
    except Exception as problem:  # the download libraries raise many types of exceptions
        address = config.hf_hub_id or config.url
        failure = f"the weights of {name} could not be downloaded ({error_reason(problem)})"
        raise UserError(
            f"--init timm: {failure}; download {address} on a connected machine and give the file to --init."
            if init
            else f"{failure}: give a run, or try again with a network connection."
        ) from problem
    return _start_weights(model, dict(model.state_dict()), f"timm's weights of {name}", name)


def _added_classes(card: AddedWeights) -> tuple[str, ...] | None:
    """Return timm's class names for the tag in the name of added weights; None if their number differs."""
    names = imagenet_classes(card.name) if "." in card.name else None
    return names if names is not None and len(names) == card.classes else None


def _read_package(name: str, package: Package) -> StartWeights:
    with torch.device("meta"):
        model = timm.create_model(name, pretrained=False)
    try:
        state = match_by_order(read_untrusted(verified_path(package)), model)
    except ValueError as problem:
        raise UserError(
            f"the weights in the package {package.distribution} do not fit {name}: {problem}; install another version "
            "of the package."
        ) from problem
    return _start_weights(model, state, f"the weights of {name} in the package {package.distribution}", name)


def _start_weights(model: nn.Module, state: dict[str, torch.Tensor], source: str, name: str) -> StartWeights:
    subset = infer_imagenet_subset(model)
    return StartWeights(state, source, name, _class_names(subset) if subset else None, position_grid(model))


@cache  # because timm would otherwise read its tables of 22,000 classes each time
def _class_names(subset: str) -> tuple[str, ...]:
    """Return the class names of a subset of ImageNet, in timm's order."""
    return tuple(ImageNetInfo(subset).label_names())


def model_of_file(path: Path, tree: Mapping[str, Any], setting: str = "") -> str:
    """Return the timm name of the model that fits a file's tensors; raise a UserError if no model is recognised."""
    name = suggest_model(tree)
    if name is None:
        raise UserError(
            f"{setting and f'{setting}: '}the model of the weights in {str(path)!r} is not recognised: give --model, "
            "such as --model swin_tiny_patch4_window7_224."
        )
    return name


def load_published(
    model: nn.Module,
    file: str | Path,
    network: str | None = None,
    classes: Sequence[str] | None = None,
    head: Head = "auto",
) -> LoadReport:
    """Load a published checkpoint into a model in place; no code in the file is run.

    Checkpoints of the programs VTs-Drloc, Swin-Transformer, CvT, T2T-ViT, TokenLabeling, EsViT, DHVT, DINO and Vision
    Longformer are recognised by the names of their tensors, which are translated to the model's names.

    Args:
        model: A model of timm or paucal.
        file: File written by `torch.save`, or safetensors.
        network: Key of the network to load from a file with several networks, such as "teacher", "student" or
            "state_dict_ema"; by default, the moving average of the weights or the teacher.
        classes: Class names of the model's outputs; None if unknown.
        head: Treatment of the classifier: "auto" loads the classifier if it fits, "keep" raises an error if it does
            not fit, "fresh" never loads it.

    Returns:
        A report of the tensors that were loaded, adapted, left out and missing, which can be printed.

    Raises:
        UserError: the file is damaged or contains Python objects, too few tensors match, or a recognised checkpoint
            belongs to another variant of the model.
    """
    path = Path(file).expanduser()
    tree, source = read_untrusted(path), f"the file {path.name}"
    tree = tree if network is None else pick_network(tree, network, source)
    return start_from(model, StartWeights(tree, source), classes, head)
