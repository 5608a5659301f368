"""The interface that every command that trains implements; the functions in `life` call its methods in order."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from PIL.Image import Image

from paucal.backbones.weights.load_report import LoadReport
from paucal.data.loader import TrainLoader
from paucal.memory import peak_memory
from paucal.models.card import ModelCard
from paucal.models.trained import TrainedModel, load_trained
from paucal.objectives import Objective
from paucal.runner.console import Console
from paucal.runner.images import Advance, SplitImages, with_absolute_data_paths
from paucal.runner.initial_weights import with_absolute_init_path
from paucal.runs import RunFolder
from paucal.settings.shared import JobSettings
from paucal.training import Optimization, Outcome, Plan, Validation
from paucal.wording import counted
from paucal.writing import write_atomically

S = TypeVar("S", bound=JobSettings)


@dataclass(frozen=True)
class FinishedRun:
    """A finished run, which can be passed wherever the path of its folder is expected."""

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
        """The scores on the test images, by name; empty if there are no test images."""
        return {}

    @property
    def run(self) -> Path:
        """The run folder; the former name of `folder`."""
        return self.folder


R = TypeVar("R", bound=FinishedRun)
Bars = Callable[[str], AbstractContextManager[Advance]]  # opens a progress bar with a title


@dataclass(frozen=True)
class RunSetup(Generic[S]):
    """Everything that a run needs for training, assembled before files are written."""

    settings: S
    origins: Mapping[str, str]  # origin of each setting by name, such as a flag or the reason for an automatic choice
    data: SplitImages
    plan: Plan  # length, seed and hardware of the training
    objective: Objective
    card: ModelCard  # model card of the deployed model, which is stored as `model.json`
    remarks: tuple[str, ...]  # sentences to print before the run starts
    # Report on the loaded initial weights; None if the initial weights are random
    load_report: LoadReport | None = None
    # Value of `time.monotonic()` when the length of the run was planned. If the length was not planned, the value when
    # the setup was assembled.
    planned_at: float = field(default_factory=time.monotonic, kw_only=True)

    @property
    def weights_text(self) -> str:
        """Text with the numbers of parameters of the deployed model and of heads that are only used in training."""
        deployed_ids = {id(p) for p in self.objective.backbones()[-1].model.parameters()}
        n_head = sum(p.numel() for p in self.objective.parameters() if p.requires_grad and id(p) not in deployed_ids)
        head_text = f" and {n_head / 1e6:.2f} M in training heads" if n_head > 0 else ""
        return f"{self.parameters / 1e6:.2f} M parameters{head_text}"

    @property
    def parameters(self) -> int:
        """The number of parameters of the deployed model."""
        return sum(p.numel() for p in self.objective.deployable().parameters())

    @property
    def is_selected(self) -> bool:
        """Whether the kept weights are selected on validation images; if not, the last weights are kept."""
        return len(self.data.split_indices("val")) > 0

    def best_epoch(self, outcome: Outcome) -> float | None:
        """Return the epoch whose weights were selected; None if the last weights are kept."""
        return outcome.best.get("epoch") if self.is_selected else None

    @property
    def grid_text(self) -> str:
        """Text with the numbers of rows and columns of the backbone's last feature map."""
        rows, columns = self.objective.backbones()[0].grid
        return f"{rows}x{columns}"

    def describe(self) -> str:
        """Return one line with the model's name, parameters, image size and last feature map."""
        spec = self.card.backbone
        height, width = spec.image_size
        return f"{spec.name}, {self.weights_text}, images {height}x{width}, grid {self.grid_text}"

    def summarise(self, outcome: Outcome) -> dict[str, Any]:
        """Return the entries of `summary.json` for runs of any task, which the report and `paucal runs` show."""
        return {
            "model": self.card.backbone.name,
            "split": self.data.split.description,
            "parts": self.data.counts(),
            "parameters": self.parameters,
            "seconds": round(outcome.seconds, 1),
            "peak_memory": peak_memory(self.settings.device),
            "start": None if self.load_report is None else self.load_report.to_summary(),
            "remarks": [*self.remarks, *outcome.remarks],
        }


A = TypeVar("A", bound=RunSetup[Any])


class EpochListener(Generic[A]):
    """Receives the results of a run during training, and may stop or restart it; this class only prints results."""

    scores_start = False  # whether the initial weights are validated before the first step

    def __init__(self, setup: A, console: Console) -> None:
        self.setup, self.console = setup, console

    def on_start(self, scores: Mapping[str, float]) -> None:
        """Receive the validation scores of the initial weights."""

    def on_epoch(self, epoch: int, epochs: int, row: Mapping[str, float]) -> bool | None:
        """Print the results of an epoch; return True to save and stop the run."""
        self.console.on_epoch(epoch, epochs, row)

    @property
    def should_restart(self) -> bool:
        """Whether the stopped run continues after `advance_stage`; only valid on the first process."""
        return False

    def advance_stage(self) -> None:
        """Change the stored settings or state before the run continues; only called on the first process."""

    def stop_message(self) -> list[str]:
        """Return the lines to print when the run does not continue."""
        return []


