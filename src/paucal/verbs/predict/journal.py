"""Predictions of a classifier stored on disk batch by batch, so that an interrupted call can be resumed."""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from paucal.models.precision import EXPLICIT_CHOICES
from paucal.reading import require_regular
from paucal.runner.input_images import InputImages
from paucal.runs.lock import LOCK_FILE, RunLock
from paucal.types import UserError
from paucal.verbs.predict.answers import OutputBatch

JOURNAL_SUFFIX = ".part"
LOCK_NOUN = "the folder of unfinished predictions"
_METADATA_KEY = b"paucal"
_FILE_PATTERN = "[0-9][0-9][0-9][0-9].arrow"
PRECISION = "--precision"  # key of a stored setting
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
    """A folder of Arrow streams, one for each call that computed some of the predictions.

    A block is ignored if it is incomplete because its process died. Numbers are stored without rounding, so that the
    files written from a journal do not depend on how often the work was interrupted. `about` maps names for messages,
    such as "model" and "--mirror", to the values that the predictions depend on.
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
        """Append a block to the Arrow file of this call."""
        self._lock.check()
        if not self._stack:
            self._file = (self.folder / f"{len(self._part_files()):04d}.arrow").open("xb")
            self._stack.append(self._file)
            schema = _SCHEMA.with_metadata({_METADATA_KEY: json.dumps(self._about, sort_keys=True).encode()})
            self._writer = pa.ipc.new_stream(self._file, schema)
            self._stack.append(self._writer)
        self._writer.write_batch(_record_batch(block))
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
            stored = _read_facts(path)
            if stored is None or stored == self._about:
                continue
            differing = next((key for key in self._about if stored.get(key) != self._about[key]), "version")
            raise UserError(
                f"{str(self.folder)!r} has predictions with another {differing} ({stored.get(differing)!r}, now "
                f"{self._about.get(differing)!r}): give the same value to continue, remove that folder to start again, "
                "or give another --output."
            )


def _record_batch(block: OutputBatch) -> pa.RecordBatch:
    names = [None if name is None else os.fsencode(name) for name in block.names]
    counts = np.asarray(block.readable, dtype=np.int32)
    columns = [
        pa.array(names, pa.binary()),
        pa.array(block.stamps, pa.string()),
        pa.array(block.problems, pa.string()),
        _list_array(block.shares, counts),
        _list_array(torch.empty(len(block.shares), 0) if block.features is None else block.features, counts),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)


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
    names, stamps, problems = (batch.column(name).to_pylist() for name in ("name", "stamp", "problem"))
    count = sum(problem is None for problem in problems)
    names = [None if name is None else os.fsdecode(name) for name in names]
    shares, features = (_to_tensor(batch.column(name), count) for name in ("shares", "features"))
    return OutputBatch(names, stamps, problems, shares, features if features.shape[1] else None)


def _to_tensor(column: pa.ListArray, count: int) -> Tensor:
    values = torch.from_numpy(column.flatten().to_numpy(zero_copy_only=False).copy())
    width = len(values) // max(count, 1)
    if len(values) != width * count:
        text = "a file of unfinished predictions is damaged"
        raise UserError(f"{text}: remove the folder that ends in .part to start again.")
    return values.reshape(count, width)


def _read_facts(path: Path) -> dict[str, Any] | None:
    try:
        with pa.OSFile(str(path)) as file, pa.ipc.open_stream(file) as reader:
            facts = json.loads((reader.schema.metadata or {}).get(_METADATA_KEY, b"{}"))
    except (pa.ArrowException, OSError, EOFError, ValueError):
        return None
    # Older versions did not store the precision, which was 32-true.
    return {PRECISION: "32-true", **facts} if isinstance(facts, dict) else {}


def stored_precision(folder: Path) -> str | None:
    """Return the --precision of the unfinished predictions in a folder; None if there are no predictions."""
    stored = (_read_facts(require_regular(path)) for path in sorted(folder.glob(_FILE_PATTERN)))
    precision = next((facts.get(PRECISION) for facts in stored if facts is not None), None)
    return precision if precision in EXPLICIT_CHOICES else None
