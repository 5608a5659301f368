"""Taking a cell: alone, noticed when its worker dies, and given up after it has killed several."""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from paucal.runs import RunFolder
from paucal.runs.lock import RunLock
from paucal.types import UserError
from paucal.verbs.comparing.cells.cell import FAILED, Cell, state_of
from paucal.wording import sentence

TRIES = "tries.json"
MOST_TRIES = 3  # workers that may end in a cell without a word and without a saved state more


@contextmanager
def claimed(cell: Cell) -> Iterator[bool]:
    """Hold the right to compute a cell within the block, and say whether it was to be had.

    The lock tells other workers that this one is at work, by a sign of life every few seconds; it tells them as well
    when it is not any more, so that another one takes over.
    """
    cell.folder.mkdir(parents=True, exist_ok=True)
    lock = RunLock(cell.folder, "the cell")
    try:
        lock.acquire()
    except UserError:  # another worker has it
        yield False
        return
    try:
        yield not state_of(cell).settled and _may_try(cell)  # it may have been settled while the lock was made
    finally:
        lock.release()


def fail(cell: Cell, problem: BaseException) -> None:
    """Write down why a cell cannot be computed; for the holder of its lock."""
    known = isinstance(problem, UserError)
    words = str(problem) if known else sentence(f"{type(problem).__name__}: {problem}")
    trace = "" if known else "".join(traceback.format_exception(problem))
    RunFolder(cell.folder).write_json(FAILED, {"error": words, "traceback": trace[-20_000:]})


def settle_tries(cell: Cell) -> None:
    """Forget how often a cell was tried: its worker has come to an end of its own."""
    (cell.folder / TRIES).unlink(missing_ok=True)


def forgive(cell: Cell) -> None:
    """Let a failed cell, in which nobody is at work, be tried again."""
    (cell.folder / FAILED).unlink(missing_ok=True)
    settle_tries(cell)


def _may_try(cell: Cell) -> bool:
    """Count the workers that began a cell at the same saved state; at one too many the cell has failed."""
    folder, state = RunFolder(cell.folder), _saved_state(cell)
    before = _stored(folder)
    tries = int(before.get("tries", 0)) if before.get("state") == state else 0
    if tries >= MOST_TRIES:
        problem = UserError(
            f"{tries} workers have ended in it without a word and without getting on (killed, perhaps for want of "
            "memory): try a smaller --batch-size or fewer --jobs, then --retry."
        )
        fail(cell, problem)
        return False
    folder.write_json(TRIES, {"tries": tries + 1, "state": state})
    return True


def _stored(folder: RunFolder) -> dict[str, Any]:
    try:
        stored = folder.read_json(TRIES)
        return stored if isinstance(stored.get("tries"), int) else {}
    except UserError:  # there is none, or it is damaged: then it is counted from the beginning
        return {}


def _saved_state(cell: Cell) -> str:
    """Return what changes whenever a run saves how far it is."""
    try:
        return str(cell.run.last.stat().st_mtime_ns)
    except FileNotFoundError:
        return "none"
