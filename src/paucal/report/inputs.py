"""Read the files of a run folder for its report; files may be missing, and their content is untrusted."""

import csv
import reprlib
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from paucal.evaluation.results import Report, read_report, stored_number
from paucal.metrics.intervals import wilson_share
from paucal.report.frozen import FrozenFeaturesSection, read_frozen
from paucal.runs import RunFolder
from paucal.types import UserError
from paucal.wording import percent

EXPORTS_FILE = "exports.json"  # comparisons of the model with the files that `paucal export` has written
MAX_METRICS_BYTES = 16 * 2**20
# Values in YAML files may be deeply nested or contain themselves, so the length of their text is limited.
SHORT_REPR = reprlib.Repr()
SHORT_REPR.maxlevel, SHORT_REPR.maxlist, SHORT_REPR.maxdict, SHORT_REPR.maxstring = 3, 20, 20, 200
MAX_ITEMS = 50  # largest number of entries of a list or mapping that are shown
MAX_TEXT = 2000  # largest number of characters of a text


@dataclass(frozen=True)
class Setting:
    """One resolved setting: its name, its value as text, and the origin of the value."""

    name: str
    value: str
    origin: str


@dataclass(frozen=True)
class SplitSummary:
    """One split of the data: its name, its number of images and, if recorded, the number of images of each class."""

    name: str
    images: int
    classes: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class TuningStep:
    """One step of auto-tuning: its description, validation score and time, and whether its model was kept."""

    name: str
    score: float | None
    time: str
    kept: bool = False


@dataclass(frozen=True)
class Confidence:
    """The temperature, the number of images it was fitted to, and the calibration error before and after scaling."""

    temperature: float
    images: int
    before: float
    after: float


@dataclass(frozen=True)
class CheckFinding:
    """A finding about the images: its level ("misleads", "warning" or "note"), a description, and advice."""

    level: str
    text: str
    advice: str


@dataclass(frozen=True)
class ExportedFile:
    """One exported file and its comparison with the original model, as text.

    Attributes:
        images: Number of images on which the file and the model were compared.
        agreement: Percentage of equal predictions of the file and the model (for images, pixels or objects).
        largest: Largest difference between a probability from the file and the model's probability.
        accuracy: Accuracy of the exported file, with the accuracy of the model in brackets; "" if unknown.
        milliseconds: Milliseconds per image for the file, with the milliseconds for the model in brackets.
    """

    name: str
    size: str
    images: str
    agreement: str
    largest: str
    accuracy: str
    milliseconds: str


@dataclass(frozen=True)
class Summary:
    """The content of `summary.json`, which describes a run; each entry may be missing.

    Attributes:
        epoch_images: Number of images that an epoch uses, if it differs from the number of training images.
        parts: Splits of the data. The file stores splits as {"train": 120, ...}, or as
            {"train": {"cat": 70, "dog": 50}, ...} with the number of images of each split in "part_images".
        grid: Rows and columns of tokens, such as "8 x 8".
        peak_memory: Peak memory in bytes; GPU memory if a GPU was used, else main memory.
        selected: Whether the kept epoch was selected on validation images; otherwise the last epoch was kept.
        steps: Steps of auto-tuning, called "rungs" in the file.
        kept: Sentence on the origin of the model's weights, if these are not the weights of a single epoch.
        kept_val_score: Validation accuracy or mean average precision of the kept model.
        learning_curve: Sentence on the accuracy as a function of the number of training images.
        next_steps: Sentences or commands that suggest what to do next.
    """

    title: str | None = None
    model: str | None = None
    method: str | None = None
    data: str | None = None
    split: str | None = None
    epoch_images: int | None = None
    parts: Sequence[SplitSummary] = ()
    parameters: int | None = None
    grid: str | None = None
    epochs: float | None = None
    seconds: float | None = None
    peak_memory: float | None = None
    selected: bool = True
    best_epoch: float | None = None
    steps: Sequence[TuningStep] = ()
    kept: str | None = None
    kept_val_score: float | None = None
    confidence: Confidence | None = None
    learning_curve: str | None = None
    next_steps: Sequence[str] = ()

    @property
    def images_text(self) -> str | None:
        """The number of images in each split, such as "120 train, 30 test"; None if no numbers are recorded."""
        return ", ".join(f"{part.images} {part.name}" for part in self.parts) or None


