"""Export graphs: write each file, run it on real images, and keep it only if it agrees with the model."""

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
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
from paucal.export.formats import GRAPHS, Source
from paucal.reading import named_path
from paucal.runner.console import Console
from paucal.runner.input_images import open_sources, read_all
from paucal.types import UserError
from paucal.verbs.export.settings import ExportSettings
from paucal.verbs.export.subjects import Subject
from paucal.wording import counted, percent

# Tolerance of probabilities for graphs that include the preprocessing, since these round a few pixels differently.
PIXELS_TOLERANCE = 0.05
# Multipliers of the tolerance for models with many outputs per image, since their largest difference must be within it.
TOLERANCE_FACTORS = {"pixels": 5, "objects": 5}
MIN_AGREEMENT, MIN_INT8_AGREEMENT = 0.95, 0.75  # share of predictions in which a file must agree with the model
# Texts for the agreement and for the accuracy, by the `unit` of the model.
COMPARISON_TEXTS = {
    "images": ("the same class for {}", "accuracy"),
    "numbers": ("the same number, to a tenth of the target's deviation, for {}", "accuracy"),
    "pixels": ("the same class for {} of the pixels", "pixels right"),
    "objects": ("the same objects for {} of both models' objects", "accuracy"),
}
MAX_NOISE_PICTURES = 16  # pictures of noise on which files are compared with the model if there are no images
CALIBRATION_IMAGES = 100  # number of training images from which the ranges of 8-bit activations are measured
# Splits whose images are used for comparisons: the first that is not empty.
TEST_PARTS, VALIDATION_PARTS = ("test", "val", "train"), ("val", "train")


def reads_pixels(name: str, settings: ExportSettings) -> bool:
    """Return whether the graph of a format includes the preprocessing."""
    fixed_choice = GRAPHS[name].pixels
    return settings.with_preprocessing if fixed_choice is None else fixed_choice


def file_name(name: str, int8: bool) -> str:
    """Return the name of the main file of a format; if `int8`, of its 8-bit file."""
    return f"model{'.int8' if int8 else ''}{GRAPHS[name].suffix}"


