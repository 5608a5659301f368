"""Read the files of a run folder for its report; files may be missing, and their content is untrusted."""

import reprlib
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
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
        evaluation = read_stored(run, "evaluation/test/metrics.json", dict, {})
        summary = read_stored(run, "summary.json", _parse_summary, Summary())
        settings = _read_settings(run)
        environment = read_stored(run, "env.json", dict, {})
        if isinstance(environment.get("command"), list):
            environment["command"] = shlex.join(str(argument) for argument in environment["command"])
        if run.metrics.is_file() and run.metrics.stat().st_size > MAX_METRICS_BYTES:
            raise UserError(
                f"{str(run.metrics)!r} is larger than {MAX_METRICS_BYTES} bytes, too large for a list of epochs: "
                "restore the file."
            )
        rows = run.read_rows()
        report = read_report(evaluation) if evaluation and evaluation.get("kind") != "regression" else None
        has_check = (run.path / "check.json").is_file()
        advice = "remove the file, or train again"
        check = read_stored(run, "check.json", _parse_findings, advice=advice) if has_check else None
        frozen = read_frozen(run)
        has_config = run.config.is_file()
        verb = run.verb if has_config else "train"
        # The scores of other tasks than classification are not fractions of images.
        parse_exports = partial(_parse_exports, is_classifier=has_config and verb == "train")
        exports = read_stored(run, EXPORTS_FILE, parse_exports, [], "remove the file and export again")
    except (RecursionError, OSError) as problem:
        raise UserError(f"the files of {str(path)!r} cannot be read ({problem}): restore the files.") from problem
    environment = {str(name): short_text(value) for name, value in environment.items()}
    return RunFiles(run, summary, settings, environment, rows, report, check, frozen, verb, exports)


def read_stored(
    run: RunFolder,
    name: str,
    parse: Callable[[Any], T],
    missing: T | None = None,
    advice: str = "restore the file, or train again",
) -> T:
    """Read the JSON file `name` of a run, and convert its content with `parse`.

    Return `missing` if the file is missing; raise a UserError if `missing` is None or if the file is damaged. `advice`
    tells the user what to do with a damaged file.
    """
    path = run.path / name
    if missing is not None and not path.is_file():
        return missing
    try:
        return parse(run.read_json(name))
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as problem:
        raise UserError(f"{str(path)!r} is damaged ({problem!r}): {advice}.") from problem


def score_and_interval(value: Mapping[str, Any]) -> tuple[str, str]:
    """Return a stored score and its confidence interval as texts; the interval is "" if it is unknown."""
    estimate, low, high = (None if value[name] is None else float(value[name]) for name in ("value", "low", "high"))
    if estimate is None:
        return "none", ""
    return percent(estimate), "" if low is None or high is None else f"{100 * low:.1f} and {100 * high:.1f}"


def _parse_findings(content: Mapping[str, Any]) -> list[dict[str, str]]:
    names = ("level", "text", "advice")
    return [{name: short_text(finding[name]) for name in names} for finding in content["findings"][:MAX_ITEMS]]


def _parse_exports(content: Mapping[str, Any], is_classifier: bool) -> list[dict[str, str]]:
    """Return the rows of the table of exported files, by heading; values of the original model are in brackets."""
    rows = []
    for name, comparison in content.items():
        images, accuracies = int(comparison["images"]), []
        for share in () if comparison["accuracy"] is None else map(stored_number, comparison["accuracy"]):
            interval = ""
            if is_classifier and images:
                low, high = (percent(end).removesuffix(" %") for end in wilson_share(share, images).ends)
                interval = f", {low} to {high}"
            accuracies.append(f"{percent(share)}{interval}")
        original, exported = accuracies or ("", "")
        model_ms, file_ms = map(stored_number, comparison["milliseconds"])
        row = {
            "file": short_text(name),
            "size": f"{stored_number(comparison['size']) / 2**20:.1f} MiB",
            "images": str(images),
            "same predictions": percent(stored_number(comparison["agreement"])),
            "largest difference": f"{stored_number(comparison['largest']):.2g}",
            "accuracy": f"{exported} ({original})" if accuracies else "",
            "milliseconds": f"{file_ms:.1f} ({model_ms:.1f})",
        }
        rows.append(row)
    return rows[:MAX_ITEMS]


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


def _parse_summary(content: dict[str, Any]) -> Summary:
    content["kept_val_score"] = content.get("kept_val_top1", content.get("kept_val_map"))
    converters: Mapping[Callable[[Any], Any], Sequence[str]] = {
        short_text: ("title", "model", "method", "data", "split", "grid", "kept", "learning_curve"),
        stored_number: ("epochs", "seconds", "peak_memory", "best_epoch", "kept_val_score"),
        int: ("parameters", "epoch_images"),
        bool: ("selected",),
    }
    entries: dict[str, Any] = {
        name: convert(content[name])
        for convert, names in converters.items()
        for name in names
        if content.get(name) is not None
    }
    parts = []
    for name, value in content.get("parts", {}).items():
        if isinstance(value, Mapping):
            counts = {str(label): int(count) for label, count in value.items()}
            images = content.get("part_images", {}).get(name)
            images = sum(counts.values()) if images is None else int(images)
            parts.append(SplitSummary(str(name), images, counts))
        else:
            parts.append(SplitSummary(str(name), int(value)))
    steps = []
    for step in content.get("rungs", []):
        score = None if step["score"] is None else stored_number(step["score"])
        texts = {"name": short_text(step["name"]), "time": short_text(step["time"])}
        steps.append({**texts, "score": score, "kept": bool(step["kept"])})
    next_steps = [short_text(step) for step in content.get("next_steps", [])]
    confidence = None
    if (calibration := content.get("calibration")) is not None:
        before, after = map(stored_number, calibration["error"])
        confidence = Confidence(stored_number(calibration["temperature"]), int(calibration["images"]), before, after)
    return Summary(**entries, parts=parts, steps=steps, confidence=confidence, next_steps=next_steps)


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
