"""Publishing on the Hugging Face Hub: the header of a model page, and the upload of an exported folder."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from paucal.evaluation.results import Report
from paucal.models.card import ModelCard
from paucal.models.weights.table import has_terms
from paucal.types import UserError
from paucal.wording import percent

# Tags of a model page on the Hugging Face Hub.
HUB_TAGS = ["image-classification", "timm", "paucal"]


@dataclass(frozen=True)
class HubFacts:
    """Information for a model page on the Hugging Face Hub."""

    # Licence of the initial weights, which also applies to the model; None if the initial weights are random or their
    # licence is unknown.
    licence: str | None
    data: str  # name of the training set
    data_licence: str | None  # licence of the training images, as stated by the user; None if the user states none
    report: Report | None  # report on the test images; None if the model was not evaluated


def hub_header(card: ModelCard, facts: HubFacts) -> list[str]:
    """Return the lines of the YAML header of a model page, with the scores that the Hub shows."""
    header: dict[str, Any] = {"library_name": "timm", "pipeline_tag": "image-classification", "tags": HUB_TAGS}
    if facts.licence is not None:
        is_free = not has_terms(facts.licence)
        header |= {"license": facts.licence.lower()} if is_free else {"license": "other", "license_name": facts.licence}
    if facts.report is not None:
        dataset = {"name": f"{facts.data}, test images", "type": "image-folder"}
        task = {"type": "image-classification", "name": "image classification"}
        metrics = [
            {
                "type": "accuracy" if name == "top1" else name,
                "name": _metric_title(name, score, facts.report.level),
                "value": score.value,
            }
            for name, score in facts.report.scores.items()
        ]
        result = {"task": task, "dataset": dataset, "metrics": metrics}
        header["model-index"] = [{"name": card.backbone.name, "results": [result]}]
    text = yaml.safe_dump(header, sort_keys=False, allow_unicode=True, width=10_000)
    return ["---", *text.splitlines(), "---", ""]


def _metric_title(name: str, score: Any, confidence_level: float) -> str:
    if score.low is None or score.high is None:
        return name
    return f"{name}, {percent(confidence_level, 'g')} interval {score.low:.3f} to {score.high:.3f}"


def licence_lines(facts: HubFacts) -> list[str]:
    """Return the section on licences of a model page as Markdown lines."""
    return [
        *("## Licences", ""),
        f"- of the initial weights: {facts.licence or 'none or not stated'}",
        f"- of the training images, as stated by the exporter: {facts.data_licence or 'not stated'}",
        "",
    ]


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