class Job(ABC, Generic[S, A, R]):
    """The steps of a command that trains, as methods that each command defines or inherits."""

    verb: ClassVar[str]
    settings_type: type[S]  # class of the command's settings
    reads: ClassVar[tuple[str, ...]]  # names of the settings whose values are files or folders to read

    @abstractmethod
    def check(self, settings: S, origins: Mapping[str, str]) -> tuple[S, dict[str, str]]:
        """Fill in the settings of the recipe and refuse contradictory settings, without reading any file.

        `origins` has the origin of each setting that the user gave. Return the settings, and the origin of each setting
        that the user gave or that comes from the recipe ("recipe NAME").
        """

    def with_absolute_paths(self, settings: S) -> S:
        """Return settings with absolute paths."""
        return with_absolute_init_path(with_absolute_data_paths(settings))

    @abstractmethod
    def assemble(self, settings: S, origins: Mapping[str, str], bars: Bars, run: RunFolder | None = None) -> A:
        """Open the images, choose settings that were not given, and build the objective, without training or writing.

        `origins` has the origin of each setting that the user gave; `bars` opens a progress bar with a title. `run` is
        None before the folder of the run is created. In auto-tuning and in resumed runs, `run` is this folder, whose
        stored split, preprocessing and report on the initial weights are used.
        """

    def announce(self, setup: A, console: Console) -> None:
        """Print the data, the model, and the settings with their reasons."""
        for line in (*self.describe_data(setup), f"model: {self.describe_model(setup)}"):
            console.say(line)
        console.show_settings(setup.settings, setup.origins, setup.remarks)

    def describe_data(self, setup: A) -> list[str]:
        """Return lines that describe the images and their split."""
        counts = setup.data.counts()
        split_text = f"{counts['train']} to train, {counts['val']} to validate, {counts['test']} to test"
        return [f"data: {self.describe_images(setup)}; {split_text}", f"split: {setup.data.split.description}"]

    def describe_images(self, setup: A) -> str:
        """Return a text with the name of the data and the numbers of images and classes."""
        classes = counted(len(setup.card.classes), "class", "classes")
        return f"{setup.data.images.name}, {counted(len(setup.data.images), 'image')}, {classes}"

    def describe_model(self, setup: A) -> str:
        """Return one line that describes the model."""
        return setup.describe()

    def write_beginning(self, run: RunFolder, setup: A) -> None:
        """Write files at the start of a run; by default, a drawing of the first training batch."""
        picture = self.draw_batch(replace(setup, settings=replace(setup.settings, workers=0)))
        write_atomically(run.plots / "train_batch.png", lambda file: picture.save(file, "PNG"))

    @abstractmethod
    def draw_batch(self, setup: A) -> Image:
        """Draw images of the first training batch after augmentation."""

    def needs_preliminary_work(self, setup: A) -> bool:
        """Return whether training still needs the result of preliminary steps; all processes return the same value."""
        return False

    def run_preliminary_work(self, run: RunFolder, setup: A, console: Console) -> bool:
        """Train a first model or short trials, or only time a few steps; then choose and store the length of the run.

        A first model is stored, too. This method is only called on the first process. The result is False if a signal
        stopped the steps.
        """
        return True

    @contextmanager
    def prepared(self, run: RunFolder, setup: A, console: Console) -> Iterator[A]:
        """Prepare additional data for training, yield the setup, and remove the data after training."""
        yield setup

    @abstractmethod
    def loader(self, setup: A, first_pass: int) -> TrainLoader:
        """Return the training loader of this process, which begins with forward pass `first_pass`."""

    @abstractmethod
    def optimization(self, setup: A) -> Optimization:
        """Return the settings of the optimizer and its learning-rate schedule."""

    def validation(self, setup: A) -> Validation | None:
        """Return the `Validation` that runs after each epoch; if None, the weights of the last epoch are kept."""
        return None

    def listener(self, run: RunFolder, setup: A, console: Console) -> EpochListener[A]:
        """Return the listener that is called during training."""
        return EpochListener(setup, console)

    @abstractmethod
    def conclude(self, run: RunFolder, setup: A, outcome: Outcome, listener: Any, console: Console) -> R:
        """Evaluate the trained model, draw plots, and write and print the results."""


AnyJob = Job[Any, Any, Any]
