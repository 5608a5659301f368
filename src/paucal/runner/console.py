"""Consoles: messages, tables and progress of a run, on the terminal and in its log."""

import logging
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console as Terminal
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from paucal.runner.clock import WorkForecast
from paucal.runner.notebook import CELL_OUTPUT, NotebookProgress, in_notebook
from paucal.runner.plain_console import PlainConsole
from paucal.wording import shortened, showable

if TYPE_CHECKING:
    from lightning.pytorch import Callback

log = logging.getLogger("paucal")
EPOCH_LINES = 30  # maximum number of lines for the epochs of a run


class Console:
    """Prints to the terminal, and to the run's log once it is open."""

    def __init__(self, terminal: Terminal | None = None) -> None:
        self.terminal = terminal or PlainConsole()
        self._early: list[str] = []
        self._handler: logging.Handler | None = None

    def say(self, text: str) -> None:
        """Print a line and log it."""
        with suppress(OSError):  # the run continues if the terminal is closed
            self.terminal.print(text, markup=False, soft_wrap=True)
        self.note(text)

    def note(self, text: str) -> None:
        """Log a line without printing it."""
        if self._handler is None:
            self._early.append(showable(text))
        else:
            log.info(showable(text))

    def show(self, renderable: Any) -> None:
        """Print a table."""
        self.terminal.print(renderable)

    @contextmanager
    def logging_to(self, path: Path) -> Iterator[None]:
        """Log the earlier lines, and those inside the block, to a file with times."""
        handler = _LogFile(path, encoding="utf-8", errors="backslashreplace")
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
        log.addHandler(handler)
        level, log.level, propagate = log.level, logging.INFO, log.propagate
        log.propagate = False  # otherwise a notebook would also print each line
        self._handler = handler
        for text in self._early:
            log.info(text)
        self._early.clear()
        try:
            yield
        finally:
            self._handler = None
            log.level, log.propagate = level, propagate
            log.removeHandler(handler)
            handler.close()

    @contextmanager
    def progress(self, title: str) -> Iterator[Callable[[int, int], None]]:
        """Show a progress bar, and print when long work will end; yields a function of (done, total)."""
        expect = WorkForecast(title, self.say)
        with self.bar(transient=True) as bar:
            task = bar.add_task(title, total=None, news="")

            def advance(done: int, total: int) -> None:
                bar.update(task, completed=done, total=total)
                expect(done, total)

            yield advance

    def callbacks(self) -> Sequence["Callback"]:
        """Return the Lightning callbacks that show the progress of training."""
        from paucal.runner.progress import TrainingBar, TrainingForecast  # loads Lightning, which takes seconds

        return [TrainingForecast(self.say), TrainingBar(self.bar(transient=True))]

    def on_epoch(self, epoch: int, epochs: int, row: Mapping[str, float]) -> None:
        """Print the results of an epoch; in a long run only every nth, but all are logged."""
        text = epoch_line(epoch, epochs, row)
        if epoch % math.ceil(epochs / EPOCH_LINES) == 0 or epoch in (1, epochs):
            self.say(text)
        else:
            self.note(text)

    def show_settings(self, settings: object, origins: Mapping[str, str], remarks: Sequence[str]) -> None:
        """Print every setting that was given or chosen with its reason, then the remarks."""
        table = Table(title="settings", title_justify="left", box=None, padding=(0, 2, 0, 0))
        for heading in ("setting", "value", "why"):
            table.add_column(heading, overflow="fold")
        for name, origin in origins.items():
            value = getattr(settings, name)
            if origin != "default" and value is not None:
                table.add_row(name, escape(_short_text(value)), escape(origin))
                self.note(f"setting {name} = {_short_text(value)} ({origin})")
        self.show(table)
        for remark in remarks:
            self.say(f"note: {remark}")

    def bar(self, transient: bool) -> Progress:
        """Return a progress bar, which shows nothing where the output is not a terminal."""
        return Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeRemainingColumn(compact=True),
            TextColumn("{task.fields[news]}"),
            console=self.terminal,
            transient=transient,
            disable=not self.terminal.is_terminal,
        )


class _LogFile(logging.FileHandler):
    """A log file that ignores write errors, such as a full disk."""

    def handleError(self, record: logging.LogRecord) -> None:
        """Skip the line; logging would print a traceback."""

    def close(self) -> None:
        """Close the file, ignoring write errors."""
        with suppress(OSError):
            super().close()


class SilentConsole(Console):
    """Prints nothing but a progress bar in a notebook; the run's log has everything."""

    def __init__(self) -> None:
        super().__init__(PlainConsole(file=sys.stderr, quiet=True))
        self._output = CELL_OUTPUT

    def bar(self, transient: bool) -> Progress:
        """Return a progress bar, which is shown only in a notebook."""
        return NotebookProgress(self._output) if in_notebook() else super().bar(transient)


class LoggedConsole(SilentConsole):
    """Logs messages as warnings, for functions that write no files."""

    def say(self, text: str) -> None:
        """Log a warning, which Python shows by default."""
        log.warning(showable(text))

    @contextmanager
    def progress(self, title: str) -> Iterator[Callable[[int, int], None]]:
        """Show a progress bar in a notebook, and log nothing."""
        with self.bar(transient=True) as bar:
            task = bar.add_task(title, total=None, news="")
            yield lambda done, total: bar.update(task, completed=done, total=total)


class RecordingConsole(SilentConsole):
    """Prints nothing, and keeps the messages in `said` for the result of the call."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def say(self, text: str) -> None:
        """Keep a message."""
        self.said.append(text)


class NullConsole(SilentConsole):
    """Neither prints nor logs, for all processes but the first."""

    def bar(self, transient: bool) -> Progress:
        """Return a progress bar that is never shown."""
        return Console.bar(self, transient)

    @contextmanager
    def logging_to(self, path: Path) -> Iterator[None]:
        """Do nothing: the first process writes the log."""
        yield

    def callbacks(self) -> Sequence["Callback"]:
        """Show nothing."""
        return []


def epoch_line(epoch: int, epochs: int, row: Mapping[str, float]) -> str:
    """Return a line with the losses, scores and time of an epoch."""
    losses = [f"{n.removeprefix('train_')} {v:.3f}" for n, v in row.items() if n.startswith("train_")]
    scores = [f"{n.removeprefix('val_')} {v:.3f}" for n, v in row.items() if n.startswith("val_")]
    width = len(str(epochs))
    parts = [f"epoch {epoch:>{width}}/{epochs}", f"train: {', '.join(losses)}"]
    parts += [f"val: {', '.join(scores)}"] if scores else []
    return "  ".join([*parts, f"{row['seconds']:.0f} s"])


def _short_text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return shortened(" ".join(map(str, value)) if isinstance(value, list) else str(value))
