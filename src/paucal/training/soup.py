"""A greedy soup: the mean of the weights of several epochs, where that scores higher on the validation images.

Wortsman et al. 2022 (arXiv 2203.05482, recipe 1) average runs of different settings; the epochs of one run that starts
from trained weights lie as close to each other.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor, nn

from paucal.runs import read_weights, save_weights

PREFIX = "epoch-"
Ingredient = tuple[float, float]  # score, and minus the loss, which breaks ties


@dataclass(frozen=True)
class KeptEpochs:
    """The files with the weights of a run's best epochs.

    Attributes:
        folder: Folder of the files.
        count: Number of files to keep.
        score: Metric that compares epochs, higher is better.
        loss: Metric that breaks ties, lower is better.
    """

    folder: Path
    count: int
    score: str
    loss: str

    def after_epoch(self, rows: Sequence[Mapping[str, float]], module: nn.Module) -> None:
        """Keep the newest epoch if it is among the best, and remove those that no longer are.

        What is kept depends on the rows alone, so that a run that was killed and goes on keeps the same.

        Args:
            rows: Metrics of all epochs, newest last.
            module: Module with the newest weights.
        """
        best = self._best(rows)
        if rows[-1] in best:
            save_weights(self.file(rows[-1]), module.state_dict())
        wanted = {self.file(row) for row in best}
        for path in self.files():
            if path not in wanted:
                path.unlink(missing_ok=True)

    def kept(self, rows: Sequence[Mapping[str, float]]) -> list[Path]:
        """Return the existing files of the best epochs, best first."""
        return [path for row in self._best(rows) if (path := self.file(row)).is_file()]

    def files(self) -> list[Path]:
        """Return all files of epochs."""
        named = (path for path in self.folder.glob(f"{PREFIX}*.safetensors"))
        return sorted(path for path in named if re.fullmatch(rf"{PREFIX}\d+", path.stem))

    def clear(self) -> None:
        """Remove all files."""
        for path in self.files():
            path.unlink(missing_ok=True)

    def _best(self, rows: Sequence[Mapping[str, float]]) -> list[Mapping[str, float]]:
        finite = [row for row in rows if math.isfinite(row[self.loss])]
        # Of equal epochs the earlier one is kept, as for the best state.
        return sorted(finite, key=lambda row: (-row[self.score], row[self.loss], row["step"]))[: self.count]

    def file(self, row: Mapping[str, float]) -> Path:
        """Return the file of an epoch's weights."""
        return self.folder / f"{PREFIX}{int(row['step']):07d}.safetensors"


def greedy_soup(
    files: Sequence[Path], judge: Callable[[Mapping[str, Tensor]], Ingredient]
) -> tuple[dict[str, Tensor], list[Path], Ingredient]:
    """Average weights, best first, adding each one that does not make the mean worse.

    Args:
        files: Files of state dicts with the same entries, best first; at least one.
        judge: Function that scores a state dict, higher is better.

    Returns:
        The mean, the files that are in it, and its score.
    """
    chosen = [files[0]]
    mean = read_weights(files[0])
    score = judge(mean)
    for path in files[1:]:
        tried = mean_of(mean, read_weights(path), len(chosen))
        found = judge(tried)
        if found >= score:
            mean, score, chosen = tried, found, [*chosen, path]
    return mean, chosen, score


def mean_of(mean: Mapping[str, Tensor], other: Mapping[str, Tensor], count: int) -> dict[str, Tensor]:
    """Return the mean of `count` states, given as their mean, and another one; only floats are averaged."""
    return {
        name: value + (other[name] - value) / (count + 1) if value.is_floating_point() else value
        for name, value in mean.items()
    }
