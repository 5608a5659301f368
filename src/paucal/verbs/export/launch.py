"""`paucal.export_model`: write files that other programs can run, and compare each with the original model."""

import filecmp
import json
import os
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from paucal.data.arguments import path_text
from paucal.evaluation.results import read_report
from paucal.export.comparison import Comparison
from paucal.export.formats import GRAPHS
from paucal.export.timm_folder import (
    HubFacts,
    model_page,
    push_folder,
    with_temperature_in_weights,
    write_timm_folder,
)
from paucal.models.trained import read_card
from paucal.models.weights.local import licence_of
from paucal.reading import expand_user_path
from paucal.report.detection import write_detection_report
from paucal.report.inputs import EXPORTS_FILE
from paucal.report.page import REPORT_FILE as REPORT
from paucal.report.page import write_report
from paucal.report.regression import write_regression_report
from paucal.report.segmentation import write_segmentation_report
from paucal.runner.console import Console, RecordingConsole
from paucal.runner.initial_weights import NONE
from paucal.runs import RunFolder, open_model_folder
from paucal.runs.folder import PUBLISHED_WEIGHTS, installed_version, iterate_ancestry
from paucal.settings.options import check_ranges
from paucal.settings.values import settings_from_keywords, with_settings_signature
from paucal.types import UserError
from paucal.verbs.explain.writing import choose_output_folder
from paucal.verbs.export.fitting import STUDENT_FOLDER, Limits, find_best_file, formats_to_fit, parse_limits
from paucal.verbs.export.graphs import GraphWriter, file_name
from paucal.verbs.export.settings import ExportSettings
from paucal.verbs.export.subjects import ExportableClassifier, ExportableDetector, Subject, open_exportable_model
from paucal.writing import write_text

DEFAULT_FOLDER = Path("exports")
# Functions that write a run's report, by the model's `unit`.
REPORT_WRITERS = {
    "images": write_report,
    "objects": write_detection_report,
    "pixels": write_segmentation_report,
    "numbers": write_regression_report,
}
# Packages whose versions are stored with the comparisons.
RECORDED_PACKAGES = ("paucal", "torch", "timm", "onnx", "onnxscript", "onnxruntime", "openvino", "nncf", "litert-torch")
NO_INITIAL_WEIGHTS = "none: the initial weights were random"  # shown in place of the licence of the initial weights


@dataclass(frozen=True)
class Export:
    """The result of an export.

    Attributes:
        folder: Folder of the files.
        files: Files in the order in which they were written.
        comparisons: Comparison of each graph's predictions with the original model's, by file name.
        said: Lines that the command prints.
    """

    folder: Path
    files: tuple[Path, ...]
    comparisons: Mapping[str, Comparison]
    said: tuple[str, ...] = ()


@with_settings_signature(ExportSettings)
def export_model(run: str | os.PathLike[str], /, **settings: Any) -> Export:
    """Write the model of a run in formats for other programs; the same as `paucal export`.

    Each file is compared with the model on real images, by the largest difference of a probability, the agreement of
    the predicted classes, the speed and, if the labels are known, the accuracy. A file whose predictions differ from
    the model's is not kept.

    Args:
        run: Run folder.
        **settings: Any field of `paucal.verbs.export.settings.ExportSettings`.

    Raises:
        UserError: The run does not exist, a package is missing, the network cannot be written in a format, or the
            predictions of a file differ from the model's.
        TypeError: A setting does not exist.

    Example:
        >>> paucal.export_model("runs/1", format=["onnx"], with_preprocessing=True).folder  # doctest: +SKIP
        PosixPath('exports/1')
    """
    console = RecordingConsole()
    typed_settings = settings_from_keywords(ExportSettings, settings, "paucal.export_model", "export")
    result = export_all(path_text(run, "the run"), typed_settings, console)
    return replace(result, said=tuple(console.said))


def export_all(run: str, settings: ExportSettings, console: Console) -> Export:
    """Write the requested formats, or the best file within limits; see `export_model`."""
    check_ranges(settings)
    subject = open_exportable_model(open_model_folder(run), console, settings.mirror)
    if (limits := parse_limits(settings)) is not None:
        return _export_within_limits(subject, limits, settings)
    return _export_formats(subject, settings)


def _export_formats(subject: Subject, settings: ExportSettings) -> Export:
    formats, console = _choose_formats(settings, subject), subject.console
    graphs = [(name, False) for name in formats if name in GRAPHS]
    if settings.int8:
        graphs = [(name, int8) for name, _ in graphs for int8 in (False, True) if not int8 or GRAPHS[name].quantise]
    if settings.push is not None and (hub_files := _find_finished_export(subject, graphs, settings)):
        output = hub_files[0].parent
        console.say(f"{output} has the files of this export already: only the upload is repeated")
        console.say(f"uploaded to {push_folder(output, hub_files, settings.push)}")
        return Export(output, tuple(hub_files), {})
    output = choose_output_folder(settings.output, [settings.data], DEFAULT_FOLDER)
    paths, comparisons, refusals = _write_graphs(output, subject, graphs, settings)
    timm_files: list[Path] = []
    if {"safetensors", "hub"} & set(formats) and isinstance(subject, ExportableClassifier):
        timm_files = write_timm_files(output, subject, settings, "hub" in formats)
        paths += timm_files
    if comparisons:
        paths.append(_write_record(output, comparisons))
        _add_to_report(subject, comparisons)
    if paths:
        console.say(f"wrote {', '.join(path.name for path in paths)} to {output}")
    if settings.push is not None:  # last, since the export is complete even if the upload fails
        try:
            console.say(f"uploaded to {push_folder(output, timm_files, settings.push)}")
        except UserError as problem:
            refusals.append(str(problem))
    if refusals:
        raise UserError(" ".join(dict.fromkeys(refusals)))
    return Export(output, tuple(paths), comparisons)


