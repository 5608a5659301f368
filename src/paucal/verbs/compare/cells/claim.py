"""Locking of cells: one worker at a time, released when the worker dies, and failed after several crashes."""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from paucal.runs import RunFolder
from paucal.runs.lock import RunLock
from paucal.types import UserError
from paucal.verbs.compare.cells.cell import FAILED, Cell, state_of
from paucal.wording import sentence

TRIES = "tries.json"
MAX_TRIES = 3  # workers that may crash in a cell without saving a new state


@contextmanager
def claimed(cell: Cell) -> Iterator[bool]:
    """Lock a cell within the block; yield whether this worker may compute it.

    The lock is renewed every few seconds, so that another worker takes over if this one dies.
    """
    cell.folder.mkdir(parents=True, exist_ok=True)
    lock = RunLock(cell.folder, "the cell")
    try:
        lock.acquire()
    except UserError:  # another worker has it
        yield False
        return
    try:
        yield not state_of(cell).settled and _may_try(cell)  # it may have been settled before the lock was acquired
    finally:
        lock.release()


def fail(cell: Cell, problem: BaseException) -> None:
    """Store why a cell failed; for the holder of its lock."""
    known = isinstance(problem, UserError)
    words = str(problem) if known else sentence(f"{type(problem).__name__}: {problem}")
    trace = "" if known else "".join(traceback.format_exception(problem))
    RunFolder(cell.folder).write_json(FAILED, {"error": words, "traceback": trace[-20_000:]})


def clear_tries(cell: Cell) -> None:
    """Reset the count of crashes: the worker ended by itself."""
    (cell.folder / TRIES).unlink(missing_ok=True)


def clear_failure(cell: Cell) -> None:
    """Let a failed cell be tried again."""
    (cell.folder / FAILED).unlink(missing_ok=True)
    clear_tries(cell)


def _may_try(cell: Cell) -> bool:
    """Count the workers that started at the same saved state, and fail the cell if there are too many."""
    folder, state = RunFolder(cell.folder), _saved_state(cell)
    before = _stored(folder)
    tries = int(before.get("tries", 0)) if before.get("state") == state else 0
    if tries >= MAX_TRIES:
        problem = UserError(
            f"{tries} of its workers crashed without making progress (perhaps killed for lack of memory): use a "
            "smaller --batch-size or fewer --jobs, then --retry."
        )
        fail(cell, problem)
        return False
    folder.write_json(TRIES, {"tries": tries + 1, "state": state})
    return True


def _stored(folder: RunFolder) -> dict[str, Any]:
    try:
        stored = folder.read_json(TRIES)
        return stored if isinstance(stored.get("tries"), int) else {}
    except UserError:  # missing or damaged: count from zero
        return {}


def _saved_state(cell: Cell) -> str:
    """Return the time stamp of a run's saved state, as text."""
    try:
        return str(cell.run.last.stat().st_mtime_ns)
    except FileNotFoundError:
        return "none"