@contextmanager
def staged(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder, whose files are moved to `folder` if the block ends without an error."""
    with tempfile.TemporaryDirectory(prefix="paucal-export-") as staging:
        yield Path(staging)
        folder.mkdir(parents=True, exist_ok=True)
        for path in Path(staging).iterdir():
            shutil.move(path, folder / path.name)


@dataclass(frozen=True, eq=False)
class Pictures:
    """Images on which files are compared with the model, upright and with the channels that the model reads.

    Attributes:
        pictures: Pictures of any sizes.
        labels: Class of each picture in the order of the model's classes, or classes of its pixels; None if unknown.
        what: Description of the images for messages.
    """

    pictures: list[Image.Image]
    labels: list[Tensor] | None
    what: str


class GraphWriter:
    """Writes the graph of a model in any format, and compares the files with the model.

    `clock` returns seconds, for the time per image.

    Attributes:
        pictures: Images on which the files are compared with the model.
    """

    pictures: Pictures

    def __init__(
        self,
        subject: Subject,
        settings: ExportSettings,
        console: Console,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.subject, self.settings, self.console, self.clock = subject, settings, console, clock
        self.sources: dict[bool, Source] = {}

    def open(self, formats: Sequence[str], parts: Sequence[str] = TEST_PARTS, pictures: Pictures | None = None) -> None:
        """Prepare the graphs, and read the images on which the files are compared, unless `pictures` are given.

        The images are those of the first of `parts` that is not empty. Images of --data replace test images; they
        replace validation images only if the images of the run are missing.
        """
        web_folder = None if self.settings.onnxruntime_web is None else named_path(self.settings.onnxruntime_web)
        if "html" in formats:
            runtime_files(web_folder)
        for with_preprocessing in {reads_pixels(name, self.settings) for name in formats}:
            graph = self.subject.graph(with_preprocessing)
            self.sources[with_preprocessing] = Source(graph, self.subject.card, web_folder)
        if pictures is not None:
            self.pictures = pictures
            return
        data = (
            None if self.settings.data and parts is not TEST_PARTS and has_images(self.subject) else self.settings.data
        )
        self.pictures = compared_images(data, self.settings.images, self.subject, self.console, parts)
        self.console.say(f"exporting the graph of {self.subject.card.backbone.name}, which takes up to a minute")

    def write(self, name: str, int8: bool, folder: Path) -> Comparison | None:
        """Write a file into a folder, and return its comparison with the model; None if it cannot run on this machine.

        Raises:
            UserError: The network cannot be written in this format, or the file's predictions differ from the model's.
        """
        entry, path = GRAPHS[name], folder / file_name(name, int8)
        self._write_graph(name, int8, path)
        if not entry.runs_here:
            self.console.say(
                f"{path.name} ({_folder_size(folder) / 2**20:.1f} MiB): converted, with correct shapes; it was not "
                f"run, since its runtime only exists for {entry.platform}"
            )
            return None
        comparison = self.compare(name, path)
        if int8:
            _require_agreement(path.name, comparison, MIN_INT8_AGREEMENT, "leave out --int8")
        else:
            tolerance = max(entry.tolerance, PIXELS_TOLERANCE if reads_pixels(name, self.settings) else 0)
            max_difference = tolerance * TOLERANCE_FACTORS.get(self.subject.unit, 1)
            if not comparison.largest <= max_difference:
                raise UserError(
                    f"{path.name} differs from the model: {self._difference(comparison)} on "
                    f"{counted(comparison.images, 'image')}, expected {max_difference:g} at most, so it was not kept: "
                    "use another --format."
                )
            _require_agreement(path.name, comparison, MIN_AGREEMENT, "use another --format")
        self.console.say(self._describe(path.name, comparison))
        return comparison

    def measure(self, name: str, int8: bool, folder: Path) -> Comparison:
        """Write a file into a folder, and return its comparison with the model, even if their outputs differ."""
        path = folder / file_name(name, int8)
        self._write_graph(name, int8, path)
        return self.compare(name, path)

    def _write_graph(self, name: str, int8: bool, path: Path) -> None:
        entry, source = GRAPHS[name], self.sources[reads_pixels(name, self.settings)]
        if int8:
            assert entry.quantise is not None
            entry.quantise(source, path, calibrating_inputs(self.subject))
        else:
            entry.write(source, path)

    def compare(self, name: str, path: Path) -> Comparison:
        """Compare a file with the model on the pictures."""
        pictures, labels = self.pictures.pictures, self.pictures.labels
        with_preprocessing = reads_pixels(name, self.settings)
        with self.console.progress(f"comparing {path.name}") as advance:
            network = GRAPHS[name].run(path)
            comparison = compare_all(
                self.subject, network, with_preprocessing, pictures, labels, advance, clock=self.clock
            )
        return replace(comparison, size=_folder_size(path.parent))

    def _difference(self, comparison: Comparison) -> str:
        if self.subject.unit == "numbers":
            return f"a number differs by {comparison.largest:.2g} of the target's deviations"
        return f"a probability differs by {comparison.largest:.2g}"

    def _describe(self, name: str, comparison: Comparison) -> str:
        model_ms, file_ms = comparison.milliseconds
        agreement_text, accuracy_text = COMPARISON_TEXTS[self.subject.unit]
        scores = (
            ""
            if comparison.accuracy is None
            else f"; {accuracy_text} {percent(comparison.accuracy[1])}, the model's {percent(comparison.accuracy[0])}"
        )
        return (
            f"{name} ({comparison.size / 2**20:.1f} MiB): on {comparison.images} {self.pictures.what} "
            f"{agreement_text.format(percent(comparison.agreement))}, {self._difference(comparison)} at most{scores}; "
            f"{file_ms:.1f} ms per image, the model here {model_ms:.1f}"
        )


def _folder_size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def _require_agreement(name: str, comparison: Comparison, minimum: float, advice: str) -> None:
    if not comparison.agreement >= minimum:
        raise UserError(
            f"{name} agrees with the model for only {percent(comparison.agreement)}, expected {percent(minimum)} at "
            f"least, so it was not kept: {advice}."
        )


def compared_images(
    data: str | None, max_images: int, subject: Subject, console: Console, parts: Sequence[str] = TEST_PARTS
) -> Pictures:
    """Return images for comparing files: those at `data`, or else of the first of the splits `parts` with images."""
    if data is not None:
        named_pictures = read_all(open_sources([data], console, subject.reading), subject.reading, "refuse", console)
        pictures = [picture for _, picture in islice(named_pictures, max_images)]
        if not pictures:
            raise UserError(f"--data: {data!r} contains no images: give images on which to compare the files.")
        return Pictures(pictures, None, f"images of {data}")
    if not subject.run.config.exists():
        return Pictures(
            _noise_pictures(subject, min(max_images, MAX_NOISE_PICTURES)),
            None,
            "images of noise (give real ones with --data)",
        )
    images, split, label = subject.images
    part = next((name for name in parts if len(split.indices(name))), "train")
    part_rows = split.indices(part)
    # Evenly spaced, since images of the same class are adjacent.
    rows = part_rows[evenly_spaced(len(part_rows), max_images)].tolist()
    labels = None if label is None else [label(row) for row in rows]
    return Pictures([images.store.read(row) for row in rows], labels, f"{part} images")


def has_images(subject: Subject) -> bool:
    """Return whether the images of the model's run are available."""
    try:
        return subject.run.config.exists() and bool(subject.images)
    except UserError:
        return False


def calibrating_inputs(subject: Subject) -> Iterator[NDArray[np.float32]]:
    """Yield training images of the run as inputs of the graph, for the calibration of 8-bit activations."""
    if not subject.run.config.exists():
        raise UserError(
            f"--int8 needs the training images of a run, but {subject.run.path} is only a model: give its run."
        )
    images, split, _ = subject.images
    train = split.indices("train")
    for row in train[evenly_spaced(len(train), CALIBRATION_IMAGES)].tolist():
        yield subject.calibrate(images.store.read(row)).numpy()


def _noise_pictures(subject: Subject, count: int) -> list[Image.Image]:
    """Return pictures of random pixels, with the size and channels that the model reads."""
    generator, preprocess = np.random.default_rng(0), subject.card.preprocessing
    shape = (*preprocess.image_size, preprocess.channels)
    return [convert_image(generator.integers(0, 256, shape, dtype=np.uint8), subject.reading) for _ in range(count)]
