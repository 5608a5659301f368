"""Export of weights, architecture and model page to a folder for timm and the Hugging Face Hub, and its upload."""

import inspect
import shlex
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import nn

from paucal.evaluation.results import MultiLabelReport, MultiLabelRow, Report
from paucal.models.card import ModelCard
from paucal.models.trained import save_trained
from paucal.models.weights.table import has_terms
from paucal.runs import RunFolder
from paucal.types import UserError
from paucal.wording import counted, escape_controls, percent
from paucal.writing import write_text

WEIGHTS, CARD, CONFIG, PAGE = "model.safetensors", "model.json", "config.json", "README.md"


def write_timm_folder(folder: Path, module: nn.Module, card: ModelCard, page: str) -> list[Path]:
    """Write files for `paucal.load(folder)` and `timm.create_model("local-dir:folder")`, and return their paths.

    timm can create paucal's own backbones only after paucal is imported. timm has no classifier that reads the features
    of several stages. So a model with such a classifier gets no `config.json` and can only be loaded with
    `paucal.load`.
    """
    save_trained(RunFolder(folder), module, card)
    names = [WEIGHTS, CARD, PAGE]
    if card.reads_stages:
        (folder / CONFIG).unlink(missing_ok=True)  # the file may be left over from an earlier export
    else:
        RunFolder(folder).write_json(CONFIG, _timm_config(module, card))
        names.insert(2, CONFIG)
    write_text(folder / PAGE, page)
    return [folder / name for name in names]


def with_temperature_in_weights(module: nn.Module, card: ModelCard) -> tuple[nn.Module, ModelCard]:
    """Return a copy of a network whose logits are divided by the card's temperature, and a card with temperature 1.

    Use this for programs that do not apply the temperature. If the logits are not computed by a single linear layer,
    the network and the card are returned unchanged.
    """
    scaled = deepcopy(module).eval()
    get_classifier = getattr(scaled, "get_classifier", None)
    if not callable(get_classifier) or not isinstance(classifier := get_classifier(), nn.Linear):
        return module, card
    batch = torch.randn(
        1, card.backbone.in_chans, *card.preprocessing.image_size, generator=torch.Generator().manual_seed(0)
    ).to(classifier.weight)
    with torch.inference_mode():
        expected = scaled(batch) / card.temperature
        for values in classifier.parameters():
            values /= card.temperature
        scaled_logits = scaled(batch)
    # Checked because some networks add the logits of a second classifier.
    are_equal = torch.allclose(scaled_logits, expected, rtol=1e-3, atol=1e-4)
    return (scaled, card.at_temperature(1.0)) if are_equal else (module, card)


def _timm_config(module: nn.Module, card: ModelCard) -> dict[str, Any]:
    preprocess, height, width = card.preprocessing, *card.preprocessing.image_size
    pretrained_config = {
        "input_size": [card.backbone.in_chans, height, width],
        "mean": list(preprocess.mean),
        "std": list(preprocess.std),
        "interpolation": preprocess.interpolation,
        "crop_pct": preprocess.crop_ratio,
        "crop_mode": {"crop": "center", "squash": "squash", "letterbox": "border"}[preprocess.resize],
        "num_classes": len(card.classes),
    }
    arguments = {**card.backbone.arguments, "in_chans": card.backbone.in_chans}
    if "img_size" in inspect.signature(type(module).__init__).parameters:
        arguments.setdefault("img_size", [height, width])
    return {
        "architecture": card.backbone.name.split(".")[0],  # the part after the dot names the weights
        "num_classes": len(card.classes),
        "num_features": getattr(module, "num_features", None),
        "label_names": list(card.classes),
        "pretrained_cfg": pretrained_config,
        "model_args": arguments,
    }


# Tags of a model page on the Hugging Face Hub.
HUB_TAGS = ["image-classification", "timm", "paucal"]
MAX_CLASSES = 20  # largest number of classes in the table of a model page


@dataclass(frozen=True)
class HubFacts:
    """Information for a model page on the Hugging Face Hub."""

    # Licence of the initial weights, which also applies to the model; None if the initial weights are random or their
    # licence is unknown.
    licence: str | None
    data: str  # name of the training set
    data_licence: str | None  # licence of the training images, as stated by the user; None if the user states none
    report: Report | None  # report on the test images; None if the model was not evaluated


