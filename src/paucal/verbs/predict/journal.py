"""Predictions that are stored on disk batch by batch, so that an interrupted call can be resumed."""

import csv
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from paucal.models.precision import EXPLICIT_CHOICES
from paucal.reading import parse_json, read_text, require_regular
from paucal.runner.input_images import InputImages
from paucal.runner.writable import resolve_table
from paucal.runs.lock import LOCK_FILE, RunLock
from paucal.types import UserError
from paucal.verbs.predict.answers import OutputBatch
from paucal.writing import csv_text, write_text

JOURNAL_SUFFIX = ".part"
LOCK_NOUN = "the folder of unfinished predictions"
_METADATA_KEY = b"paucal"
_FILE_PATTERN = "[0-9][0-9][0-9][0-9].arrow"
PRECISION = "--precision"  # key of a stored setting
ABOUT_FILE, MAX_ABOUT_BYTES = "about.json", 1 << 20
_SCHEMA = pa.schema(
    {
        "name": pa.binary(),  # file names on Linux may be any bytes
        "stamp": pa.string(),
        "problem": pa.string(),
        "shares": pa.list_(pa.float32()),
        "features": pa.list_(pa.float32()),
    }
)


class Journal:
    """A folder of unfinished predictions, from which a repeated call continues.

    Each call adds an Arrow file with a block for each batch. A block that is incomplete, because the process died while
    writing it, is ignored. Numbers are stored without rounding, so that the files written from a journal do not depend
    on how often the work was interrupted. `about` maps names for messages, such as "model" and "--mirror", to the
    values that the predictions depend on.
    """

    def __init__(self, folder: Path, n_classes: int, about: Mapping[str, Any]) -> None:
        self.folder, self.n_classes, self.done = folder, n_classes, 0  # `done` counts images with predictions
        self._about, self._stack = dict(about), list[Any]()

    def __enter__(self) -> "Journal":
        is_new = not self.folder.exists()
        try:
            self.folder.mkdir(exist_ok=True)
        except FileExistsError:
            raise UserError(
                f"{str(self.folder)!r} must be a folder, but is a file: remove it, or give another --output."
            ) from None
        self._lock = RunLock(self.folder, LOCK_NOUN)
        self._lock.acquire()
        try:
            if not is_new:
                self._check_journal()
        except BaseException:
            self._lock.release()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        while self._stack:
            with suppress(OSError):  # a full disk has already been reported
                self._stack.pop().close()
        self._lock.release()
        with suppress(OSError):  # fails, as intended, if the folder still has predictions
            self.folder.rmdir()

    def resume(self, pictures: InputImages) -> int:
        """Return the number of images with stored predictions, after checking that these images have not changed."""
        for block in self.blocks():
            for name, stamp in zip(block.names, block.stamps, strict=True):
                has_image = self.done < len(pictures)
                if not has_image or (pictures.name(self.done), pictures.stamp(self.done)) != (name, stamp):
                    raise UserError(
                        f"{str(self.folder)!r} has predictions for other images, or {str(name)!r} has changed "
                        "since then: remove that folder to start again, or give another --output."
                    )
                self.done += 1
        return self.done

    def add(self, block: OutputBatch) -> None:
        """Append a block to the Arrow file that this call of the command writes."""
        self._lock.check()
        if not self._stack:
            self._file = (self.folder / f"{len(self._part_files()):04d}.arrow").open("xb")
            self._stack.append(self._file)
            schema = _SCHEMA.with_metadata({_METADATA_KEY: json.dumps(self._about, sort_keys=True).encode()})
            self._writer = pa.ipc.new_stream(self._file, schema)
            self._stack.append(self._writer)
        names = [None if name is None else os.fsencode(name) for name in block.names]
        counts = np.asarray(block.readable, dtype=np.int32)
        columns = [
            pa.array(names, pa.binary()),
            pa.array(block.stamps, pa.string()),
            pa.array(block.problems, pa.string()),
            _list_array(block.shares, counts),
            _list_array(torch.empty(len(block.shares), 0) if block.features is None else block.features, counts),
        ]
        self._writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=_SCHEMA))
        self._file.flush()
        self.done += len(block)

    def blocks(self) -> Iterator[OutputBatch]:
        """Yield all stored blocks, the blocks of earlier calls first."""
        for path in self._part_files():
            for block in _read_blocks(path):
                if block.shares.shape[1] != (self.n_classes if len(block.shares) else 0):
                    raise UserError(f"{str(path)!r} is damaged: remove its folder to start again.")
                yield block

    def remove(self) -> None:
        """Delete the stored blocks, after the output files have been written."""
        while self._stack:
            self._stack.pop().close()
        for path in self._part_files():
            path.unlink()

    def _part_files(self) -> list[Path]:
        return [require_regular(path) for path in sorted(self.folder.glob(_FILE_PATTERN))]

    def _check_journal(self) -> None:
        parts = self._part_files()
        names = {path.name for path in self.folder.iterdir()} - {LOCK_FILE, *(path.name for path in parts)}
        if other_files := sorted(name for name in names if not name.startswith(f".{LOCK_FILE}")):
            raise UserError(
                f"{str(self.folder)!r} contains {other_files[0]!r}, which does not store predictions: give another "
                "--output."
            )
        for path in parts:
            stored = _read_about(path)
            if stored is None or stored == self._about:
                continue
            differing = next((key for key in self._about if stored.get(key) != self._about[key]), "version")
            raise UserError(
                f"{str(self.folder)!r} has predictions with another {differing} ({stored.get(differing)!r}, now "
                f"{self._about.get(differing)!r}): give the same value to continue, remove that folder to start again, "
                "or give another --output."
            )


