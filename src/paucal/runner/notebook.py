"""A progress bar for Jupyter without widgets: one output of the cell, replaced in place."""

import sys
import time
from html import escape
from typing import Any

from rich.progress import Progress, TaskID

REFRESH_SECONDS = 0.2  # between updates, since each is sent to the browser and stays in the notebook's history


def in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None


class NotebookProgress(Progress):
    """A progress bar in the output of a notebook's cell; it is empty once the work is done."""

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
        """Change a task, and redraw the bar if the last drawing is old enough."""
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
            share = f' value="{done}" max="{int(total)}"' if total else ""
            bars.append(f"<div><progress{share}></progress> {escape(text)}</div>")
        self._output.show("\n".join(lines), "".join(bars))


class NotebookOutput:
    """The output of a notebook's cell that shows progress: one per execution of the cell, replaced in place."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._execution: int | None = None

    def show(self, text: str, html: str) -> None:
        """Replace the content; nothing is shown before the first content."""
        from IPython import get_ipython  # type: ignore[import-not-found]
        from IPython.display import display  # installed in any notebook  # type: ignore[import-not-found]

        content = {"text/plain": text, "text/html": html}
        execution = getattr(get_ipython(), "execution_count", None)
        if self._handle is not None and self._execution == execution:
            self._handle.update(content, raw=True)
        elif text:
            self._handle, self._execution = display(content, raw=True, display_id=True), execution


CELL_OUTPUT = NotebookOutput()  # shared by all calls in a cell
