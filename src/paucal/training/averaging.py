"""Averages of weights: a moving average over the steps of a run, and a greedy soup of its best epochs."""

import copy
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from torch import Tensor, nn

from paucal.runs.weights import read_weights, save_weights
from paucal.training.sharding import gather_state, load_whole, piece, shard

PREFIX = "epoch-"
Ingredient = tuple[float, float]  # score, and minus the loss, which breaks ties


class MovingAverage(Callback):
    """Keeps `average = decay * average + (1 - decay) * weights` after every optimizer step.

    The decay is warmed up as (1 + t) / (10 + t) after t updates, so that the initial weights soon lose their influence;
    `decay` is its maximum.
    """

    def __init__(self, module: nn.Module, decay: float) -> None:
        if not 0 <= decay < 1:
            raise ValueError(f"decay must be at least 0 and below 1, got {decay}")
        self.source = module
        self.decay = decay
        self.updates = 0
        self.module = copy.deepcopy(module).requires_grad_(False).eval()

    @torch.no_grad()
    def update(self) -> None:
        """Update the average with the current weights."""
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        averages = {name: piece(value) for name, value in self.module.state_dict().items()}
        current = {name: piece(value) for name, value in self.source.state_dict().items()}
        floats = [name for name, value in averages.items() if value.is_floating_point()]
        torch._foreach_lerp_(  # pyright: ignore[reportPrivateImportUsage]
            [averages[name] for name in floats], [current[name] for name in floats], 1 - decay
        )
        for name in averages.keys() - set(floats):
            averages[name].copy_(current[name])
        self.updates += 1

    def on_fit_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Move the average to the device of the weights, sharded as they are."""
        if pl_module.mesh is None:
            self.module.to(pl_module.device)
        else:
            shard(self.module, (), pl_module.mesh)

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {"updates": self.updates, "average": gather_state(self.module.state_dict())}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state of a checkpoint."""
        self.updates = state_dict["updates"]
        load_whole(self.module, state_dict["average"])

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Update the average after every optimizer step."""
        if (batch_idx + 1) % pl_module.plan.accumulate == 0:
            self.update()


@dataclass(frozen=True)
class KeptEpochs:
    """The files with the weights of a run's best epochs."""

    folder: Path
    count: int
    score: str
    loss: str

    def after_epoch(self, rows: Sequence[Mapping[str, float]], module: nn.Module) -> None:
        """Keep the newest epoch if it is among the best, and remove epochs that no longer are.

        The choice depends on the rows alone, so that a resumed run keeps the same epochs.
        """
        best = self._best_rows(rows)
        if rows[-1] in best:
            save_weights(self.file(rows[-1]), module.state_dict())
        best_files = {self.file(row) for row in best}
        for path in self.files():
            if path not in best_files:
                path.unlink(missing_ok=True)

    def kept(self, rows: Sequence[Mapping[str, float]]) -> list[Path]:
        """Return the existing files of the best epochs, best first."""
        return [path for row in self._best_rows(rows) if (path := self.file(row)).is_file()]

    def files(self) -> list[Path]:
        """Return all files of epochs."""
        return sorted(p for p in self.folder.glob("*.safetensors") if re.fullmatch(rf"{PREFIX}\d+", p.stem))

    def clear(self) -> None:
        """Remove all files."""
        for path in self.files():
            path.unlink(missing_ok=True)

    def _best_rows(self, rows: Sequence[Mapping[str, float]]) -> list[Mapping[str, float]]:
        finite = [row for row in rows if math.isfinite(row[self.loss])]
        # If epochs are equal, the earlier one is kept, as for the best state.
        return sorted(finite, key=lambda row: (-row[self.score], row[self.loss], row["step"]))[: self.count]

    def file(self, row: Mapping[str, float]) -> Path:
        """Return the file of an epoch's weights."""
        return self.folder / f"{PREFIX}{int(row['step']):07d}.safetensors"


def greedy_soup(
    files: Sequence[Path], judge: Callable[[Mapping[str, Tensor]], Ingredient]
) -> tuple[dict[str, Tensor], list[Path], Ingredient]:
    """Average states greedily, best first: add each state that does not lower the score of the mean.

    Returns:
        The mean, the files that are in it, and its score.
    """
    mean, chosen_files = read_weights(files[0]), [files[0]]
    score = judge(mean)
    for path in files[1:]:
        candidate = mean_of(mean, read_weights(path), len(chosen_files))
        candidate_score = judge(candidate)
        if candidate_score >= score:
            mean, score, chosen_files = candidate, candidate_score, [*chosen_files, path]
    return mean, chosen_files, score


def mean_of(mean: Mapping[str, Tensor], other: Mapping[str, Tensor], count: int) -> dict[str, Tensor]:
    """Return the mean of `count` states, given by their mean, and one more state; only floats are averaged."""
    return {
        name: value + (other[name] - value) / (count + 1) if value.is_floating_point() else value
        for name, value in mean.items()
    }
