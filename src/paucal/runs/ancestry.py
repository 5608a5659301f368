"""The chain of runs that a run started from (`--init RUN`)."""

from collections.abc import Iterator
from pathlib import Path

from paucal.runs.folder import MARKER, RunFolder

TIMM = "timm"  # start from the weights that timm publishes
AUTO = "auto"  # the same, if the run chose them itself and auto-tunes from them
PUBLISHED = (TIMM, AUTO)
LONGEST = 32  # runs in a chain


def run_around(file: Path) -> RunFolder | None:
    """Return the run whose model or checkpoint a file is; None for other files."""
    for folder in (file.parent, file.parent.parent):
        run = RunFolder(folder)
        if (folder / MARKER).is_file() and file in (run.weights, run.best, run.last):
            return run
    return None


def run_behind(init: str | None) -> RunFolder | None:
    """Return the run whose model or checkpoint a start is; None for other starts and missing files."""
    if init is None or init in PUBLISHED:
        return None
    path = Path(init).expanduser()
    return RunFolder(path) if path.is_dir() else run_around(path)


def with_ancestors(run: RunFolder | None) -> Iterator[RunFolder]:
    """Yield a run, the run it started from, and so on.

    The last may be gone, or may not be readable: then nobody can tell what it began with.

    Raises:
        UserError: the config of a run that is there cannot be read; what came before has been yielded.
    """
    for _ in range(LONGEST):
        if run is None:
            return
        yield run
        if not run.config.is_file():
            return
        init = run.settings.get("init")
        if not isinstance(init, str):
            return
        gone = init not in PUBLISHED and not Path(init).exists()
        run = RunFolder(Path(init)) if gone else run_behind(init)
