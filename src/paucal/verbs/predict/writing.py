"""`paucal predict` with a classifier: write predictions, features and a contact sheet, and resume interrupted calls."""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from pathlib import Path

import matplotlib
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from PIL import Image, ImageFont

from paucal.export.reading import load_model, model_digest
from paucal.models.card import ModelCard
from paucal.models.trained import TrainedModel
from paucal.reading import expand_user_path
from paucal.runner.clock import precise_duration
from paucal.runner.console import Console
from paucal.runner.input_images import InputImages
from paucal.runner.outputs import check_new_file
from paucal.runner.sheets import MAX_COLUMNS, MAX_ROWS, SheetStyle, draw_sheet
from paucal.runner.writable import TableFormat, check_file_writable, resolve_table
from paucal.types import UserError
from paucal.verbs.predict.answers import OutputBatch, csv_cells, csv_header, json_lines, predict_batches
from paucal.verbs.predict.journal import JOURNAL_SUFFIX, PRECISION, Journal, stored_precision
from paucal.verbs.predict.launch import open_pictures
from paucal.verbs.predict.settings import OutputSettings, PredictSettings
from paucal.wording import counted, escape_controls, percent, shorten
from paucal.writing import csv_text, write_atomically

# Function that returns a new iterator over all blocks, which are in memory or on disk.
Blocks = Callable[[], Iterator[OutputBatch]]
ROW_GROUP_SIZE = 4096  # number of rows of features that are compressed together
TILE_SIDE = 112  # side of a tile of the contact sheet in pixels
SHEET_FORMATS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG"}
NO_CLASS = "none of the classes"  # heading above images for which a multi-label model predicts no class
NO_LABEL = -1  # number that stands for "no class" among the class numbers of a contact sheet
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


def predict_to_files(
    source: str, paths: Sequence[str], settings: PredictSettings, outputs: OutputSettings, console: Console
) -> Iterator[str]:
    """Classify images and write the requested files; a backbone without a classifier can only write features.

    Return the text for standard output in pieces; there are no pieces if the predictions are written to a file.
    """
    targets = check_output_files(outputs, paths)
    trained = load_model(source, settings.device)
    if targets.features is None or not (outputs.output is None and outputs.sheet is None and outputs.top_k is None):
        trained.require_classifier()
    first_file = targets.output or targets.features  # unfinished predictions are stored beside this file
    journal_folder = None if first_file is None else first_file.with_name(first_file.name + JOURNAL_SUFFIX)
    if settings.precision is None and journal_folder is not None:  # keep the precision of the interrupted call
        settings = replace(settings, precision=stored_precision(journal_folder))
    model, pictures, settings = open_pictures(trained, paths, settings, console)
    with_features = targets.features is not None
    if journal_folder is None:
        blocks = list(_predict_and_report(model, pictures, settings, console, with_features))
        write_all(lambda: iter(blocks), model.card, pictures, targets, console)
        return format_predictions(blocks, model.card, targets)
    about = {  # the values that determine the exact predictions
        "model": model_digest(source),
        "--mirror": settings.mirror,
        "--batch-size": settings.batch_size,
        "--device": settings.device,
        PRECISION: settings.precision,
        "--features": with_features,
    }
    with Journal(journal_folder, len(model.classes), about) as journal:
        _predict_missing(journal, model, pictures, settings, console, with_features)
        write_all(journal.blocks, model.card, pictures, targets, console)
        pieces: list[str] = []
        if targets.output is None and model.classes:
            pieces = list(format_predictions(journal.blocks(), model.card, targets))
        journal.remove()
    return iter(pieces)