def _find_finished_export(subject: Subject, graphs: Sequence[tuple[str, bool]], settings: ExportSettings) -> list[Path]:
    """Return the files of `--format hub` if a new export would leave `--output` unchanged; otherwise []."""
    if settings.output is None or not isinstance(subject, ExportableClassifier):
        return []
    output = expand_user_path(settings.output)
    if not all((output / file_name(name, int8)).exists() for name, int8 in graphs):
        return []
    with TemporaryDirectory(prefix="paucal-export-") as temporary:
        names = [file.name for file in write_timm_files(Path(temporary), subject, settings, True)]
        equal_names, _, _ = filecmp.cmpfiles(temporary, output, names, shallow=False)
    return [output / name for name in names] if len(equal_names) == len(names) else []


def _write_graphs(
    output: Path, subject: Subject, graphs: Sequence[tuple[str, bool]], settings: ExportSettings
) -> tuple[list[Path], dict[str, Comparison], list[str]]:
    """Write graphs; return the files, the comparisons by file name, and messages on graphs that were not kept."""
    paths: list[Path] = []
    comparisons: dict[str, Comparison] = {}
    refusals: list[str] = []
    writer = GraphWriter(subject, settings)
    if graphs:  # before any file is written, since this raises errors for invalid settings
        writer.open([name for name, int8 in graphs if not int8])
    for name, int8 in graphs:
        try:
            # The files are moved to the output folder only if they can be written and agree with the model.
            with TemporaryDirectory(prefix="paucal-export-") as staging:
                comparison = writer.write(name, int8, Path(staging))
                output.mkdir(parents=True, exist_ok=True)
                files = sorted(Path(staging).iterdir())
                paths += [Path(shutil.move(file, output / file.name)) for file in files]
        except UserError as problem:
            refusals.append(str(problem))
            continue
        if comparison is not None:
            comparisons[file_name(name, int8)] = comparison
    return paths, comparisons, refusals


def _export_within_limits(subject: Subject, limits: Limits, settings: ExportSettings) -> Export:
    """Write the best file within the limits and, if that file contains a smaller model, the smaller model's run."""
    formats = formats_to_fit(settings, subject)
    _choose_formats(replace(settings, format=formats), subject)  # only to raise errors for contradictory settings
    output = choose_output_folder(settings.output, [settings.data], DEFAULT_FOLDER)
    with TemporaryDirectory(prefix="paucal-export-") as work:
        best, comparison = find_best_file(subject, formats, limits, settings, Path(work))
        output.mkdir(parents=True, exist_ok=True)
        paths = [Path(shutil.move(path, output / path.name)) for path in sorted(best.folder.iterdir())]
        if best.model:
            paths.append(Path(shutil.move(Path(work) / STUDENT_FOLDER, output / STUDENT_FOLDER)))
    _write_record(output, {best.name: comparison}, limits=asdict(limits), model=best.model or "the run's")
    _add_to_report(subject, {best.title: comparison})
    subject.console.say(f"wrote {', '.join(path.name for path in paths)} to {output}")
    return Export(output, tuple(paths), {best.name: comparison})


def _choose_formats(settings: ExportSettings, subject: Subject) -> Sequence[str]:
    if settings.format is not None:
        formats: Sequence[str] = list(dict.fromkeys(settings.format))
    else:
        has_weights = subject.unit == ExportableClassifier.unit and not settings.mirror
        default_formats = ("safetensors", "pt2", "onnx") if has_weights else ("pt2", "onnx")
        formats = [name for name in default_formats if name not in GRAPHS or GRAPHS[name].installed or settings.int8]
    if settings.mirror and (weights := {"safetensors", "hub"} & set(formats)):
        raise UserError(
            "--mirror adds the average over mirrored images to an exported graph, but "
            f"--format {min(weights)} only stores weights: remove --mirror or --format {min(weights)}."
        )
    _check_formats(formats, settings, subject)
    for name in formats:
        if name in GRAPHS:
            GRAPHS[name].require_installed(name)
    return formats


def _fixed_size_formats(formats: Sequence[str]) -> list[str]:
    return [name for name in formats if name in GRAPHS and GRAPHS[name].pixels is False]


