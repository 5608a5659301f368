"""Export a model's graph: write a file per format, and keep the files whose outputs on images match the model's."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from paucal.data.channels.decoding import convert_image
from paucal.data.images import evenly_spaced
from paucal.export.browser_page import runtime_files
from paucal.export.comparison import Comparison, compare_all
from paucal.export.formats import GRAPHS, ExportSource
from paucal.reading import expand_user_path
from paucal.runner.input_images import open_sources, read_all
from paucal.types import UserError
from paucal.verbs.export.settings import ExportSettings
from paucal.verbs.export.subjects import Subject
from paucal.wording import counted, percent

# Accepted difference of probabilities if a graph includes the preprocessing, which rounds some pixels differently.
PIXELS_TOLERANCE = 0.05
# Factors that raise the tolerance for models with many outputs per image, since the largest of many differences counts.
TOLERANCE_FACTORS = {"pixels": 5, "objects": 5}
# Minimum fraction of a file's predictions that must equal the model's, for full-precision files and for 8-bit files.
MIN_AGREEMENT, MIN_INT8_AGREEMENT = 0.95, 0.75
# For each `unit` of a model: the words for the agreement of a file with the model, and the name of the accuracy.
COMPARISON_TEXTS = {
    "images": ("the same class for {}", "accuracy"),
    "numbers": ("equal predictions, within a tenth of the target's standard deviation, for {}", "accuracy"),
    "pixels": ("the same class for {} of the pixels", "pixel accuracy"),
    "objects": ("the same objects for {} of both models' objects", "accuracy"),
}
# Largest number of noise images on which files are compared with the model if no real images are available.
MAX_NOISE_IMAGES = 16
CALIBRATION_IMAGES = 100  # number of training images from which the ranges of 8-bit activations are measured
# Names of splits, in order of preference: files are compared on the images of the first split that is not empty.
TEST_SPLITS, VALIDATION_SPLITS = ("test", "val", "train"), ("val", "train")


def includes_preprocessing(name: str, settings: ExportSettings) -> bool:
    """Return whether the graph of a format includes the preprocessing."""
    fixed_choice = GRAPHS[name].pixels
    return settings.with_preprocessing if fixed_choice is None else fixed_choice


def file_name(name: str, int8: bool) -> str:
    """Return the name of a format's main file or, if `int8`, of its 8-bit file."""
    return f"model{'.int8' if int8 else ''}{GRAPHS[name].suffix}"


@dataclass(frozen=True, eq=False)
class ComparisonImages:
    """Images on which files are compared with the model, upright and with the model's number of channels."""

    images: list[Image.Image]  # images of any sizes
    # Class index of each image, or (H, W) class indices of its pixels; None if the labels are unknown.
    labels: list[Tensor] | None
    description: str  # description of the images for messages


