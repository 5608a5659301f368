"""A progress bar for Jupyter without widgets: text in the output of a notebook cell, which is replaced in place."""

import sys
import time
from html import escape
from typing import Any

from rich.progress import Progress, TaskID

# Minimum interval between updates, since each update is sent to the browser and stays in the notebook's history
REFRESH_SECONDS = 0.2


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
            if status := task.fields.get("news"):
                text = f"{text}  {status}"
            lines.append(text)
            attributes = f' value="{done}" max="{int(total)}"' if total else ""
            bars.append(f"<div><progress{attributes}></progress> {escape(text)}</div>")
        self._output.show("\n".join(lines), "".join(bars))


class NotebookOutput:
    """The output that shows progress in a notebook cell; each execution of a cell gets a new output."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._execution: int | None = None

    def show(self, text: str, html: str) -> None:
        """Replace the content of the output; the output is created at the first text that is not empty."""
        from IPython import get_ipython  # type: ignore[import-not-found]
        from IPython.display import display  # installed in any notebook  # type: ignore[import-not-found]

        content = {"text/plain": text, "text/html": html}
        execution = getattr(get_ipython(), "execution_count", None)
        if self._handle is not None and self._execution == execution:
            self._handle.update(content, raw=True)
        elif text:
            self._handle, self._execution = display(content, raw=True, display_id=True), execution


CELL_OUTPUT = NotebookOutput()  # shared by all progress bars in a cell
