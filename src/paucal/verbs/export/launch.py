"""`paucal.export_model`: files that other programs can run, each compared with the original model."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from torch import Tensor

from paucal.backbones.weights.trained import licence_of
from paucal.data.arguments import path_text
from paucal.evaluation.results import read_report
from paucal.export.comparison import Comparison, answers, compare, fed, timed
from paucal.export.onnx_model import OnnxNetwork, quantised, to_onnx
from paucal.export.program import Graph, graph_of, packed, traced, unpacked
from paucal.export.timm_folder import model_page, write_timm_folder
from paucal.models.trained import TrainedModel, load_trained
from paucal.runner.console import Console, RecordingConsole
from paucal.runs import RunFolder, open_model_folder, write_atomically, write_text
from paucal.settings.options import check_ranges
from paucal.settings.values import from_python, shows_settings
from paucal.types import UserError
from paucal.verbs.explain.writing import settle_folder
from paucal.verbs.export.images import Pictures, calibrating_images, compared_images
from paucal.verbs.export.settings import FORMATS, ExportSettings
from paucal.wording import counted, percent

ALIKE = 1e-3  # largest allowed difference of a probability; an export that differs by more is refused
ALIKE_PIXELS = 0.05  # the same for exports with preprocessing, which rounds a few pixels differently
DEFAULT = Path("exports")
PACKAGES = ("paucal", "torch", "timm", "onnx", "onnxscript", "onnxruntime")


@dataclass(frozen=True)
class Export:
    """The result of an export.

    Attributes:
        folder: Folder of the files.
        files: Files in the order in which they were written.
        comparisons: Comparison of each graph's answers with the original's, by file name.
        said: Text that the command line prints.
    """

    folder: Path
    files: tuple[Path, ...]
    comparisons: Mapping[str, Comparison]
    said: tuple[str, ...] = ()


@shows_settings(ExportSettings)
def export_model(run: str | os.PathLike[str], /, **settings: Any) -> Export:
    """Write the model of a run in formats for other programs; the same as `paucal export`.

    Before a file is written, it is compared with the model on real images: the largest difference of a probability,
    agreement of classes, speed, and accuracy if the labels are known.

    Args:
        run: A run or its folder.
        **settings: Any field of `paucal.verbs.export.settings.ExportSettings`.

    Raises:
        UserError: there is no such run, a package is missing, the network cannot be written in a format, or the
            answers of an export differ from those of the model.
        TypeError: a setting does not exist.

    Example:
        >>> paucal.export_model("runs/1", format=["onnx"], with_preprocessing=True).folder  # doctest: +SKIP
        PosixPath('exports/1')
    """
    return export_all(
        path_text(run, "the run"),
        from_python(ExportSettings, settings, "paucal.export_model", "export"),
        RecordingConsole(),
    )


def export_all(run: str, settings: ExportSettings, console: Console) -> Export:
    """Write and compare all requested formats; see `export_model`."""
    check_ranges(settings)
    formats = _formats(settings)
    folder = open_model_folder(run)
    model = load_trained(folder).require_classifier()
    place = settle_folder(settings.output, [] if settings.data is None else [settings.data], DEFAULT)
    graph = graph_of(model, settings.with_preprocessing)
    graphs = (
        _exported_files(folder, model, graph, formats, settings, console)
        if set(formats) - {"safetensors"}
        else iter(())
    )
    looked = None
    written: list[Path] = []
    comparisons: dict[str, Comparison] = {}
    for name, content, network, exact in graphs:
        if looked is None:
            images = compared_images(folder, settings.data, settings.images, model, console)
            looked = _Looked(model, graph, images, console)
        found = looked.beside(network, console, name)
        _require_alike(name, found, ALIKE_PIXELS if settings.with_preprocessing else ALIKE, exact)
        console.say(_sentence(name, found, looked.images.what, len(content)))
        place.mkdir(parents=True, exist_ok=True)
        write_atomically(place / name, lambda file, content=content: file.write(content))
        written.append(place / name)
        comparisons[name] = found
    if "safetensors" in formats:
        place.mkdir(parents=True, exist_ok=True)
        written += write_timm_folder(place, model.module, model.card, _page(folder, model))
    if comparisons:
        write_text(place / "export.json", json.dumps(_record(comparisons), indent=2) + "\n")
        written.append(place / "export.json")
    console.say(f"wrote {', '.join(path.name for path in written)} to {place}")
    return Export(
        place, tuple(written), comparisons, tuple(console.said) if isinstance(console, RecordingConsole) else ()
    )


def _formats(settings: ExportSettings) -> Sequence[str]:
    chosen = tuple(dict.fromkeys(settings.format or ()))
    if not chosen:
        there = all(find_spec(name) for name in ("onnx", "onnxscript", "onnxruntime"))
        chosen = FORMATS if there or settings.int8 else FORMATS[:2]
    if settings.int8 and "onnx" not in chosen:
        raise UserError("--int8 writes a second ONNX file: give --format onnx with it.")
    if settings.int8 and settings.with_preprocessing:
        raise UserError("--int8 goes with a network alone: leave out --with-preprocessing, or --int8.")
    return chosen


Made = tuple[str, bytes, Any, bool]  # file name, content, network that runs it, whether it must give the same answers


def _exported_files(
    run: RunFolder,
    model: TrainedModel,
    graph: Graph,
    formats: Sequence[str],
    settings: ExportSettings,
    console: Console,
) -> Iterator[Made]:
    console.say(f"writing {model.card.backbone.name} down as a graph, which takes up to a minute")
    program = traced(graph)
    if "pt2" in formats:
        content = packed(program, model.card)
        yield "model.pt2", content, unpacked(content), True
    if "onnx" not in formats:
        return
    content = to_onnx(program, graph, model.card)
    yield "model.onnx", content, OnnxNetwork(content), True
    if settings.int8:
        inputs = (fed(model, picture, False).numpy() for picture in calibrating_images(run, model, console))
        small = quantised(content, graph.input, inputs)
        yield "model.int8.onnx", small, OnnxNetwork(small), False


class _Looked:
    """The original's answers for the images that all exports are compared on."""

    def __init__(self, model: TrainedModel, graph: Graph, images: Pictures, console: Console) -> None:
        self.model, self.images, self.pixels = model, images, graph.input == "pixels"
        with console.progress("the model's own answers") as advance:
            self.original: Tensor = answers(model, model.module, images.pictures, False, advance)

    def beside(self, network: Any, console: Console, name: str) -> Comparison:
        """Return the comparison of an export with the original on the same images."""
        with console.progress(f"comparing {name}") as advance:
            found = answers(self.model, network, self.images.pictures, self.pixels, advance)
        first = self.images.pictures[0]
        own, other = fed(self.model, first, False), fed(self.model, first, self.pixels)
        speed = timed(lambda: self.model.module(own), lambda: network(other))
        return compare(self.original, found, speed, self.images.labels, self.model.card.thresholds)