def _predict_missing(
    journal: Journal,
    model: TrainedModel,
    pictures: InputImages,
    settings: PredictSettings,
    console: Console,
    with_features: bool,
) -> None:
    """Predict the images that have no predictions in the journal, and add them to it."""
    start = journal.resume(pictures)
    if start:
        console.say(f"{start} of {counted(len(pictures), 'image')} have predictions in {journal.folder}: continuing")
    # Report the images that an earlier call skipped, or refuse them if this call must not skip any.
    for problem in (problem for block in journal.blocks() for problem in block.problems if problem is not None):
        if settings.on_bad_image == "refuse":
            raise UserError(f"{problem}; skip the image with --on-bad-image skip.")
        console.say(f"skipped: {problem}")
    try:
        for block in _predict_and_report(model, pictures, settings, console, with_features, start):
            journal.add(block)
    except BaseException:
        if journal.done:
            console.say(
                f"{journal.done} of {counted(len(pictures), 'prediction')} are kept in {journal.folder}: repeat the "
                "same call to continue"
            )
        raise


def _predict_and_report(
    model: TrainedModel,
    pictures: InputImages,
    settings: PredictSettings,
    console: Console,
    with_features: bool,
    start: int = 0,
) -> Iterator[OutputBatch]:
    start_time, n_read, n_skipped = time.monotonic(), 0, 0
    for block in predict_batches(model, pictures, settings, console, start=start, features=with_features):
        n_read += len(block.shares)
        n_skipped += len(block) - len(block.shares)
        yield block
    seconds = max(time.monotonic() - start_time, 1e-9)
    speed = f"{n_read / seconds:.3g} images/s on {model.device}"
    console.say(f"classified {counted(n_read, 'image')} in {precise_duration(seconds)} ({speed})")
    if n_skipped:
        console.say(f"skipped {counted(n_skipped, 'image')} that cannot be read; their names are listed above")


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
    if targets.form == "json":
        yield from json_lines(rows, targets.top_k)
        return
    yield csv_text(csv_header(card, targets.top_k))
    for row in rows:
        yield csv_text(csv_cells(row, targets.top_k))


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
        if card.thresholds is None:
            is_predicted = np.zeros(shares.shape, dtype=bool)
            is_predicted[np.arange(len(shares)), shares.argmax(1)] = True
        else:
            is_predicted = shares >= np.asarray(card.thresholds, dtype=np.float32)
        for label in np.flatnonzero(is_predicted.any(0)).tolist():
            numbers = np.flatnonzero(is_predicted[:, label])
            members.setdefault(label, []).append((positions[numbers], shares[numbers, label]))
        unpredicted = np.flatnonzero(~is_predicted.any(1))
        if len(unpredicted):
            members.setdefault(NO_LABEL, []).append((positions[unpredicted], shares[unpredicted].max(1, initial=0)))
    rows = {label: [np.concatenate(part) for part in zip(*parts, strict=True)] for label, parts in members.items()}
    order = sorted(rows, key=lambda label: (label == NO_LABEL, -len(rows[label][0]), label))
    sheet = []
    for label in order:
        positions, probabilities = rows[label]
        ranked = np.argsort(-probabilities, kind="stable")
        spaced = ranked[np.linspace(0, len(ranked) - 1, min(MAX_COLUMNS, len(ranked))).round().astype(int)]
        shown = [(int(positions[index]), float(probabilities[index])) for index in spaced]
        sheet.append((NO_CLASS if label == NO_LABEL else card.classes[label], len(ranked), shown))
    return sheet


def _draw_sheet(rows: list[Row], pictures: InputImages, advance: Callable[[int, int], None]) -> Image.Image:
    titled_rows = [
        (
            f"{shorten(escape_controls(name), 100)} ({count})".encode(errors="replace").decode(),
            [(position, percent(share, ".0f")) for position, share in members],
        )
        for name, count, members in rows[:MAX_ROWS]
    ]
    # matplotlib's default font has letters of most alphabets.
    font = str(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf")
    fonts = ImageFont.truetype(font, 15), ImageFont.truetype(font, 11)
    return draw_sheet(titled_rows, pictures.read, SheetStyle(TILE_SIDE, 6, 22, 16, fonts), advance)


def sheet_writer(page: Image.Image, path: Path) -> Callable[[object], None]:
    """Return a function that writes a contact sheet to an open file, in the format of the suffix of `path`."""
    kind = SHEET_FORMATS[path.suffix.lower()]
    return lambda file: page.save(file, kind, **({"quality": _JPEG_QUALITY} if kind == "JPEG" else {}))  # type: ignore[arg-type]
