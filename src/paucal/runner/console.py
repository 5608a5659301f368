"""The console of a run: prints messages, tables and progress to the terminal or a notebook, and logs the messages."""

import html
import logging
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console as Terminal
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from paucal.runner.clock import WorkForecast
from paucal.runner.plain_console import PlainConsole
from paucal.wording import escape_controls, shorten

if TYPE_CHECKING:
    from lightning.pytorch import Callback

# Minimum interval between updates, since each update is sent to the browser and stays in the notebook's history
REFRESH_SECONDS = 0.2
EPOCH_LINES = 30  # approximate maximum number of epochs that are printed in a run


def in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None


class NotebookProgress(Progress):
    """A progress bar in the output of a notebook cell, which disappears when the work is done."""

    def __init__(self, output: "NotebookOutput") -> None:
        super().__init__(auto_refresh=False)
        self._output, self._shown_at = output, 0.0

    def start(self) -> None:
        """Show the bar."""
        self.refresh()

    def stop(self) -> None:
        """Remove the bar."""
        self._output.show("", "")

    def update(self, task_id: TaskID, **changes: Any) -> None:
        """Change a task, and redraw the bar if the task is finished or the last redraw was `REFRESH_SECONDS` ago."""
        super().update(task_id, **changes)
        task = self._tasks[task_id]
        if task.finished or time.monotonic() - self._shown_at >= REFRESH_SECONDS:
            self.refresh()

    def refresh(self) -> None:
        """Draw the bar."""
        self._shown_at = time.monotonic()
        lines, bars = [], []
        for task in self.tasks:
            done, total = int(task.completed), task.total
            text = f"{task.description} {done}/{'?' if total is None else int(total)}"
            if status := task.fields.get("status"):
                text = f"{text}  {status}"
            lines.append(text)
            attributes = f' value="{done}" max="{int(total)}"' if total else ""
            bars.append(f"<div><progress{attributes}></progress> {html.escape(text)}</div>")
        self._output.show("\n".join(lines), "".join(bars))


class NotebookOutput:
    """The output that shows progress in a notebook cell; each execution of a cell gets a new output."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._execution: int | None = None

    def show(self, text: str, html_text: str) -> None:
        """Replace the content of the output; the output is created at the first text that is not empty."""
        from IPython import get_ipython  # type: ignore[import-not-found]
        from IPython.display import display  # installed in any notebook  # type: ignore[import-not-found]

        content = {"text/plain": text, "text/html": html_text}
        execution = getattr(get_ipython(), "execution_count", None)
        if self._handle is not None and self._execution == execution:
            self._handle.update(content, raw=True)
        elif text:
            self._handle, self._execution = display(content, raw=True, display_id=True), execution


CELL_OUTPUT = NotebookOutput()  # shared by all progress bars in a cell


log = logging.getLogger("paucal")


class Console:
    """Prints messages, and logs them to the run's log file; messages from before the file is open are logged later."""

    def __init__(self, terminal: Terminal | None = None) -> None:
        self.terminal = terminal or PlainConsole()
        self._waiting_lines: list[str] = []
        self._handler: logging.Handler | None = None

    def say(self, text: str) -> None:
        """Print a line and log it."""
        with suppress(OSError):  # the run continues if the terminal is closed
            self.terminal.print(text, markup=False, soft_wrap=True)
        self.note(text)

    def note(self, text: str) -> None:
        """Log a line without printing it; the line waits until the log file is open."""
        if self._handler is None:
            self._waiting_lines.append(escape_controls(text))
        else:
            log.info(escape_controls(text))

    def show(self, renderable: Any) -> None:
        """Print a table or another rich object without logging it."""
        self.terminal.print(renderable)

    @contextmanager
    def logging_to(self, path: Path) -> Iterator[None]:
        """Write all lines with timestamps to a log file until the end of the block; earlier lines are written first."""
        handler = _LogFile(path, encoding="utf-8", errors="backslashreplace")
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
        log.addHandler(handler)
        level, log.level, propagate = log.level, logging.INFO, log.propagate
        log.propagate = False  # otherwise a notebook would print each line a second time
        self._handler = handler
        for text in self._waiting_lines:
            log.info(text)
        self._waiting_lines.clear()
        try:
            yield
        finally:
            self._handler = None
            log.level, log.propagate = level, propagate
            log.removeHandler(handler)
            handler.close()

    @contextmanager
    def progress(self, title: str) -> Iterator[Callable[[int, int], None]]:
        """Show a progress bar and, for long work, print a forecast; yield a function to call with (done, total)."""
        forecast = WorkForecast(title, self.say)
        with self.bar(transient=True) as bar:
            task = bar.add_task(title, total=None, status="")

            def advance(done: int, total: int) -> None:
                bar.update(task, completed=done, total=total)
                forecast(done, total)

            yield advance

    def callbacks(self) -> Sequence["Callback"]:
        """Return the Lightning callbacks that show the progress of training."""
        from paucal.runner.progress import TrainingBar, TrainingForecast  # imports Lightning, which takes seconds

        return [TrainingForecast(self.say), TrainingBar(self.bar(transient=True))]

    def on_epoch(self, epoch: int, epochs: int, row: Mapping[str, float]) -> None:
        """Log the results of an epoch, and print them; in a long run, print only evenly spaced epochs."""
        text = result_line(f"epoch {epoch:>{len(str(epochs))}}/{epochs}", row)
        if epoch % math.ceil(epochs / EPOCH_LINES) == 0 or epoch in (1, epochs):
            self.say(text)
        else:
            self.note(text)

    def show_settings(self, settings: object, origins: Mapping[str, str], remarks: Sequence[str]) -> None:
        """Print each setting that does not have its default value, with the reason for its value, then the remarks."""
        table = Table(title="settings", title_justify="left", box=None, padding=(0, 2, 0, 0))
        for heading in ("setting", "value", "why"):
            table.add_column(heading, overflow="fold")
        for name, origin in origins.items():
            value = getattr(settings, name)
            if origin == "default" or value is None:
                continue
            text = " ".join(map(str, value)) if isinstance(value, list) else str(value)
            text = f"{value:g}" if isinstance(value, float) else shorten(text)
            table.add_row(name, escape(text), escape(origin))
            self.note(f"setting {name} = {text} ({origin})")
        self.show(table)
        for remark in remarks:
            self.say(f"note: {remark}")

    def bar(self, transient: bool) -> Progress:
        """Return a progress bar, which is shown only if the output is a terminal."""
        return Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeRemainingColumn(compact=True),
            TextColumn("{task.fields[status]}"),
            console=self.terminal,
            transient=transient,
            disable=not self.terminal.is_terminal,
        )


