"""Output files of `paucal predict` with a classifier: predictions, features and a contact sheet."""

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import compress
from pathlib import Path

import matplotlib
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from PIL import Image, ImageFont

from paucal.models.card import ModelCard
from paucal.reading import expand_user_path
from paucal.runner.console import Console
from paucal.runner.input_images import InputImages
from paucal.runner.outputs import check_new_file
from paucal.runner.sheets import MAX_COLUMNS, MAX_ROWS, SheetStyle, draw_sheet
from paucal.runner.tables import TableFormat, resolve_table
from paucal.runs.writable import check_file_writable
from paucal.types import UserError
from paucal.verbs.predict.answers import OutputBatch, csv_lines, json_lines
from paucal.verbs.predict.settings import OutputSettings
from paucal.wording import escape_controls, percent, shorten
from paucal.writing import write_atomically

# Function that returns a new iterator over all blocks, which are in memory or on disk.
Blocks = Callable[[], Iterator[OutputBatch]]
ROW_GROUP_SIZE = 4096  # number of rows of features that are compressed together
TILE_SIDE = 112  # side of a tile of the contact sheet in pixels
SHEET_FORMATS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG"}
NO_CLASS = "none of the classes"  # heading above images for which a multi-label model predicts no class
_JPEG_QUALITY = 88  # quality of a JPEG file, from 0 to 95
# Row of a contact sheet: heading, number of images of the class, and (position, probability) of each shown image.
Row = tuple[str, int, list[tuple[int, float]]]


@dataclass(frozen=True)
class Targets:
    """Format of the predictions, and paths of the output files; the path of a file that is not requested is None."""

    form: TableFormat
    top_k: int | None  # number of most probable classes to write; None for all classes
    output: Path | None
    features: Path | None
    sheet: Path | None

    @property
    def first(self) -> Path | None:
        """Path beside which unfinished predictions are stored; None without --output and --features."""
        return self.output or self.features


def check_output_files(outputs: OutputSettings, sources: Iterable[str]) -> Targets:
    """Return the paths of the output files, after checking that they can be written."""
    output, form = None, outputs.format
    if outputs.output is not None:
        output, form = resolve_table(outputs.output, form)
    features = _output_path(outputs.features, sources, "--features", (".parquet",))
    sheet = _output_path(outputs.sheet, sources, "--sheet", tuple(SHEET_FORMATS))
    paths = [os.path.realpath(path) for path in (output, features, sheet) if path is not None]
    if len(set(paths)) < len(paths):
        raise UserError("--output, --features and --sheet must be different files: change one of the names.")
    return Targets(form or "csv", outputs.top_k, output, features, sheet)


def format_predictions(blocks: Iterable[OutputBatch], card: ModelCard, targets: Targets) -> Iterator[str]:
    """Yield the predictions as CSV or JSON, piece by piece."""
    rows = (row for block in blocks for row in block.predictions(card))
    return json_lines(rows, targets.top_k) if targets.form == "json" else csv_lines(rows, card, targets.top_k)


def write_all(blocks: Blocks, card: ModelCard, pictures: InputImages, targets: Targets, console: Console) -> None:
    """Write the requested files; the predictions are written last, so that a stopped call can be resumed."""
    if targets.sheet is not None:
        rows = sheet_rows(blocks(), card)
        if len(rows) > MAX_ROWS:
            console.say(f"note: the sheet shows the {MAX_ROWS} most frequent of {len(rows)} classes")
        with console.progress("drawing the sheet") as advance:
            page = _draw_sheet(rows, pictures, advance)
        write_atomically(targets.sheet, sheet_writer(page, targets.sheet))
    if targets.features is not None:
        write_atomically(targets.features, lambda file: _write_features(file, blocks()))
    if targets.output is not None:
        pieces = format_predictions(blocks(), card, targets)
        # Paths may contain invalid UTF-8. JSON needs escapes for such bytes; CSV keeps the bytes of the path.
        errors = "backslashreplace" if targets.form == "json" else "surrogateescape"
        write_atomically(targets.output, lambda file: file.writelines(piece.encode(errors=errors) for piece in pieces))


