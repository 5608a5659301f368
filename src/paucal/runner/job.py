"""The interface that every verb that trains implements; `life` calls its methods in order."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from PIL.Image import Image

from paucal.backbones.weights.load_report import LoadReport
from paucal.data.loader import TrainLoader
from paucal.memory import peak_memory
from paucal.models.card import ModelCard
from paucal.models.trained import TrainedModel, load_trained
from paucal.objectives import Objective
from paucal.runner.console import Console
from paucal.runner.images import Advance, SplitImages, pin_data
from paucal.runner.starts import pin_start
from paucal.runs import RunFolder, write_atomically
from paucal.settings.groups import JobSettings
from paucal.training import Optimization, Outcome, Plan, Watch
from paucal.wording import counted


@dataclass(frozen=True)
class FinishedRun:
    """A finished run; it can be passed wherever the path of its folder is expected."""

    folder: Path

    def __fspath__(self) -> str:
        return str(self.folder)

    @cached_property
    def model(self) -> TrainedModel:
        """The trained model on the CPU, loaded on first use."""
        return load_trained(self.folder)

    @cached_property
    def history(self) -> list[dict[str, float]]:
        """The rows of `metrics.csv`, one per epoch."""
        return RunFolder(self.folder).read_rows()

    @property
    def test_scores(self) -> Mapping[str, float]:
        """The scores on the test images, by name; empty without test images."""
        return {}

    @property
    def run(self) -> Path:
        """The run folder; the former name of `folder`."""
        return self.folder


class _Values(Protocol):
    @property
    def values(self) -> dict[str, float]: ...


@dataclass(frozen=True)
class EvaluatedRun(FinishedRun):
    """A finished run with a report, which has the test scores with confidence intervals."""

    report: _Values
    seconds: float

    @property
    def metrics(self) -> dict[str, float]:
        """The test scores without intervals, by name."""
        return self.report.values

    @property
    def test_scores(self) -> dict[str, float]:
        """The test scores by name, as in `metrics`."""
        return self.metrics


S = TypeVar("S", bound=JobSettings)
R = TypeVar("R", bound=FinishedRun)
Bars = Callable[[str], AbstractContextManager[Advance]]


@dataclass(frozen=True)
class RunSetup(Generic[S]):
    """Everything that a run trains with, assembled before anything is written.

    Attributes:
        remarks: Sentences to print before the run starts.
        start: Report on the loaded weights; None for random weights.
        planned_at: `time.monotonic()` at which the length was planned, or else at which the setup was assembled.
    """

    settings: S
    origin: Mapping[str, str]
    data: SplitImages
    plan: Plan
    objective: Objective
    card: ModelCard
    remarks: tuple[str, ...]
    start: LoadReport | None = None
    planned_at: float = field(default_factory=time.monotonic, kw_only=True)

    @property
    def weights_text(self) -> str:
        """The number of parameters of the deployed model, and of heads that are only used in training, as text."""
        deployed_ids = {id(p) for p in self.objective.backbones()[-1].model.parameters()}
        in_heads = sum(p.numel() for p in self.objective.parameters() if p.requires_grad and id(p) not in deployed_ids)
        heads = f" and {in_heads / 1e6:.2f} M in training heads" if in_heads > 0 else ""
        return f"{self.parameters / 1e6:.2f} M parameters{heads}"

    @property
    def parameters(self) -> int:
        """The number of parameters of the deployed model."""
        return sum(p.numel() for p in self.objective.deployable().parameters())

    @property
    def grid_text(self) -> str:
        """The rows and columns of the backbone's last feature map, as text."""
        rows, columns = self.objective.backbones()[0].grid
        return f"{rows}x{columns}"

    def describe(self) -> str:
        """Return one line with the model's name, parameters, image size and last feature map."""
        spec = self.card.backbone
        height, width = spec.image_size
        return f"{spec.name}, {self.weights_text}, images {height}x{width}, grid {self.grid_text}"

    def summarise(self, outcome: Outcome) -> dict[str, Any]:
        """Return the entries of `summary.json` that runs of all tasks have; the report and `paucal runs` show them."""
        return {
            "model": self.card.backbone.name,
            "split": self.data.split.description,
            "parts": self.data.counts(),
            "parameters": self.parameters,
            "seconds": round(outcome.seconds, 1),
            "peak_memory": peak_memory(self.settings.device),
            "start": None if self.start is None else self.start.short(),
            "remarks": [*self.remarks, *outcome.remarks],
        }


A = TypeVar("A", bound=RunSetup[Any])