@dataclass(eq=False)
class GraphWriter:
    """Writes the graph of a model in any format, and compares the files with the model."""

    subject: Subject
    settings: ExportSettings
    clock: Callable[[], float] = time.perf_counter  # returns the current time in seconds, to measure the time per image
    sources: dict[bool, ExportSource] = field(default_factory=dict, init=False)
    images: ComparisonImages = field(init=False)  # images on which the files are compared with the model

    def open(
        self, formats: Sequence[str], splits: Sequence[str] = TEST_SPLITS, images: ComparisonImages | None = None
    ) -> None:
        """Prepare the graphs, and read the images on which the files are compared, unless `images` are given.

        The images come from the first of the `splits` that is not empty. Images of --data replace test images; they
        replace validation images only if the images of the run are missing.
        """
        web_folder = None if self.settings.onnxruntime_web is None else expand_user_path(self.settings.onnxruntime_web)
        if "html" in formats:
            runtime_files(web_folder)
        for with_preprocessing in {includes_preprocessing(name, self.settings) for name in formats}:
            graph = self.subject.graph(with_preprocessing)
            self.sources[with_preprocessing] = ExportSource(graph, self.subject.card, web_folder)
        if images is not None:
            self.images = images
            return
        uses_own_images = self.settings.data and splits is not TEST_SPLITS and has_images(self.subject)
        data = None if uses_own_images else self.settings.data
        self.images = open_comparison_images(data, self.settings.images, self.subject, splits)
        name = self.subject.card.backbone.name
        self.subject.console.say(f"exporting the graph of {name}, which takes up to a minute")

    def write(self, name: str, int8: bool, folder: Path) -> Comparison | None:
        """Write a file into a folder, and return its comparison with the model; None if the file cannot run here.

        Raises:
            UserError: The network cannot be written in this format, or the file's predictions differ from the model's.
        """
        entry, path = GRAPHS[name], folder / file_name(name, int8)
        self._write_graph(name, int8, path)
        if not entry.runs_here:
            self.subject.console.say(
                f"{path.name} ({_folder_size(folder) / 2**20:.1f} MiB): converted, with correct shapes; the file "
                f"was not run, since its runtime only exists for {entry.platform}"
            )
            return None
        comparison = self.compare(name, path)
        if int8:
            _require_agreement(path.name, comparison, MIN_INT8_AGREEMENT, "remove --int8")
        else:
            tolerance = max(entry.tolerance, PIXELS_TOLERANCE if includes_preprocessing(name, self.settings) else 0)
            max_difference = tolerance * TOLERANCE_FACTORS.get(self.subject.unit, 1)
            if not comparison.largest <= max_difference:
                raise UserError(
                    f"{path.name} differs from the model: {self._describe_difference(comparison)} on "
                    f"{counted(comparison.images, 'image')}, expected at most {max_difference:g}, so the file was not "
                    "kept: use another --format."
                )
            _require_agreement(path.name, comparison, MIN_AGREEMENT, "use another --format")
        self.subject.console.say(self._describe_comparison(path.name, comparison))
        return comparison

    def measure(self, name: str, int8: bool, folder: Path) -> Comparison:
        """Write a file into a folder, and return its comparison with the model, even if their outputs differ."""
        path = folder / file_name(name, int8)
        self._write_graph(name, int8, path)
        return self.compare(name, path)

    def _write_graph(self, name: str, int8: bool, path: Path) -> None:
        entry, source = GRAPHS[name], self.sources[includes_preprocessing(name, self.settings)]
        if int8:
            assert entry.quantise is not None
            entry.quantise(source, path, calibration_inputs(self.subject))
        else:
            entry.write(source, path)

    def compare(self, name: str, path: Path) -> Comparison:
        """Compare a file with the model on the images."""
        images, labels = self.images.images, self.images.labels
        with_preprocessing = includes_preprocessing(name, self.settings)
        with self.subject.console.progress(f"comparing {path.name}") as advance:
            network = GRAPHS[name].load(path)
            comparison = compare_all(
                self.subject, network, with_preprocessing, images, labels, advance, clock=self.clock
            )
        return replace(comparison, size=_folder_size(path.parent))

    def _describe_difference(self, comparison: Comparison) -> str:
        if self.subject.unit == "numbers":
            return f"a prediction differs by {comparison.largest:.2g} standard deviations of the target"
        return f"a probability differs by {comparison.largest:.2g}"

    def _describe_comparison(self, name: str, comparison: Comparison) -> str:
        model_ms, file_ms = comparison.milliseconds
        agreement_text, accuracy_text = COMPARISON_TEXTS[self.subject.unit]
        scores = ""
        if comparison.accuracy is not None:
            model_score, file_score = map(percent, comparison.accuracy)
            scores = f"; {accuracy_text} {file_score}, the model's {model_score}"
        return (
            f"{name} ({comparison.size / 2**20:.1f} MiB): on {comparison.images} {self.images.description} "
            f"{agreement_text.format(percent(comparison.agreement))}, {self._describe_difference(comparison)} at most"
            f"{scores}; {file_ms:.1f} ms per image, compared to {model_ms:.1f} ms for the model"
        )


def _folder_size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def _require_agreement(name: str, comparison: Comparison, minimum: float, advice: str) -> None:
    if not comparison.agreement >= minimum:
        raise UserError(
            f"{name} agrees with the model in only {percent(comparison.agreement)} of its predictions, expected at "
            f"least {percent(minimum)}, so the file was not kept: {advice}."
        )


def open_comparison_images(
    data: str | None, max_images: int, subject: Subject, splits: Sequence[str] = TEST_SPLITS
) -> ComparisonImages:
    """Return images for comparisons: from `data` or, if `data` is None, from the first non-empty split in `splits`."""
    if data is not None:
        console, decode_options = subject.console, subject.decode_options
        named_images = read_all(open_sources([data], console, decode_options), decode_options, "refuse", console)
        data_images = [image for _, image in islice(named_images, max_images)]
        if not data_images:
            raise UserError(f"--data: {data!r} contains no images: give images on which to compare the files.")
        return ComparisonImages(data_images, None, f"images of {data}")
    if not subject.run.config.exists():
        shape = (*subject.card.preprocessing.image_size, subject.card.preprocessing.channels)
        generator, count = np.random.default_rng(0), min(max_images, MAX_NOISE_IMAGES)
        arrays = (generator.integers(0, 256, shape, dtype=np.uint8) for _ in range(count))
        noise_images = [convert_image(array, subject.decode_options) for array in arrays]
        return ComparisonImages(noise_images, None, "noise images (give real images with --data)")
    images, split, label = subject.images
    split_name = next((name for name in splits if len(split.indices(name))), "train")
    split_rows = split.indices(split_name)
    # Evenly spaced, since images of the same class are adjacent.
    rows = split_rows[evenly_spaced(len(split_rows), max_images)].tolist()
    labels = None if label is None else [label(row) for row in rows]
    return ComparisonImages([images.store.read(row) for row in rows], labels, f"{split_name} images")


def has_images(subject: Subject) -> bool:
    """Return whether the images of the model's run are available."""
    try:
        return subject.run.config.exists() and bool(subject.images)
    except UserError:
        return False


def calibration_inputs(subject: Subject) -> Iterator[NDArray[np.float32]]:
    """Yield training images of the run as inputs of the graph, for the calibration of 8-bit activations."""
    if not subject.run.config.exists():
        raise UserError(
            f"--int8 needs the training images of a run, but {subject.run.path} only contains a model: give the run "
            "that trained the model."
        )
    images, split, _ = subject.images
    train_rows = split.indices("train")
    for row in train_rows[evenly_spaced(len(train_rows), CALIBRATION_IMAGES)].tolist():
        yield subject.calibrate(images.store.read(row)).numpy()