def _check_formats(formats: Sequence[str], settings: ExportSettings, subject: Subject) -> None:
    """Refuse settings and formats that contradict each other, or that are not supported for this model."""
    if settings.int8 and not any(name in GRAPHS and GRAPHS[name].quantise for name in formats):
        int8_formats = [name for name, entry in GRAPHS.items() if entry.quantise]
        raise UserError(f"--int8 needs a format that supports 8-bit files: give --format {' or '.join(int8_formats)}.")
    if settings.with_preprocessing and (fixed_size := _fixed_size_formats(formats)):
        raise UserError(
            f"--with-preprocessing needs files for images of any size, but {fixed_size[0]} files have fixed sizes: "
            "remove --with-preprocessing, or give --format onnx."
        )
    if settings.int8 and settings.with_preprocessing:
        raise UserError("--int8 and --with-preprocessing cannot be combined: remove one of these options.")
    if "hub" not in formats and (settings.push or settings.data_licence):
        raise UserError("--push and --data-licence are for the Hugging Face hub: add --format hub.")
    if isinstance(subject, ExportableDetector) and settings.int8:
        raise UserError("--int8 is for classifiers and segmenters, but this model is a detector: remove --int8.")
    if isinstance(subject, ExportableDetector) and (fixed_size := _fixed_size_formats(formats)):
        raise UserError(
            f"--format {fixed_size[0]} has fixed sizes, but a detector's number of regions depends on the image: "
            "use --format onnx."
        )
    if subject.unit != ExportableClassifier.unit:
        advice = {
            "html": ": use --format onnx",
            "hub": " that timm can build; this model can only be read by 'paucal.load'",
            "safetensors": "; the run's model.safetensors has these weights",
        }
        if (unsuitable := next((name for name in formats if name in advice), None)) is not None:
            raise UserError(f"--format {unsuitable} is for classifiers{advice[unsuitable]}.")
    elif "hub" in formats and subject.card.reads_stages:
        raise UserError(
            "--format hub is for classifiers that timm can build, but this classifier reads several stages, and only "
            "'paucal.load' can build such a classifier: run 'paucal train DATA --init "
            f"{shlex.quote(subject.run.place)}', which fine-tunes the weights with a classifier that timm supports, "
            "and export the new run."
        )


def _add_to_report(subject: Subject, comparisons: Mapping[str, Comparison]) -> None:
    """Show the comparisons in the run's report, next to the comparisons of earlier exports."""
    run = subject.run
    if not (run.path / REPORT).is_file():
        return
    earlier_comparisons = run.read_json(EXPORTS_FILE) if (run.path / EXPORTS_FILE).is_file() else {}
    new_comparisons = {name: asdict(entry) for name, entry in comparisons.items()}
    run.write_json(EXPORTS_FILE, {**earlier_comparisons, **new_comparisons})
    REPORT_WRITERS[subject.unit](run.path)


def _write_record(output: Path, comparisons: Mapping[str, Comparison], **extra_fields: Any) -> Path:
    versions = {name: version for name in RECORDED_PACKAGES if (version := installed_version(name)) is not None}
    entries = {name: asdict(entry) for name, entry in comparisons.items()}
    text = json.dumps({"versions": versions, "comparisons": entries, **extra_fields}, indent=2)
    write_text(output / "export.json", text + "\n")
    return output / "export.json"


def write_timm_files(path: Path, subject: ExportableClassifier, settings: ExportSettings, for_hub: bool) -> list[Path]:
    """Write the files of `--format hub`, or of `--format safetensors` if not `for_hub`, and return their paths."""
    path.mkdir(parents=True, exist_ok=True)
    run, network, card = subject.run, subject.network, subject.card
    if for_hub:
        network, card = with_temperature_in_weights(network, card)
    summary = run.read_json("summary.json") if run.finished else {}
    weights_source = run.read_json("init.json").get("source") if (run.path / "init.json").is_file() else None
    metrics_file = run.evaluation("test") / "metrics.json"
    metrics_name = str(metrics_file.relative_to(run.path))
    report = read_report(run.read_json(metrics_name)) if metrics_file.is_file() else None
    licence, hub = licence_of_initial_weights(run), None
    if for_hub:
        data = Path(str(summary.get("data", "images"))).name  # omits the folder names of this machine
        summary |= {"data": data}
        hub = HubFacts(None if licence == NO_INITIAL_WEIGHTS else licence, data, settings.data_licence, report)
    page = model_page(card, str(weights_source or "random weights"), licence, summary, report, hub)
    return write_timm_folder(path, network, card, page)


def licence_of_initial_weights(run: RunFolder) -> str | None:
    """Return the licence of the published weights with which the training of a run or of its ancestors began.

    Return `NO_INITIAL_WEIGHTS` if they were random, and None if the licence is unknown, because the weights came from a
    file or an earlier run is missing.
    """
    for ancestor in iterate_ancestry(run):
        if not ancestor.config.is_file():
            return None
        init = ancestor.settings.get("init")
        if init in (None, NONE):
            return NO_INITIAL_WEIGHTS
        if init in PUBLISHED_WEIGHTS:
            return licence_of(read_card(ancestor).backbone.name)
    return None