class Watcher(Generic[A]):
    """Watches a run while it trains, and may stop or restart it; by default it only prints each epoch.

    If `scores_start` is true, the initial weights are scored before the first step.
    """

    scores_start = False

    def __init__(self, setup: A, console: Console) -> None:
        self.setup, self.console = setup, console

    def on_start(self, scores: Mapping[str, float]) -> None:
        """Receive the validation scores of the initial weights."""

    def on_epoch(self, epoch: int, epochs: int, row: Mapping[str, float]) -> bool | None:
        """Print the results of an epoch; return True to save and stop the run."""
        self.console.on_epoch(epoch, epochs, row)

    @property
    def should_restart(self) -> bool:
        """Whether the stopped run continues after `advance_stage`; valid only on the first process."""
        return False

    def advance_stage(self) -> None:
        """Change the stored settings or state before the run continues; called on the first process only."""

    def stop_message(self) -> list[str]:
        """Return the lines to print when the run does not continue."""
        return []


class Job(ABC, Generic[S, A, R]):
    """The methods of a verb that trains: abstract ones that each verb defines, and defaults.

    Attributes:
        reads: Names of the settings whose values are files or folders to read.
    """

    verb: ClassVar[str]
    settings_type: type[S]
    reads: ClassVar[tuple[str, ...]]

    @abstractmethod
    def check(self, settings: S, given: Mapping[str, str]) -> tuple[S, dict[str, str]]:
        """Fill in the settings of the recipe and refuse contradictory settings, without reading any file.

        `given` has the origin of each setting that the user gave. Return the settings, and the origin of each that was
        given or comes from the recipe ("recipe NAME").
        """

    def pin(self, settings: S) -> S:
        """Return settings with absolute paths."""
        return pin_start(pin_data(settings))

    @abstractmethod
    def assemble(self, settings: S, given: Mapping[str, str], bars: Bars, run: RunFolder | None = None) -> A:
        """Open the images, choose the settings that were not given and build the objective; train and write nothing.

        `given` has the origin of each setting that the user gave; `bars` opens a progress bar with a title; `run` is
        the run to resume.
        """

    def announce(self, setup: A, console: Console) -> None:
        """Print the data, the model, and the settings with their reasons."""
        for line in (*self.describe_data(setup), f"model: {self.describe_model(setup)}"):
            console.say(line)
        console.show_settings(setup.settings, setup.origin, setup.remarks)

    def describe_data(self, setup: A) -> list[str]:
        """Return lines that describe the images and their split."""
        counts = setup.data.counts()
        split_text = f"{counts['train']} to train, {counts['val']} to validate, {counts['test']} to test"
        return [f"data: {self.describe_images(setup)}; {split_text}", f"split: {setup.data.split.description}"]

    def describe_images(self, setup: A) -> str:
        """Return the name of the data, and its numbers of images and classes, as text."""
        classes = counted(len(setup.card.classes), "class", "classes")
        return f"{setup.data.images.name}, {counted(len(setup.data.images), 'image')}, {classes}"

    def describe_model(self, setup: A) -> str:
        """Return one line that describes the model."""
        return setup.describe()

    def write_beginning(self, run: RunFolder, setup: A) -> None:
        """Write files at the start of a run; by default, a picture of the first training batch."""
        picture = self.draw_batch(replace(setup, settings=replace(setup.settings, workers=0)))
        write_atomically(run.plots / "train_batch.png", lambda file: picture.save(file, "PNG"))

    @abstractmethod
    def draw_batch(self, setup: A) -> Image:
        """Draw images of the first training batch as the network will see them."""

    def needs_planning(self, setup: A) -> bool:
        """Return whether the length of the run must be planned from measurements; equal on all processes."""
        return False

    def plan(self, run: RunFolder, setup: A, console: Console) -> bool:
        """Plan the length of the run and store it; return False if a signal stopped the planning.

        It is called on the first process only.
        """
        return True

    @contextmanager
    def prepared(self, run: RunFolder, setup: A, console: Console) -> Iterator[A]:
        """Prepare additional data for training, and remove it after training."""
        yield setup

    @abstractmethod
    def loader(self, setup: A, start: int) -> TrainLoader:
        """Return the training loader of this process, starting at the forward pass with index `start`."""

    @abstractmethod
    def optimization(self, setup: A) -> Optimization:
        """Return the optimizer and its learning rate schedule."""

    def validation(self, setup: A) -> Watch | None:
        """Return the validation to run after each epoch; without one, the weights of the last epoch are kept."""
        return None

    def watcher(self, run: RunFolder, setup: A, console: Console) -> Watcher[A]:
        """Return the watcher that is called during training."""
        return Watcher(setup, console)

    @abstractmethod
    def conclude(self, run: RunFolder, setup: A, outcome: Outcome, watcher: Any, console: Console) -> R:
        """Evaluate the trained model, draw plots, and write and print the results."""


AnyJob = Job[Any, Any, Any]