@dataclass(frozen=True)
class RunFiles:
    """The contents of a run folder that a report shows; entries of missing files are None or empty."""

    run: RunFolder
    summary: Summary
    settings: Sequence[Setting]
    environment: Mapping[str, str]
    rows: Sequence[Mapping[str, float]]
    evaluation: Report | None
    check: Sequence[CheckFinding] | None = None
    frozen: FrozenFeaturesSection | None = None
    verb: str = "train"
    exports: Sequence[ExportedFile] = ()


def read_run(path: Path) -> RunFiles:
    """Read the files of a run folder."""
    if not path.is_dir():
        raise UserError(f"{str(path)!r} is not a folder: expected a run folder, such as runs/1.")
    try:
        return _read_files(RunFolder(path))
    except (RecursionError, OSError) as problem:
        raise UserError(f"the files of {str(path)!r} cannot be read ({problem}): restore the files.") from problem


def _read_files(run: RunFolder) -> RunFiles:
    evaluation = _read_json(run, "evaluation/test/metrics.json")
    return RunFiles(
        run,
        _read_summary(run),
        _read_settings(run),
        _read_environment(run),
        _read_metrics(run),
        read_report(evaluation) if evaluation and evaluation.get("kind") != "regression" else None,
        _read_findings(run),
        read_frozen(run),
        run.verb if run.config.is_file() else "train",
        _read_exports(run),
    )


def _read_json(run: RunFolder, name: str) -> dict[str, Any]:
    return run.read_json(name) if (run.path / name).is_file() else {}


def _read_findings(run: RunFolder) -> list[CheckFinding] | None:
    if not (run.path / "check.json").is_file():
        return None
    try:
        findings = run.read_json("check.json")["findings"]
        fields = ("level", "text", "advice")
        return [CheckFinding(*(_short_text(finding[name]) for name in fields)) for finding in findings[:MAX_ITEMS]]
    except (KeyError, TypeError) as problem:
        path = str(run.path / "check.json")
        raise UserError(f"{path!r} is damaged ({problem}): remove the file, or train again.") from problem


def _read_exports(run: RunFolder) -> list[ExportedFile]:
    try:
        is_classifier = run.config.is_file() and run.verb == "train"  # otherwise, scores are not fractions of images
        exports = _read_json(run, EXPORTS_FILE).items()
        return [_parse_exported_file(_short_text(key), values, is_classifier) for key, values in exports][:MAX_ITEMS]
    except (KeyError, TypeError, ValueError) as problem:
        path = str(run.path / EXPORTS_FILE)
        raise UserError(f"{path!r} is damaged ({problem!r}): remove the file and export again.") from problem


def _parse_exported_file(name: str, comparison: Mapping[str, Any], is_classifier: bool) -> ExportedFile:
    model_ms, file_ms = map(stored_number, comparison["milliseconds"])
    accuracies = None
    if comparison["accuracy"] is not None:
        images = int(comparison["images"]) if is_classifier else 0
        accuracies = [_format_accuracy(stored_number(share), images) for share in comparison["accuracy"]]
    return ExportedFile(
        name,
        f"{stored_number(comparison['size']) / 2**20:.1f} MiB",
        str(int(comparison["images"])),
        percent(stored_number(comparison["agreement"])),
        f"{stored_number(comparison['largest']):.2g}",
        "" if accuracies is None else f"{accuracies[1]} ({accuracies[0]})",
        f"{file_ms:.1f} ({model_ms:.1f})",
    )


def _format_accuracy(share: float, images: int) -> str:
    if not images:
        return percent(share)
    low, high = (percent(end).removesuffix(" %") for end in wilson_share(share, images).ends)
    return f"{percent(share)}, {low} to {high}"