def _list_array(rows: Tensor, counts: np.ndarray) -> pa.ListArray:
    """Return an array with one list per image: the next row of `rows` if the image's count is 1, [] if it is 0."""
    offsets = np.concatenate([[0], np.cumsum(counts * rows.shape[1])]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(rows.contiguous().numpy().reshape(-1)))


def _read_blocks(path: Path) -> Iterator[OutputBatch]:
    try:
        with pa.OSFile(str(path)) as file, pa.ipc.open_stream(file) as reader:
            if not reader.schema.equals(_SCHEMA):
                raise UserError(f"{str(path)!r} is damaged: remove its folder to start again.")
            while True:
                try:
                    batch = reader.read_next_batch()
                    batch.validate(full=True)
                except (StopIteration, pa.ArrowException, OSError, EOFError):
                    return
                yield _parse_block(batch)
    except (pa.ArrowException, OSError, EOFError):  # the stream ends before its first block
        return


def _parse_block(batch: pa.RecordBatch) -> OutputBatch:
    """Return the outputs that are stored in `batch`; its lists of numbers become the rows of tensors."""
    names, stamps, problems = (batch.column(name).to_pylist() for name in ("name", "stamp", "problem"))
    count = sum(problem is None for problem in problems)
    names = [None if name is None else os.fsdecode(name) for name in names]
    tables = []
    for name in ("shares", "features"):
        values = torch.from_numpy(batch.column(name).flatten().to_numpy(zero_copy_only=False).copy())
        width = len(values) // max(count, 1)
        if len(values) != width * count:
            text = "a file of unfinished predictions is damaged"
            raise UserError(f"{text}: remove the folder that ends in .part to start again.")
        tables.append(values.reshape(count, width))
    shares, features = tables
    return OutputBatch(names, stamps, problems, shares, features if features.shape[1] else None)


def _read_about(path: Path) -> dict[str, Any] | None:
    """Return the values that the predictions in a file depend on, by name; None if the file is incomplete."""
    try:
        with pa.OSFile(str(path)) as file, pa.ipc.open_stream(file) as reader:
            about = json.loads((reader.schema.metadata or {}).get(_METADATA_KEY, b"{}"))
    except (pa.ArrowException, OSError, EOFError, ValueError):
        return None
    # Older versions did not store the precision, which was 32-true.
    return {PRECISION: "32-true", **about} if isinstance(about, dict) else {}


def stored_precision(folder: Path) -> str | None:
    """Return the --precision of the unfinished predictions in a folder; None if there are no predictions."""
    stored = (_read_about(require_regular(path)) for path in sorted(folder.glob(_FILE_PATTERN)))
    precision = next((about.get(PRECISION) for about in stored if about is not None), None)
    return precision if precision in EXPLICIT_CHOICES else None