def model_page(
    card: ModelCard,
    start: str,
    licence: str | None,
    summary: Mapping[str, Any],
    report: Report | None,
    hub: HubFacts | None = None,
) -> str:
    """Return the model page in Markdown; with `hub`, its header has the scores and licence for the Hugging Face Hub.

    `start` describes the initial weights. `licence` is the licence of these weights, which also applies to models
    trained from them; None if it is unknown. The page shows the entries "data", "split", "method" and "epochs" of the
    run's `summary`, which may be missing.
    """
    preprocess, modules = card.preprocessing, "paucal, timm"
    library, tags, timm_lines = ("library_name: timm",), ("- image-classification", "- timm"), (_TIMM_EXAMPLE,)
    if card.reads_stages:  # timm cannot create the classifier
        modules, library, tags, timm_lines = "paucal", (), tags[:1], ()
    header, licence_lines = ["---", *library, "tags:", *tags, "---", ""], []
    if hub is not None:
        header = _hub_header(card, hub)
        licence_lines = [
            *("## Licences", ""),
            f"- of the initial weights: {hub.licence or 'none or not stated'}",
            f"- of the training images, as stated by the exporter: {hub.data_licence or 'not stated'}",
            "",
        ]
    entries = {title: summary[key] for key, title in _TITLES.items() if summary.get(key) is not None}
    lines = [
        *header,
        *(f"# {_escape_markdown(card.backbone.name)}", ""),
        f"An image classifier for {len(card.classes)} classes: {card.backbone.name}, images of "
        f"{'x'.join(map(str, preprocess.image_size))} pixels, trained with paucal.",
        *("", "## Training", ""),
        *(f"- {title}: {_escape_markdown(str(entry))}" for title, entry in entries.items()),
        f"- initial weights: {_escape_markdown(start)}",
        f"- licence of the initial weights: {_escape_markdown(licence or 'not stated')}",
        *("", "## Test scores", ""),
        *_score_lines(report, card.classes),
        *("", *licence_lines, "## Limits", ""),
        "The model predicts one of its classes for every image, even if the image shows something else. The scores are "
        "valid for images like the test images; they may be lower for photos from another camera, place or season.",
        *("", "## Use", ""),
        *("```python", f"import {modules}", "from PIL import Image", ""),
        'model = paucal.load("this-folder")',
        'print(model.probabilities([Image.open("photo.jpg")]), model.classes)',
        *timm_lines,
        *("```", ""),
        f"Input: mean {list(preprocess.mean)}, standard deviation {list(preprocess.std)}, {preprocess.interpolation}, "
        f"{preprocess.resize} {preprocess.crop_ratio:g}. "
        f"Probabilities: {'sigmoid' if card.is_multi_label else 'softmax'} of "
        f"the logits{'' if card.temperature == 1 else f' divided by {card.temperature:.4g}'}.",
        "",
    ]
    return "\n".join(lines)


_TIMM_EXAMPLE = 'network = timm.create_model("local-dir:this-folder", pretrained=True)  # without preprocessing'
_TITLES = {"data": "images", "split": "split", "method": "method", "epochs": "epochs"}


def _score_lines(report: Report | None, classes: Sequence[str]) -> list[str]:
    if report is None:
        return ["The model was not evaluated: the run has no report on test images."]
    lines = [f"On {counted(report.images, 'test image')}, with {report.level:.0%} intervals:", ""]
    lines += ["| score | value |", "|---|---|"]
    for name, score in report.scores.items():
        interval = "" if score.low is None or score.high is None else f" ({score.low:.3f} to {score.high:.3f})"
        lines.append(f"| {name} | {score.value:.3f}{interval} |")
    score_title = "average precision" if isinstance(report, MultiLabelReport) else "recall"
    lines += ["", f"| class | test images | {score_title} |", "|---|---|---|"]
    for row in report.per_class[:MAX_CLASSES]:
        score = row.ap if isinstance(row, MultiLabelRow) else row.recall
        score_text = "" if score is None else percent(score.value)
        lines.append(f"| {_escape_markdown(row.name)} | {row.images} | {score_text} |")
    if len(classes) > MAX_CLASSES:
        lines.append(f"| and {len(classes) - MAX_CLASSES} more | | |")
    return lines


def _escape_markdown(text: str) -> str:
    """Escape a text, such as a class name, so that Markdown shows it literally."""
    escaped = escape_controls(text).replace("\\", "\\\\")
    for character in "`*_[]<>|#":
        escaped = escaped.replace(character, f"\\{character}")
    return " ".join(escaped.split())


def _hub_header(card: ModelCard, hub: HubFacts) -> list[str]:
    """Return the lines of the YAML header of a model page, with the scores that the Hub shows."""
    header: dict[str, Any] = {"library_name": "timm", "pipeline_tag": "image-classification", "tags": HUB_TAGS}
    if hub.licence is not None:
        is_free = not has_terms(hub.licence)
        header |= {"license": hub.licence.lower()} if is_free else {"license": "other", "license_name": hub.licence}
    if hub.report is not None:
        dataset = {"name": f"{hub.data}, test images", "type": "image-folder"}
        task = {"type": "image-classification", "name": "image classification"}
        metrics = []
        for name, score in hub.report.scores.items():
            title = name
            if score.low is not None and score.high is not None:
                level = percent(hub.report.level, "g")
                title += f", {level} interval {score.low:.3f} to {score.high:.3f}"
            metrics.append({"type": "accuracy" if name == "top1" else name, "name": title, "value": score.value})
        result = {"task": task, "dataset": dataset, "metrics": metrics}
        header["model-index"] = [{"name": card.backbone.name, "results": [result]}]
    text = yaml.safe_dump(header, sort_keys=False, allow_unicode=True, width=10_000)
    return ["---", *text.splitlines(), "---", ""]


def push_folder(folder: Path, files: Sequence[Path], repository: str) -> str:
    """Upload the files of an exported model, and return the address of the repository; a new repository is private."""
    upload_again = f"'{shlex.join(['hf', 'upload', repository, str(folder), '--private'])}'"
    try:
        from huggingface_hub import HfApi, get_token
    except ImportError:
        raise UserError(
            f"--push needs huggingface_hub: run pip install huggingface_hub; then upload the files with {upload_again}."
        ) from None
    if get_token() is None:
        raise UserError(
            "--push needs a Hugging Face token: run 'hf auth login' or set HF_TOKEN; then upload the files with "
            f"{upload_again}."
        )
    try:
        api = HfApi()
        address = api.create_repo(repository, private=True, exist_ok=True)
        names = [path.name for path in files]
        api.upload_folder(repo_id=repository, folder_path=folder, allow_patterns=names, commit_message="Add the model")
    except Exception as problem:  # the client raises many types of network and validation errors
        reason = (str(problem).split("\n")[0] or type(problem).__name__).rstrip(".")
        raise UserError(
            f"--push: the upload to {repository!r} failed ({reason}); the files are in {folder}: upload them with "
            f"{upload_again}."
        ) from problem
    return str(address)
