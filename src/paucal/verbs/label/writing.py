"""Writing label maps: one process at a time, since two would each see the other's maps as missing."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from paucal.runner.console import Console
from paucal.runner.images import Advance
from paucal.runs.lock import require_unlocked, sole_writer

WHAT = "the folder of label maps"


def require_free(output: Path) -> None:
    """Refuse a folder of maps that another process is writing into; raises a UserError, changes nothing."""
    require_unlocked(output, WHAT)


@contextmanager
def writing_maps(output: Path, console: Console, title: str) -> Iterator[Advance]:
    """Hold the right to write maps into a folder, under a progress bar; yields what moves the bar.

    Raises:
        UserError: another process writes there, or has taken over since.
    """
    with sole_writer(output, WHAT) as lock, console.progress(title) as advance:

        def step(done: int, total: int) -> None:
            lock.check()
            advance(done, total)

        yield step