def _write_features(file: object, blocks: Iterable[OutputBatch]) -> None:
    """Write a Parquet table with one row for each readable image: its `path` and its `features` (a list of float32).

    The size of the table's row groups does not depend on the batch size.
    """
    schema = pa.schema({"path": pa.string(), "features": pa.list_(pa.field("element", pa.float32()))})
    tables: list[pa.Table] = []
    with pq.ParquetWriter(file, schema) as writer:
        for block in blocks:
            # Parquet requires UTF-8, so invalid bytes of a name are escaped.
            readable = compress(block.names, block.readable)
            names = [name and os.fsencode(name).decode(errors="backslashreplace") for name in readable]
            rows = [] if block.features is None else block.features.numpy()
            tables.append(pa.Table.from_pydict({"path": names, "features": list(rows)}, schema=schema))
            if sum(map(len, tables)) >= ROW_GROUP_SIZE:
                merged = pa.concat_tables(tables).combine_chunks()
                n_full_rows = len(merged) // ROW_GROUP_SIZE * ROW_GROUP_SIZE
                writer.write_table(merged.slice(0, n_full_rows), row_group_size=ROW_GROUP_SIZE)
                tables = [merged.slice(n_full_rows)]
        if sum(map(len, tables)):
            writer.write_table(pa.concat_tables(tables).combine_chunks(), row_group_size=ROW_GROUP_SIZE)


def _output_path(text: str | None, sources: Iterable[str], flag: str, endings: tuple[str, ...]) -> Path | None:
    """Return the path of an output file; refuse a path in a folder of images, which a later call would read."""
    if text is None:
        return None
    path = expand_user_path(text, flag)
    if path.suffix.lower() not in endings:
        raise UserError(f"{flag}: {text[:120]!r} must end in {' or '.join(endings)}: give another name.")
    if not path.parent.exists():
        raise UserError(f"{flag}: the folder of {text[:120]!r} does not exist: create it, or give another path.")
    for source in sources:
        check_new_file(text, {"PATHS": source}, None, flag)
    check_file_writable(path, flag)
    return path


def sheet_rows(blocks: Iterable[OutputBatch], card: ModelCard) -> list[Row]:
    """Return the rows of a contact sheet, the most frequent predicted class first.

    The shown images of a class are evenly spaced among all its images, sorted from the highest to the lowest
    probability. An image with several labels is in several rows; images without a label are in the last row.
    """
    members: dict[int, list[tuple[NDArray[np.int64], NDArray[np.float32]]]] = {}
    start = 0
    for block in blocks:
        positions, shares = start + np.flatnonzero(block.readable), block.shares.numpy()
        start += len(block)
        for label, numbers in _rows_by_class(shares, card).items():
            probabilities = shares[numbers].max(1, initial=0) if label < 0 else shares[numbers, label]
            members.setdefault(label, []).append((positions[numbers], probabilities))
    rows = {label: [np.concatenate(part) for part in zip(*parts, strict=True)] for label, parts in members.items()}
    order = sorted(rows, key=lambda label: (label < 0, -len(rows[label][0]), label))
    return [_sheet_row(NO_CLASS if label < 0 else card.classes[label], *rows[label]) for label in order]


def _draw_sheet(rows: list[Row], pictures: InputImages, advance: Callable[[int, int], None]) -> Image.Image:
    headed = [
        (
            f"{shorten(escape_controls(name), 100)} ({count})".encode(errors="replace").decode(),
            [(position, percent(share, ".0f")) for position, share in members],
        )
        for name, count, members in rows[:MAX_ROWS]
    ]
    # matplotlib's default font has letters of most alphabets.
    font = str(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf")
    fonts = ImageFont.truetype(font, 15), ImageFont.truetype(font, 11)
    return draw_sheet(headed, pictures.read, SheetStyle(TILE_SIDE, 6, 22, 16, fonts), advance)


def sheet_writer(page: Image.Image, path: Path) -> Callable[[object], None]:
    """Return a function that writes a contact sheet to an open file, in the format of the suffix of `path`."""
    kind = SHEET_FORMATS[path.suffix.lower()]
    return lambda file: page.save(file, kind, **({"quality": _JPEG_QUALITY} if kind == "JPEG" else {}))  # type: ignore[arg-type]


def _rows_by_class(probabilities: NDArray[np.float32], card: ModelCard) -> dict[int, NDArray[np.int64]]:
    """Map each class to the rows of `probabilities` for which it is predicted; -1 to rows without a predicted class."""
    if card.thresholds is None:
        is_predicted = np.zeros(probabilities.shape, dtype=bool)
        is_predicted[np.arange(len(probabilities)), probabilities.argmax(1)] = True
    else:
        is_predicted = probabilities >= np.asarray(card.thresholds, dtype=np.float32)
    members = {int(label): np.flatnonzero(is_predicted[:, label]) for label in np.flatnonzero(is_predicted.any(0))}
    unpredicted = np.flatnonzero(~is_predicted.any(1))
    return members | ({-1: unpredicted} if len(unpredicted) else {})


def _sheet_row(name: str, positions: NDArray[np.int64], shares: NDArray[np.float32]) -> Row:
    order = np.argsort(-shares, kind="stable")
    spaced = order[np.linspace(0, len(order) - 1, min(MAX_COLUMNS, len(order))).round().astype(int)]
    return name, len(order), [(int(positions[index]), float(shares[index])) for index in spaced]
