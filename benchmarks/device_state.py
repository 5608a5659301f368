"""The state of a call of `on_device.py`: its measurements, each of which is stored when it ends."""

import gc
import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from measuring import surroundings

Row = dict[str, Any]
FAILED = "failed"


class OutOfTime(Exception):
    """A part could not be finished in this call; the next call continues it."""


@dataclass(frozen=True)
class Session:
    """The options of a call.

    Attributes:
        device: "cuda", "mps" or "cpu".
        toy: Whether everything is as small as possible, to test the script itself.
        data: Folders that may hold the image sets; the first that does is used.
        work: Folder of the training runs, which later calls resume.
        results: Folder of the results.
        copies: Folder to which changed results are copied; None for none.
        deadline: Value of `time.monotonic()` at which the call ends.
        minutes: Length of a whole call.
        without: Word whose parts are left to a later call, by their names; None for no word.
    """

    device: str
    toy: bool
    data: tuple[Path, ...]
    work: Path
    results: Path
    copies: Path | None
    deadline: float
    minutes: float
    without: str | None = None

    @property
    def left(self) -> float:
        """Seconds left."""
        return self.deadline - time.monotonic()

    @property
    def backend(self) -> str:
        """Backend of torch.compile; a toy only traces."""
        return "eager" if self.toy else "inductor"

    def source(self, name: str) -> Path | None:
        """Return the folder of an image set in Parquet files; None where there is none."""
        found = (folder / name for folder in self.data)
        return next((folder for folder in found if (folder / "train.parquet").exists()), None)


@dataclass(frozen=True)
class Piece:
    """A measurement.

    Attributes:
        name: Name of the result.
        title: What is measured, in words.
        minutes: Minutes it took, or is expected to take, on one large GPU.
        parts: Function from a session to the functions that measure the parts, by name; these may raise `OutOfTime`.
        summary: Function from all parts to the summary of the result.
        sets: Image sets that it needs.
    """

    name: str
    title: str
    minutes: float
    parts: Callable[[Session], Mapping[str, Callable[[], Row]]]
    summary: Callable[[Mapping[str, Row]], Row] = field(default=lambda parts: {})
    sets: tuple[str, ...] = ()

    def missing(self, session: Session) -> list[str]:
        """Return the image sets that are not there."""
        return [name for name in self.sets if session.source(name) is None]


def path_of(piece: Piece, session: Session) -> Path:
    """Return where a piece's result lies."""
    return session.results / f"on_device_{session.device}_{piece.name}{'_toy' if session.toy else ''}.json"


def stored_parts(piece: Piece, session: Session, retry: bool = False) -> dict[str, Row]:
    """Return the parts that are done: those of this device, also those that failed unless they are to be retried."""
    path = path_of(piece, session)
    parts: dict[str, Row] = json.loads(path.read_text())["parts"] if path.exists() else {}
    here = surroundings(session.device)["device"]
    return {
        name: row
        for name, row in parts.items()
        if row["surroundings"]["device"] == here and not (retry and FAILED in row)
    }


def waiting(piece: Piece, session: Session, retry: bool = False) -> list[str]:
    """Return the names of the parts that this call still has to measure."""
    done = stored_parts(piece, session, retry)
    left_out = session.without
    return [name for name in piece.parts(session) if name not in done and (left_out is None or left_out not in name)]


def measure(piece: Piece, session: Session, retry: bool = False, say: Callable[[str], None] = print) -> bool:
    """Measure what is waiting while time lasts, storing every part as it ends; return whether all is done.

    A part that fails is stored with its reason, so that the others are measured all the same.
    """
    parts = piece.parts(session)
    done = {name: row for name, row in stored_parts(piece, session, retry).items() if name in parts}
    each = 60 * piece.minutes / max(len(parts), 1)
    for name in waiting(piece, session, retry):
        # A part longer than a call either continues where it stopped, or starts with all the time there is.
        if session.left < (0 if session.toy else min(each, 30 * session.minutes)):
            return False
        _tidy(session.device)
        begin = time.monotonic()
        try:
            row = parts[name]()
        except OutOfTime:
            say(f"  {name}: continues in the next call")
            return False
        except (Exception, SystemExit) as problem:
            row = {FAILED: f"{type(problem).__name__}: {str(problem)[:500]}"}
        took = round(time.monotonic() - begin, 1)
        done[name] = {"surroundings": surroundings(session.device), **row, "wall_seconds": took}
        store(piece, session, done, parts)
        say(f"  {name}: {row.get(FAILED) or 'done'} in {took:.0f} s")
    return True


def _tidy(device: str) -> None:
    """Give back the memory of the part before."""
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()


def store(piece: Piece, session: Session, done: Mapping[str, Row], names: Iterable[str]) -> None:
    """Write a piece's result, whole or not at all."""
    complete = all(name in done for name in names)
    good = {name: row for name, row in done.items() if FAILED not in row}
    result = {
        "piece": piece.name,
        "title": piece.title,
        "toy": session.toy,
        "complete": complete,
        "summary": piece.summary(good) if complete and good else {},
        "surroundings": surroundings(session.device),
        "parts": done,
    }
    path = path_of(piece, session)
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".tmp")
    draft.write_text(json.dumps(result, indent=1, default=str) + "\n")
    os.replace(draft, path)
    if session.copies is not None:
        session.copies.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, session.copies)