class PredictionTable:
    """Rows that are written to disk batch by batch, or to standard output if there is no file.

    The first columns are "path" and, for videos, "frame". `about` maps names for messages, such as "model" and
    "--mirror", to the values that the predictions depend on. While the table is incomplete, a folder beside the table's
    file contains a lock and a file with `about`. If a process dies, the rows of the last frame may be incomplete, so
    the call that resumes removes these rows and predicts that frame again.
    """

    def __init__(self, output: str | None, header: Sequence[str], about: Mapping[str, Any]) -> None:
        self.header, self.about = list(header), dict(about)
        self.path = None if output is None else Path(output).expanduser()
        self.folder_in_progress = None if self.path is None else self.path.with_name(self.path.name + JOURNAL_SUFFIX)
        self.done: dict[str, int] = {}  # for each path, the number of its last predicted frame, or 0 for an image
        self.n_rows = 0

    def __enter__(self) -> "PredictionTable":
        if self.path is None or self.folder_in_progress is None:
            self._write_rows([self.header])
            return self
        if self.folder_in_progress.is_dir():
            try:
                stored = parse_json(read_text(self.folder_in_progress / ABOUT_FILE, MAX_ABOUT_BYTES))
            except (OSError, ValueError):
                stored = None
            stored = stored if isinstance(stored, dict) else {}
            names = [*self.about, *stored]
            differing = next((name for name in names if stored.get(name) != self.about.get(name)), None)
            if differing is not None:
                raise UserError(
                    f"{str(self.path)!r} has predictions with another {differing}: repeat the same call to continue, "
                    "or give another --output."
                )
        else:
            resolve_table(str(self.path))
            self.folder_in_progress.mkdir()
            write_text(self.folder_in_progress / ABOUT_FILE, json.dumps(self.about, indent=1))
        self._lock = RunLock(self.folder_in_progress, LOCK_NOUN)
        self._lock.acquire()
        self._file = self.path.open("r+b" if self.path.exists() else "x+b")
        self._recover()
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self.folder_in_progress is not None:
            self._file.close()
            self._lock.release()

    def add(self, rows: Sequence[Sequence[object]]) -> None:
        """Write rows; all rows of a frame must be in the same call."""
        if self.folder_in_progress is not None:
            self._lock.check()
        self._write_rows(rows)
        self.n_rows += len(rows)

    def finish(self) -> None:
        """Mark the table as complete, so that repeating the call does not continue it."""
        if self.folder_in_progress is not None:
            (self.folder_in_progress / ABOUT_FILE).unlink(missing_ok=True)
            self._lock.release()
            with suppress(OSError):
                self.folder_in_progress.rmdir()

    def _write_rows(self, rows: Sequence[Sequence[object]]) -> None:
        text = csv_text(*rows)
        if self.path is None:
            sys.stdout.write(text)
            sys.stdout.flush()
            return
        self._file.write(text.encode(errors="surrogateescape"))
        self._file.flush()
        os.fsync(self._file.fileno())

    def _recover(self) -> None:
        """Find out which frames have predictions, and remove the rows of the last frame, which may be incomplete."""
        end, last = 0, None
        for start, stop, row in _read_records(self._file):
            if not end:
                if row != self.header:
                    text = f"{str(self.path)!r} has other columns than these predictions"
                    raise UserError(f"{text}: give another --output.")
                end = stop
                continue
            key = (row[0], row[1])
            if last is not None and key != last:
                self.done[last[0]] = int(last[1]) if self.header[1] == "frame" else 0
                end = start
            last = key
        self._file.truncate(end)
        self._file.seek(end)
        if not end:
            self._write_rows([self.header])


def _read_records(file: BinaryIO) -> Iterator[tuple[int, int, list[str]]]:
    """Yield the start offset, end offset and values of each complete row; a value may contain line breaks."""
    start, record, offset = 0, b"", 0
    for line in file:
        record, offset = record + line, offset + len(line)
        if record.count(b'"') % 2 or not line.endswith(b"\n"):
            continue
        yield start, offset, next(csv.reader([record.decode(errors="surrogateescape")]))
        start, record = offset, b""
