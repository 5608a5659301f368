"""A folder that timm and the Hugging Face hub know: weights, how to build the network, and a page about the model."""

import inspect
import json
from pathlib import Path

from torch import nn

from paucal.models.card import ModelCard
from paucal.runs import save_weights, write_text

WEIGHTS, CARD, CONFIG, PAGE = "model.safetensors", "model.json", "config.json", "README.md"


def write_timm_folder(folder: Path, module: nn.Module, card: ModelCard, page: str) -> list[Path]:
    """Write weights and JSON, which `paucal.load(folder)` and `timm.create_model("local-dir:folder")` read.

    timm knows paucal's own backbones once paucal is imported.

    Args:
        folder: Existing folder.
        module: The network.
        card: Card of the model: how it is built, and how its images are prepared.
        page: Model page in Markdown.

    Returns:
        The files.
    """
    save_weights(folder / WEIGHTS, module.state_dict())
    write_text(folder / CARD, json.dumps(card.to_dict(), indent=2, ensure_ascii=False) + "\n")
    _write_config(folder / CONFIG, module, card)
    write_text(folder / PAGE, page)
    return [folder / name for name in (WEIGHTS, CARD, CONFIG, PAGE)]


def _write_config(path: Path, module: nn.Module, card: ModelCard) -> None:
    fed, height, width = card.preprocessing, *card.preprocessing.image_size
    prepared = {
        "input_size": [card.backbone.in_chans, height, width],
        "mean": list(fed.mean),
        "std": list(fed.std),
        "interpolation": fed.interpolation,
        "crop_pct": fed.crop_ratio,
        "crop_mode": {"crop": "center", "squash": "squash", "letterbox": "border"}[fed.resize],
        "num_classes": len(card.classes),
    }
    arguments = {**card.backbone.arguments, "in_chans": card.backbone.in_chans}
    if "img_size" in inspect.signature(type(module).__init__).parameters:
        arguments.setdefault("img_size", [height, width])
    config = {
        "architecture": card.backbone.name.split(".")[0],  # what follows the dot names weights
        "num_classes": len(card.classes),
        "num_features": getattr(module, "num_features", None),
        "label_names": list(card.classes),
        "pretrained_cfg": prepared,
        "model_args": arguments,
    }
    write_text(path, json.dumps(config, indent=2, ensure_ascii=False) + "\n")