def _read_environment(run: RunFolder) -> dict[str, str]:
    content = _read_json(run, "env.json")
    if isinstance(content.get("command"), list):
        content["command"] = shlex.join(str(argument) for argument in content["command"])
    return {str(name): _short_text(value) for name, value in content.items()}


def _read_settings(run: RunFolder) -> list[Setting]:
    if not run.config.is_file():
        return []
    content = run.read_yaml(run.config.name)
    settings, origins = content.get("settings", {}), content.get("origin", {})
    if not isinstance(settings, dict) or not isinstance(origins, dict):
        raise UserError(f"{str(run.config)!r} is damaged: expected mappings `settings` and `origin`; train again.")
    return [Setting(str(k), _short_text(v), _short_text(origins.get(k, ""))) for k, v in settings.items()]


def _read_metrics(run: RunFolder) -> list[dict[str, float]]:
    try:
        if run.metrics.is_file() and run.metrics.stat().st_size > MAX_METRICS_BYTES:
            raise UserError(
                f"{str(run.metrics)!r} is larger than {MAX_METRICS_BYTES} bytes, too large for a list of epochs: "
                "restore the file."
            )
        return run.read_rows()
    except (ValueError, TypeError, csv.Error) as problem:
        raise UserError(f"{str(run.metrics)!r} is damaged ({problem}): restore the file, or train again.") from problem


def _read_summary(run: RunFolder) -> Summary:
    content = _read_json(run, "summary.json")
    texts = ("title", "model", "method", "data", "split", "grid", "kept", "learning_curve")
    numbers = ("epochs", "seconds", "peak_memory", "best_epoch", "kept_val_score")
    content["kept_val_score"] = content.get("kept_val_top1", content.get("kept_val_map"))
    try:
        entries: dict[str, Any] = {
            name: convert(content[name])
            for names, convert in (
                (texts, _short_text),
                (numbers, stored_number),
                (("parameters", "epoch_images"), int),
                (("selected",), bool),
            )
            for name in names
            if content.get(name) is not None
        }
        stored_parts, images = content.get("parts", {}), content.get("part_images", {})
        parts = [_parse_split(str(name), value, images.get(name)) for name, value in stored_parts.items()]
        steps = [_parse_step(step) for step in content.get("rungs", [])]
        next_steps = [_short_text(step) for step in content.get("next_steps", [])]
        calibration = content.get("calibration")
        confidence = None if calibration is None else _parse_confidence(calibration)
        return Summary(**entries, parts=parts, steps=steps, confidence=confidence, next_steps=next_steps)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as problem:
        path = str(run.path / "summary.json")
        raise UserError(f"{path!r} is damaged ({problem}): restore the file, or train again.") from problem


def _parse_step(value: Mapping[str, Any]) -> TuningStep:
    score = None if value["score"] is None else stored_number(value["score"])
    return TuningStep(_short_text(value["name"]), score, _short_text(value["time"]), bool(value["kept"]))


def _parse_confidence(value: Mapping[str, Any]) -> Confidence:
    before, after = map(stored_number, value["error"])
    return Confidence(stored_number(value["temperature"]), int(value["images"]), before, after)


def _parse_split(name: str, value: Any, images: Any = None) -> SplitSummary:
    if not isinstance(value, Mapping):
        return SplitSummary(name, int(value))
    counts = {str(label): int(count) for label, count in value.items()}
    return SplitSummary(name, sum(counts.values()) if images is None else int(images), counts)


def _short_text(value: Any) -> str:
    """Return a value as text of limited length; lists and mappings are shown without Python's brackets and quotes."""
    if isinstance(value, str):
        return value[:MAX_TEXT]
    if isinstance(value, Mapping) and value:
        return ", ".join(f"{name}: {_plain_text(item)}" for name, item in islice(value.items(), MAX_ITEMS))
    if isinstance(value, list) and value:
        return ", ".join(_plain_text(item) for item in value[:MAX_ITEMS])
    return _plain_text(value)


def _plain_text(value: Any) -> str:
    if value is None:
        return "none"
    return value[:MAX_TEXT] if isinstance(value, str) else SHORT_REPR.repr(value)
