"""What every finished run gives to the Python program that made it."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from paucal.models.trained import TrainedModel, load_trained
from paucal.runs import RunFolder


@dataclass(frozen=True)
class FinishedRun:
    """A run that has come to its end; it stands for its folder wherever a path is asked for.

    Attributes:
        folder: the run folder.
    """

    folder: Path

    def __fspath__(self) -> str:
        return str(self.folder)

    @cached_property
    def model(self) -> TrainedModel:
        """The model the run has kept, on the CPU, read from the folder when it is first asked for."""
        return load_trained(self.folder)

    @cached_property
    def history(self) -> list[dict[str, float]]:
        """The rows of `metrics.csv`: one per epoch."""
        return RunFolder(self.folder).read_rows()

    @property
    def test_scores(self) -> Mapping[str, float]:
        """The scores on images that nothing was learned from or chosen by; empty where there are none."""
        return {}

    @property
    def run(self) -> Path:
        """The folder, by its earlier name."""
        return self.folder
