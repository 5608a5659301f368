"""Train every toy on two processes, each of which calls `train_all`."""

import json
from dataclasses import astuple
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import torch
import torch.distributed as dist
from lightning.pytorch import Callback
from torch import nn

from contracts import toys
from paucal.distributed import world_size
from paucal.training import Hardware, Outcome, TimePlan, Validation, keeper, length_correction
from paucal.training.sharding import local_shard


class Crash(Callback):
    """Ends the run in the middle of an epoch, as a power cut would."""

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if trainer.global_step == 6:
            raise InterruptedError


class Spoil(Callback):
    """Puts a NaN into one gradient of one process."""

    def on_after_backward(self, trainer, pl_module):
        if trainer.global_step == 2 and dist.get_rank() == 1:
            gradients = [local_shard(p.grad) for p in pl_module.parameters() if p.grad is not None]
            next(gradient for gradient in gradients if gradient.numel()).fill_(torch.nan)


class WithStatistics(toys.PerBlock):
    """Has running statistics, which each process computes of its own images."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm2d(3)

    def forward(self, batch, progress):
        batch.views[0] = self.norm(batch.views[0])
        return super().forward(batch, progress)


def train(objective, folder: Path, strategy: str, **more) -> Outcome:
    hardware = Hardware(devices=2, strategy=strategy)
    return toys.train(objective, folder, epochs=2, batch=8, hardware=hardware, save_every=3, **more)


def check_pieces(folder: Path) -> None:
    """Train again in pieces: interrupted and resumed, with a spoilt gradient, with statistics."""
    for name in toys.TOYS:
        try:
            train(toys.make(name), folder / "resumed" / name, "fsdp", callbacks=[Crash()])
        except InterruptedError:
            train(toys.make(name, seed=99), folder / "resumed" / name, "fsdp")
    outcome = train(toys.make("per_block"), folder / "spoilt", "fsdp", callbacks=[Spoil()])
    torch.manual_seed(0)
    objective = WithStatistics()
    train(objective, folder / "statistics", "fsdp")
    facts = {
        "skipped": [row["skipped_steps"] for row in outcome.rows],
        "mean": objective.norm.running_mean.tolist(),
        "kept": sum(local_shard(p).numel() for p in objective.parameters()),
        "parameters": sum(p.numel() for p in objective.parameters()),
    }
    (folder / f"rank{dist.get_rank()}.json").write_text(json.dumps(facts))


def check_first_scores(folder: Path, strategy: str) -> None:
    """The weights that a run begins with are judged once the processes are joined, by all of them."""
    seen: list[int] = []
    kept: list[dict] = []

    def validate(module: nn.Module, device: torch.device) -> dict[str, float]:
        seen.append(world_size())
        return {"val_top1": 0.0, "val_weights": sum(float(p.detach().norm()) for p in module.parameters())}

    train(toys.make("per_block"), folder / "watched", strategy, validation=Validation(validate), on_start=kept.append)
    (folder / f"start{dist.get_rank()}.json").write_text(json.dumps({"seen": seen, "kept": kept}))


def check_clock(folder: Path, strategy: str) -> None:
    """Steps take twice as long as planned on the first process, whose clock decides for all, and longer elsewhere."""
    now = [0.0]

    class Slow(Callback):
        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            now[0] += 2.0 if dist.get_rank() == 0 else 10.0

    times = SimpleNamespace(monotonic=lambda: now[0])
    plan = TimePlan(budget=30.0, spent=2.0, closing=2.0, step=1.0, evaluation=0.0, most_steps=100, threads=1)
    hardware, objective = Hardware(devices=2, strategy=strategy), toys.make("per_block")
    with patch.object(length_correction, "time", times), patch.object(keeper, "time", times):
        made = toys.train(
            objective, folder / "timed", epochs=6, batch=8, hardware=hardware, callbacks=[Slow()], time=plan
        )
    found = {"step": made.step, "changes": [astuple(change) for change in made.plan.changes]}
    (folder / f"clock{dist.get_rank()}.json").write_text(json.dumps(found))


def train_all(number: int, folder: Path, strategy: str) -> None:
    """Train as the process with this number."""
    for name in toys.TOYS:
        outcome = train(toys.make(name), folder / "two" / name, strategy)
        assert dist.get_rank() == number
        if number == 0:
            (folder / f"{name}.json").write_text(json.dumps(list(outcome.rows)))
    check_first_scores(folder, strategy)
    check_clock(folder, strategy)
    if strategy == "fsdp":
        check_pieces(folder)
