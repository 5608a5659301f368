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
from paucal.training.sharding import gather_state, load_unsharded, local_shard, shard

FILE_PREFIX = "epoch-"
SoupScore = tuple[float, float]  # (score, negative loss); of two equal scores, the one with the lower loss is better


class MovingAverage(Callback):
    """Keeps `average = decay * average + (1 - decay) * weights` after every optimizer step.

    After t updates, the decay is the smaller of `decay` and (1 + t) / (10 + t), so that the initial weights soon lose
    their influence.
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
        averages = {name: local_shard(value) for name, value in self.module.state_dict().items()}
        current = {name: local_shard(value) for name, value in self.source.state_dict().items()}
        floats = [name for name, value in averages.items() if value.is_floating_point()]
        torch._foreach_lerp_(  # pyright: ignore[reportPrivateImportUsage]
            [averages[name] for name in floats], [current[name] for name in floats], 1 - decay
        )
        for name in averages.keys() - set(floats):
            averages[name].copy_(current[name])
        self.updates += 1

    def on_fit_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Move the average to the device of the trained weights, or shard the average if those weights are sharded."""
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
        load_unsharded(self.module, state_dict["average"])

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Update the average after every optimizer step."""
        if (batch_idx + 1) % pl_module.plan.accumulate == 0:
            self.update()


@dataclass(frozen=True)
class KeptEpochs:
    """The files with the weights of a run's best epochs."""

    folder: Path  # folder of the files
    count: int  # maximum number of epochs whose weights are kept
    score: str  # name of the metric that ranks the epochs; higher is better
    loss: str  # name of the metric that breaks ties; lower is better

    def after_epoch(self, rows: Sequence[Mapping[str, float]], module: nn.Module) -> None:
        """Save the newest epoch's weights if it is one of the best epochs, and remove files of all but the best epochs.

        The choice depends only on the metrics of all epochs (`rows`), so a resumed run keeps the same epochs.
        """
        best = self._best_rows(rows)
        if rows[-1] in best:
            save_weights(self.file(rows[-1]), module.state_dict())
        best_files = {self.file(row) for row in best}
        for path in self.files():
            if path not in best_files:
                path.unlink(missing_ok=True)

    def best_files(self, rows: Sequence[Mapping[str, float]]) -> list[Path]:
        """Return the existing files of the best epochs, best first."""
        return [path for row in self._best_rows(rows) if (path := self.file(row)).is_file()]

    def files(self) -> list[Path]:
        """Return all files with the weights of an epoch."""
        return sorted(p for p in self.folder.glob("*.safetensors") if re.fullmatch(rf"{FILE_PREFIX}\d+", p.stem))

    def clear(self) -> None:
        """Remove all files with the weights of an epoch."""
        for path in self.files():
            path.unlink(missing_ok=True)

    def _best_rows(self, rows: Sequence[Mapping[str, float]]) -> list[Mapping[str, float]]:
        finite = [row for row in rows if math.isfinite(row[self.loss])]
        # If score and loss are equal, the earlier epoch ranks first, as in the choice of the best checkpoint.
        return sorted(finite, key=lambda row: (-row[self.score], row[self.loss], row["step"]))[: self.count]

    def file(self, row: Mapping[str, float]) -> Path:
        """Return the path for the weights of the epoch with these metrics."""
        return self.folder / f"{FILE_PREFIX}{int(row['step']):07d}.safetensors"


def greedy_soup(
    files: Sequence[Path], evaluate: Callable[[Mapping[str, Tensor]], SoupScore]
) -> tuple[dict[str, Tensor], list[Path], SoupScore]:
    """Average the weights of several files, best first: a file joins the mean if the mean's score does not fall.

    Return the mean weights, the files that were averaged, and the score of the mean weights.
    """
    mean, used_files = read_weights(files[0]), [files[0]]
    score = evaluate(mean)
    for path in files[1:]:
        candidate = extend_mean(mean, len(used_files), read_weights(path))
        candidate_score = evaluate(candidate)
        if candidate_score >= score:
            mean, score, used_files = candidate, candidate_score, [*used_files, path]
    return mean, used_files, score


def extend_mean(mean: Mapping[str, Tensor], count: int, new: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the mean of `count + 1` state dicts, given the mean of the first `count` and the new state dict.

    Only floating-point tensors are averaged; all other tensors are copied from `mean`.
    """
    return {
        name: value + (new[name] - value) / (count + 1) if value.is_floating_point() else value
        for name, value in mean.items()
    }
