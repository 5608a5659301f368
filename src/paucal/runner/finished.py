"""The result of a finished run for Python programs."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from paucal.models.trained import TrainedModel, load_trained
from paucal.runs import RunFolder


@dataclass(frozen=True)
class FinishedRun:
    """A finished run, which can be used as the path of its folder.

    Attributes:
        folder: Run folder.
    """

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
        """The scores on the test images; empty without any."""
        return {}

    @property
    def run(self) -> Path:
        """The run folder, under its former name."""
        return self.folder
