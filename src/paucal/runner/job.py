"""What each verb that trains has to define; `life` does what is the same for all of them."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Generic, Protocol, TypeVar

from paucal.data.loader import TrainLoader
from paucal.runner.console import Console
from paucal.runner.finished import FinishedRun
from paucal.runner.images import Advance
from paucal.runner.setup import RunSetup
from paucal.runs import RunFolder
from paucal.settings.groups import JobSettings
from paucal.training import Optimization, Outcome, Watch

A = TypeVar("A", bound=RunSetup[Any])
S = TypeVar("S", bound=JobSettings)
R = TypeVar("R", bound=FinishedRun, covariant=True)
Bars = Callable[[str], AbstractContextManager[Advance]]


class Watcher(Generic[A]):
    """Validates a run while it trains, and may stop or restart it; by default it only prints each epoch.

    Attributes:
        scores_start: Whether the weights at the start of the run are scored.

    Args:
        setup: Setup of the run.
        console: Console for messages.
    """

    scores_start = False

    def __init__(self, setup: A, console: Console) -> None:
        self.setup, self.console = setup, console

    def watch(self) -> Watch | None:
        """Return how weights are scored after each epoch; None without validation."""
        return None

    def on_start(self, scores: Mapping[str, float]) -> None:
        """Use the scores of the weights at the start of the run."""

    def on_epoch(self, epoch: int, epochs: int, row: Mapping[str, float]) -> bool | None:
        """Print the results of an epoch; return True to save and stop the run."""
        self.console.on_epoch(epoch, epochs, row)

    @property
    def should_restart(self) -> bool:
        """Whether the stopped run continues after `advance_stage`; only the first process knows."""
        return False

    def advance_stage(self) -> None:
        """Change the stored settings or state before the run continues; for the first process."""

    def stop_message(self) -> list[str]:
        """Return the lines to print when the run stays stopped."""
        return []


class Job(Protocol[S, R]):
    """One kind of run.

    Attributes:
        verb: Verb of the command line.
        kind: Class of the settings.
        reads: Names of the settings that are files or folders to read.
    """

    verb: str
    kind: type[S]
    reads: tuple[str, ...]

    def check(self, settings: S, given: Mapping[str, str]) -> tuple[S, dict[str, str]]:
        """Fill in the recipe and refuse settings that contradict each other, without reading any file."""
        ...

    def pin(self, settings: S) -> S:
        """Return settings with absolute paths."""
        ...

    def assemble(self, settings: S, given: Mapping[str, str], bars: Bars, run: RunFolder | None = None) -> RunSetup[S]:
        """Open the images, choose the open settings and build the objective, without printing or writing.

        Args:
            settings: Settings as given or stored.
            given: Origin of each setting that was given.
            bars: Function that shows a progress bar.
            run: Run to resume; None for a new one.
        """
        ...

    def announce(self, setup: Any, console: Console) -> None:
        """Print the data, the model, and the settings with their reasons."""
        ...

    def write_beginning(self, run: RunFolder, setup: Any) -> None:
        """Write the files of a new run, and draw the images as the network will see them."""
        ...

    def needs_planning(self, setup: Any) -> bool:
        """Return whether measurements have to decide the length of the run; the same on all processes."""
        ...

    def plan(self, run: RunFolder, setup: Any, console: Console) -> bool:
        """Choose the length on the first process and store it in the run; return False if a signal stopped it."""
        ...

    def loader(self, setup: Any, start: int) -> TrainLoader:
        """Return the training loader of this process, starting at a forward pass."""
        ...

    def optimization(self, setup: Any) -> Optimization:
        """Return the optimizer and its schedule."""
        ...

    def watcher(self, run: RunFolder, setup: Any, console: Console) -> Any:
        """Return the `Watcher` of the run."""
        ...

    def conclude(self, run: RunFolder, setup: Any, outcome: Outcome, watcher: Any, console: Console) -> R:
        """Evaluate the model, draw, write the results and print them."""
        ...
