"""Read the files of a run folder for its report; files may be missing, and their content is untrusted."""

import csv
import reprlib
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from paucal.evaluation.results import Report, read_report, stored_number
from paucal.metrics.intervals import wilson_share
from paucal.report.frozen import read_frozen
from paucal.runs import RunFolder
from paucal.types import UserError
from paucal.wording import percent

T = TypeVar("T")
EXPORTS_FILE = "exports.json"  # comparisons of the model with the files that `paucal export` has written
MAX_METRICS_BYTES = 16 * 2**20
# Values in YAML files may be deeply nested or contain themselves, so the length of their text is limited.
SHORT_REPR = reprlib.Repr()
SHORT_REPR.maxlevel, SHORT_REPR.maxlist, SHORT_REPR.maxdict, SHORT_REPR.maxstring = 3, 20, 20, 200
MAX_ITEMS = 50  # largest number of entries of a list or mapping that are shown
MAX_TEXT = 2000  # largest number of characters of a text
MAX_CLASSES, MAX_NAME = 300, 300  # largest number of rows in a table of classes, and of characters of a name


@dataclass(frozen=True)
class SplitSummary:
    """One split of the data: its name, its number of images and, if recorded, the number of images of each class."""

    name: str
    images: int
    classes: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Confidence:
    """The temperature, the number of images it was fitted to, and the calibration error before and after scaling."""

    temperature: float
    images: int
    before: float
    after: float


@dataclass(frozen=True)
class Summary:
    """The content of `summary.json`, which describes a run; each entry may be missing."""

    title: str | None = None
    model: str | None = None
    method: str | None = None
    data: str | None = None
    split: str | None = None
    epoch_images: int | None = None  # images that an epoch uses, if it differs from the number of training images
    # Splits of the data, stored as {"train": 120, ...}, or as {"train": {"cat": 70, "dog": 50}, ...} with
    # the number of images of each split in "part_images".
    parts: Sequence[SplitSummary] = ()
    parameters: int | None = None
    grid: str | None = None  # rows and columns of tokens, such as "8 x 8"
    epochs: float | None = None
    seconds: float | None = None
    peak_memory: float | None = None  # peak memory in bytes: GPU memory if a GPU was used, else main memory
    selected: bool = True  # whether the kept epoch was selected on validation images; otherwise the last was kept
    best_epoch: float | None = None
    steps: Sequence[Mapping[str, Any]] = ()  # "name", "score", "time" and "kept" of each step of auto-tuning
    kept: str | None = None  # sentence on the origin of the weights, if they are not those of a single epoch
    kept_val_score: float | None = None  # validation accuracy or mean average precision of the kept model
    confidence: Confidence | None = None
    learning_curve: str | None = None  # sentence on the accuracy as a function of the number of training images
    next_steps: Sequence[str] = ()  # sentences or commands that suggest what to do next

    @property
    def images_text(self) -> str | None:
        """The number of images in each split, such as "120 train, 30 test"; None if no numbers are recorded."""
        return ", ".join(f"{part.images} {part.name}" for part in self.parts) or None

    @property
    def class_counts(self) -> dict[str, list[int | None]]:
        """The number of images in each split, by class; None for splits whose counts per class are not recorded."""
        names = dict.fromkeys(name for part in self.parts for name in part.classes)
        return {name: [part.classes.get(name, 0) if part.classes else None for part in self.parts] for name in names}


@dataclass(frozen=True)
class RunFiles:
    """The contents of a run folder that a report shows; entries of missing files are None or empty."""

    run: RunFolder
    summary: Summary
    settings: Sequence[Mapping[str, str]]  # "name", "value" and "origin" of each resolved setting
    environment: Mapping[str, str]
    rows: Sequence[Mapping[str, float]]  # metrics of each epoch
    evaluation: Report | None
    check: Sequence[Mapping[str, str]] | None = None  # "level", "text" and "advice" of each finding about the images
    frozen: Mapping[str, Any] | None = None  # content of the section on frozen features, from `read_frozen`
    verb: str = "train"
    exports: Sequence[Mapping[str, str]] = ()  # exported files and their comparison with the model, by heading


def read_run(path: Path) -> RunFiles:
    """Read the files of a run folder."""
    if not path.is_dir():
        raise UserError(f"{str(path)!r} is not a folder: expected a run folder, such as runs/1.")
    run = RunFolder(path)
    try:
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
    except (RecursionError, OSError) as problem:
        raise UserError(f"the files of {str(path)!r} cannot be read ({problem}): restore the files.") from problem


def read_stored(
    files: RunFiles, name: str, read: Callable[[Any], T], missing: T | None = None, repeat: str = "train"
) -> T:
    """Read the JSON file `name` of a run, and convert its content with `read`.

    Return `missing` if the file is missing; raise a UserError if `missing` is None. If the file is damaged, the message
    advises to restore the file or to repeat the step that the verb `repeat` names.
    """
    path = files.run.path / name
    if missing is not None and not path.is_file():
        return missing
    try:
        return read(files.run.read_json(name))
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as problem:
        raise UserError(f"{str(path)!r} is damaged ({problem!r}): restore the file, or {repeat} again.") from problem


