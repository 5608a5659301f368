"""What a verb that trains says about itself; the one life of a run, in `life`, does the rest."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

from paucal.data.loader import TrainLoader
from paucal.runs import RunFolder
from paucal.settings.groups import JobSettings
from paucal.training import Optimization, Outcome, Watch
from paucal.verbs.run.assembled import Assembled
from paucal.verbs.run.finished import FinishedRun
from paucal.verbs.run.images import Advance
from paucal.verbs.run.voice import Voice

S = TypeVar("S", bound=JobSettings)
R = TypeVar("R", bound=FinishedRun, covariant=True)
Bars = Callable[[str], AbstractContextManager[Advance]]


class Watcher(Protocol):
    """Who looks at a run while it goes on."""

    def watch(self) -> Watch | None:
        """Return how the evaluated weights are scored after each epoch; None for not at all."""
        ...

    @property
    def on_start(self) -> Callable[[Mapping[str, float]], None] | None:
        """What is told the scores of the weights the run begins with; None where they are not judged."""
        ...

    def on_epoch(self, epoch: int, epochs: int, row: Mapping[str, float]) -> bool | None:
        """Say how an epoch went; return True to have the run saved and stopped here."""
        ...

    @property
    def wants_a_change(self) -> bool:
        """Whether a run that has stopped can go on, changed by `prepare_next`; only the first process knows."""
        ...

    def prepare_next(self) -> None:
        """Change what has to be changed before the run goes on; for the first process."""
        ...

    def last_words(self) -> list[str]:
        """Return what to say of a run that stays stopped."""
        ...


class Job(Protocol[S, R]):
    """One kind of run.

    Attributes:
        verb: what makes such runs on the command line.
        kind: the class of its settings.
        reads: names of the settings that are files or folders which a run reads.
    """

    verb: str
    kind: type[S]
    reads: tuple[str, ...]

    def check(self, settings: S, given: Mapping[str, str]) -> tuple[S, dict[str, str]]:
        """Fill in what a recipe says and refuse what makes no sense; read nothing but settings."""
        ...

    def pin(self, settings: S) -> S:
        """Return settings that find the same files from any folder and at any later time."""
        ...

    def assemble(self, settings: S, given: Mapping[str, str], bars: Bars, run: RunFolder | None = None) -> Assembled[S]:
        """Open the images, choose what was left open, build the objective; say and write nothing.

        Args:
            settings: what was given or stored.
            given: the origin of each setting that was given.
            bars: shows a bar for countable work.
            run: the run that goes on; None for a new one.
        """
        ...

    def announce(self, assembled: Any, voice: Voice) -> None:
        """Say what will be trained, on what, and why the settings are what they are."""
        ...

    def write_beginning(self, run: RunFolder, assembled: Any) -> None:
        """Write what is known before anything is trained, and draw what the network will see."""
        ...

    def is_open(self, assembled: Any) -> bool:
        """Return whether something has to be found out before the run has a length; all processes know."""
        ...

    def find_out(self, run: RunFolder, assembled: Any, voice: Voice) -> bool:
        """Find it out and store it with the run, on the first process; return False where a signal came between."""
        ...

    def loader(self, assembled: Any, start: int) -> TrainLoader:
        """Return the loader of this process, from a forward pass on."""
        ...

    def optimization(self, assembled: Any) -> Optimization:
        """Return the optimizer and its schedule."""
        ...

    def watcher(self, run: RunFolder, assembled: Any, voice: Voice) -> Any:
        """Return who looks at the run; a `Watcher`."""
        ...

    def conclude(self, run: RunFolder, assembled: Any, outcome: Outcome, watcher: Any, voice: Voice) -> R:
        """Judge the model, draw, write everything down, and say how it went."""
        ...
