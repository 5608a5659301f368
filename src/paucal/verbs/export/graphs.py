"""The graphs of an export: each is written, run on real images, and kept only if it answers as the model does."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from paucal.export.comparison import Comparison, compare_all
from paucal.export.formats import GRAPHS, Source
from paucal.runner.console import Console
from paucal.types import UserError
from paucal.verbs.export.images import Pictures, calibrating_inputs, compared_images
from paucal.verbs.export.settings import ExportSettings
from paucal.verbs.export.subjects import Subject
from paucal.wording import counted, percent

PIXELS_TOLERANCE = 0.05  # for graphs with their preprocessing inside, which round a few pixels differently
LEAST_AGREEMENT = 0.75  # share of equal answers below which a file of 8 bits is refused


def file_name(name: str, int8: bool) -> str:
    """Return the name of the main file of a format."""
    return f"model{'.int8' if int8 else ''}{GRAPHS[name].suffix}"


@contextmanager
def staged(place: Path) -> Iterator[Path]:
    """Yield a new folder, the content of which is moved to `place` when the block ends without an error."""
    with tempfile.TemporaryDirectory(prefix="paucal-export-") as staging:
        yield Path(staging)
        place.mkdir(parents=True, exist_ok=True)
        for path in Path(staging).iterdir():
            shutil.move(path, place / path.name)


class GraphWriter:
    """Writes the graph of a model in any format, and compares what it has written with the model.

    Args:
        subject: Model.
        settings: Settings of the export.
        console: Shows the comparisons.

    Attributes:
        source: Graph that is written.
        pictures: Images on which the files are compared with the model.
    """

    source: Source
    pictures: Pictures

    def __init__(self, subject: Subject, settings: ExportSettings, console: Console) -> None:
        self.subject, self.settings, self.console = subject, settings, console

    def open(self) -> None:
        """Prepare the graph, and read the images on which the files are compared.

        Raises:
            UserError: The preprocessing cannot be part of a graph, or there are no images.
        """
        graph = self.subject.graph(self.settings.with_preprocessing)
        self.pictures = compared_images(self.settings.data, self.settings.images, self.subject, self.console)
        self.source = Source(graph, self.subject.card)
        self.console.say(f"writing {self.subject.card.backbone.name} down as a graph, which takes up to a minute")

    def write(self, name: str, int8: bool, folder: Path) -> Comparison:
        """Write a format into a folder, and return how its answers differ from the model's.

        Raises:
            UserError: The network cannot be written in this format, or the file's answers differ from the model's.
        """
        entry, path = GRAPHS[name], folder / file_name(name, int8)
        if int8:
            assert entry.quantise is not None
            entry.quantise(self.source, path, calibrating_inputs(self.subject))
        else:
            entry.write(self.source, path)
        size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
        pictures, pixels = self.pictures, self.source.graph.input == "pixels"
        with self.console.progress(f"comparing {path.name}") as advance:
            network = entry.run(path)
            found = compare_all(self.subject, network, pixels, pictures.pictures, pictures.labels, advance)
        found = replace(found, size=size)
        if int8:
            _require_agreement(path.name, found)
        else:
            _require_alike(path.name, found, max(entry.tolerance, PIXELS_TOLERANCE if pixels else 0))
        self.console.say(self._sentence(path.name, found))
        return found

    def _sentence(self, name: str, found: Comparison) -> str:
        own, other = found.milliseconds
        right = "accuracy" if self.subject.unit == "images" else "pixels right"
        scores = (
            ""
            if found.accuracy is None
            else f"; {right} {percent(found.accuracy[1])}, the model's {percent(found.accuracy[0])}"
        )
        of_pixels = "" if self.subject.unit == "images" else " of the pixels"
        return (
            f"{name} ({found.size / 2**20:.1f} MiB): on {found.images} {self.pictures.what} the same class for "
            f"{percent(found.agreement)}{of_pixels}, a probability differs by {found.largest:.2g} at most{scores}; "
            f"{other:.1f} ms an image, the model here {own:.1f}"
        )


def _require_alike(name: str, found: Comparison, most: float) -> None:
    if not found.largest <= most:
        raise UserError(
            f"{name} answers otherwise than the model: a probability differs by {found.largest:.2g} on "
            f"{counted(found.images, 'image')}, expected {most:g} at most, so it was not kept: use another --format."
        )


def _require_agreement(name: str, found: Comparison) -> None:
    if not found.agreement >= LEAST_AGREEMENT:
        raise UserError(
            f"{name} gives the model's class for {percent(found.agreement)} only, expected "
            f"{percent(LEAST_AGREEMENT)} at least, so it was not kept: leave out --int8."
        )
