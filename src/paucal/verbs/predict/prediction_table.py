"""A CSV table of predictions that is written batch by batch and continued after an interruption."""

import csv
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from paucal.reading import parse_json, read_text
from paucal.runner.tables import resolve_table
from paucal.runs.lock import RunLock
from paucal.types import UserError
from paucal.verbs.predict.journal import JOURNAL_SUFFIX, LOCK_NOUN
from paucal.writing import csv_text, write_text

ABOUT_FILE, MAX_ABOUT_BYTES = "about.json", 1 << 20


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
            self._require_same()
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

    def _require_same(self) -> None:
        assert self.folder_in_progress is not None
        try:
            stored = parse_json(read_text(self.folder_in_progress / ABOUT_FILE, MAX_ABOUT_BYTES))
        except (OSError, ValueError):
            stored = {}
        stored = stored if isinstance(stored, dict) else {}
        names = [*self.about, *stored]
        differing = next((name for name in names if stored.get(name) != self.about.get(name)), None)
        if differing is not None:
            raise UserError(
                f"{str(self.path)!r} has predictions with another {differing}: repeat the same call to continue, or "
                "give another --output."
            )

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