class _LogFile(logging.FileHandler):
    """A log file that ignores write errors, such as a full disk."""

    def handleError(self, record: logging.LogRecord) -> None:
        """Drop the line, since the base class would print a traceback."""

    def close(self) -> None:
        """Close the file, ignoring write errors."""
        with suppress(OSError):
            super().close()


class SilentConsole(Console):
    """Prints nothing but a progress bar in a notebook; messages are only written to the run's log file."""

    def __init__(self) -> None:
        super().__init__(PlainConsole(file=sys.stderr, quiet=True))
        self._output = CELL_OUTPUT

    def bar(self, transient: bool) -> Progress:
        """Return a progress bar, which is shown only in a notebook."""
        return NotebookProgress(self._output) if in_notebook() else super().bar(transient)


class LoggedConsole(SilentConsole):
    """Logs messages as warnings, for functions that write no files."""

    def say(self, text: str) -> None:
        """Log a warning, which Python prints by default."""
        log.warning(escape_controls(text))

    @contextmanager
    def progress(self, title: str) -> Iterator[Callable[[int, int], None]]:
        """Show a progress bar in a notebook, without a forecast."""
        with self.bar(transient=True) as bar:
            task = bar.add_task(title, total=None, status="")
            yield lambda done, total: bar.update(task, completed=done, total=total)


class RecordingConsole(SilentConsole):
    """Prints nothing, and collects messages in `said`, so that the caller can return them."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def say(self, text: str) -> None:
        """Append a message to `said`."""
        self.said.append(text)


class NullConsole(SilentConsole):
    """Neither prints nor logs; used by all processes except the first."""

    def bar(self, transient: bool) -> Progress:
        """Return an invisible progress bar."""
        return Console.bar(self, transient)

    @contextmanager
    def logging_to(self, path: Path) -> Iterator[None]:
        """Do nothing, since only the first process writes the log."""
        yield

    def callbacks(self) -> Sequence["Callback"]:
        """Return no callbacks, since only the first process shows progress."""
        return []


def result_line(heading: str, row: Mapping[str, float]) -> str:
    """Return a line with a heading, and with the losses, validation scores and seconds of an epoch."""
    losses = [f"{name.removeprefix('train_')} {loss:.3f}" for name, loss in row.items() if name.startswith("train_")]
    scores = [f"{name.removeprefix('val_')} {score:.3f}" for name, score in row.items() if name.startswith("val_")]
    parts = [heading, f"train: {', '.join(losses)}"]
    parts += [f"val: {', '.join(scores)}"] if scores else []
    return "  ".join([*parts, f"{row['seconds']:.0f} s"])