def score_and_interval(value: Mapping[str, Any]) -> tuple[str, str]:
    """Return a stored score and its confidence interval as texts; the interval is "" if it is unknown."""
    estimate, low, high = (None if value[name] is None else float(value[name]) for name in ("value", "low", "high"))
    if estimate is None:
        return "none", ""
    return percent(estimate), "" if low is None or high is None else f"{100 * low:.1f} and {100 * high:.1f}"


def _read_json(run: RunFolder, name: str) -> dict[str, Any]:
    return run.read_json(name) if (run.path / name).is_file() else {}


def _read_findings(run: RunFolder) -> list[dict[str, str]] | None:
    if not (run.path / "check.json").is_file():
        return None
    try:
        findings = run.read_json("check.json")["findings"]
        names = ("level", "text", "advice")
        return [{name: short_text(finding[name]) for name in names} for finding in findings[:MAX_ITEMS]]
    except (KeyError, TypeError) as problem:
        path = str(run.path / "check.json")
        raise UserError(f"{path!r} is damaged ({problem}): remove the file, or train again.") from problem


def _read_exports(run: RunFolder) -> list[dict[str, str]]:
    try:
        is_classifier = run.config.is_file() and run.verb == "train"  # otherwise, scores are not fractions of images
        exports = _read_json(run, EXPORTS_FILE).items()
        return [_describe_export(short_text(name), values, is_classifier) for name, values in exports][:MAX_ITEMS]
    except (KeyError, TypeError, ValueError) as problem:
        path = str(run.path / EXPORTS_FILE)
        raise UserError(f"{path!r} is damaged ({problem!r}): remove the file and export again.") from problem


def _describe_export(name: str, comparison: Mapping[str, Any], is_classifier: bool) -> dict[str, str]:
    """Return the row of a table, by heading; the values of the original model are in brackets."""
    model_ms, file_ms = map(stored_number, comparison["milliseconds"])
    accuracy = ""
    if comparison["accuracy"] is not None:
        images = int(comparison["images"]) if is_classifier else 0
        original, exported = (_format_accuracy(stored_number(share), images) for share in comparison["accuracy"])
        accuracy = f"{exported} ({original})"
    return {
        "file": name,
        "size": f"{stored_number(comparison['size']) / 2**20:.1f} MiB",
        "images": str(int(comparison["images"])),
        "same predictions": percent(stored_number(comparison["agreement"])),
        "largest difference": f"{stored_number(comparison['largest']):.2g}",
        "accuracy": accuracy,
        "milliseconds": f"{file_ms:.1f} ({model_ms:.1f})",
    }


def _format_accuracy(share: float, images: int) -> str:
    if not images:
        return percent(share)
    low, high = (percent(end).removesuffix(" %") for end in wilson_share(share, images).ends)
    return f"{percent(share)}, {low} to {high}"


def _read_environment(run: RunFolder) -> dict[str, str]:
    content = _read_json(run, "env.json")
    if isinstance(content.get("command"), list):
        content["command"] = shlex.join(str(argument) for argument in content["command"])
    return {str(name): short_text(value) for name, value in content.items()}


def _read_settings(run: RunFolder) -> list[dict[str, str]]:
    if not run.config.is_file():
        return []
    content = run.read_yaml(run.config.name)
    settings, origins = content.get("settings", {}), content.get("origin", {})
    if not isinstance(settings, dict) or not isinstance(origins, dict):
        raise UserError(f"{str(run.config)!r} is damaged: expected mappings `settings` and `origin`; train again.")
    return [
        {"name": str(name), "value": short_text(value), "origin": short_text(origins.get(name, ""))}
        for name, value in settings.items()
    ]


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
                (texts, short_text),
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
        next_steps = [short_text(step) for step in content.get("next_steps", [])]
        confidence = None
        if (calibration := content.get("calibration")) is not None:
            before, after = map(stored_number, calibration["error"])
            temperature, fitted = stored_number(calibration["temperature"]), int(calibration["images"])
            confidence = Confidence(temperature, fitted, before, after)
        return Summary(**entries, parts=parts, steps=steps, confidence=confidence, next_steps=next_steps)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as problem:
        path = str(run.path / "summary.json")
        raise UserError(f"{path!r} is damaged ({problem}): restore the file, or train again.") from problem


def _parse_step(value: Mapping[str, Any]) -> dict[str, Any]:
    score = None if value["score"] is None else stored_number(value["score"])
    name, time = short_text(value["name"]), short_text(value["time"])
    return {"name": name, "score": score, "time": time, "kept": bool(value["kept"])}


def _parse_split(name: str, value: Any, images: Any = None) -> SplitSummary:
    if not isinstance(value, Mapping):
        return SplitSummary(name, int(value))
    counts = {str(label): int(count) for label, count in value.items()}
    return SplitSummary(name, sum(counts.values()) if images is None else int(images), counts)


def short_text(value: Any) -> str:
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