def _require_alike(name: str, found: Comparison, most: float, exact: bool) -> None:
    if exact and not found.largest <= most:
        raise UserError(
            f"{name} answers otherwise than the model: a probability differs by {found.largest:.2g} on "
            f"{counted(found.images, 'image')}, expected {most:g} at most, so it was not kept: use another --format."
        )


def _sentence(name: str, found: Comparison, what: str, size: int) -> str:
    own, other = found.milliseconds
    scores = "" if found.top1 is None else f"; accuracy {percent(found.top1[1])}, the model's {percent(found.top1[0])}"
    return (
        f"{name} ({size / 2**20:.1f} MiB): on {found.images} {what} the same class for {percent(found.agreement)}, a "
        f"probability differs by {found.largest:.2g} at most{scores}; {other:.1f} ms an image, the model here {own:.1f}"
    )


def _record(comparisons: Mapping[str, Comparison]) -> dict[str, Any]:
    return {
        "versions": {name: found for name in PACKAGES if (found := _version(name))},
        "comparisons": {name: asdict(found) for name, found in comparisons.items()},
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _page(run: RunFolder, model: TrainedModel) -> str:
    facts = run.read_json("summary.json") if run.finished else {}
    start = run.read_json("init.json").get("source") if (run.path / "init.json").is_file() else None
    stored = run.evaluation("test") / "metrics.json"
    name = str(stored.relative_to(run.path))
    report = read_report(run.read_json(name)) if stored.is_file() else None
    licence = "none: nothing was taken over" if start is None else licence_of(model.card.backbone.name)
    return model_page(model.card, str(start or "random weights"), licence, facts, report)
