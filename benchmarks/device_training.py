"""The trainings that need an accelerator: runs that continue from call to call."""

import csv
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch

import esvit_gain
import paired
from device_state import OutOfTime, Piece, Row, Session
from measuring import interleaved, peak_memory, spread
from paucal.backbones import BackboneSpec
from paucal.objectives import Supervised
from paucal.objectives.finetuning import FineTuning
from paucal.runner.console import SilentConsole
from paucal.runner.life import Stopped, begin, resume
from paucal.tasks.classification.job import TrainingJob
from paucal.tasks.pretraining.job import PretrainingJob
from paucal.types import Batch, Progress

RESERVE = 20  # seconds for judging a run at its end
SEEDS = (0, 1, 2)
ARMS: dict[str, dict[str, Any]] = {
    "supervised": {"method": "supervised"},
    "drloc-paper": {"method": "drloc", "drloc_preset": "paper"},
}
SWIN: dict[str, Any] = {"recipe": "drloc-scratch", "epochs": 20, "schedule_epochs": 20, "warmup_epochs": 2.0}
TOY: dict[str, Any] = {"model": "vit_mini", "model_args": ["depth=1"], "img_size": [16], "epochs": 2, "workers": 0}
TOY_ESVIT: dict[str, Any] = {
    "epochs": 2, "batch_size": 16, "local_crops": [1], "out_dim": 64, "hidden_dim": 32, "bottleneck_dim": 16,
    "workers": 0, "monitor_images": 100, "precision": "32-true",
}  # fmt: skip


def until_done(output: Path, data: Path, settings: dict[str, Any], session: Session, pretraining: bool = False) -> None:
    """Train in the time that is left, from the newest state where there is one.

    Raises:
        OutOfTime: the run is not finished.
    """
    job: Any = PretrainingJob() if pretraining else TrainingJob()
    while not (output / "summary.json").exists():
        limit = f"{max(session.left - RESERVE, 0.01):.2f}s"
        if (output / "checkpoints" / "last.ckpt").exists():
            result = resume(job, output, SilentConsole(), {"time_limit": limit})
        else:
            chosen = {**settings, "data": str(data), "output": str(output), "time_limit": limit, "overwrite": True}
            result = begin(job, job.settings_type(**chosen), dict.fromkeys(chosen, "given"), SilentConsole())
        if isinstance(result, Stopped) and session.left < 2 * RESERVE:
            raise OutOfTime


def drloc(session: Session) -> Mapping[str, Callable[[], Row]]:
    """Swin-T on CIFAR-10, with and without DrLoc."""
    return {f"{arm}, seed {seed}": partial(_drloc, session, arm, seed) for seed in SEEDS for arm in ARMS}


def _drloc(session: Session, arm: str, seed: int) -> Row:
    source = session.source("cifar10")
    assert source is not None
    train, test = (60, 20) if session.toy else (11_000, 10_000)
    data = paired.make_subset(source, session.work / f"cifar10-{train}-{test}", train, test)
    settings = {**(TOY if session.toy else SWIN), **ARMS[arm], "seed": seed, "device": session.device}
    settings |= {"val_fraction": 1 / 11} if not session.toy else {"batch_size": 8}
    output = session.work / f"drloc-{'toy-' if session.toy else ''}{arm}-{seed}"
    until_done(output, data, settings, session)
    return {"arm": arm, "seed": seed, **paired.outcome(output), "settings": settings}


def drloc_summary(parts: Mapping[str, Row]) -> Row:
    """Means and deviations over seeds, and the gain."""
    whole = all(sum(row["arm"] == arm for row in parts.values()) > 1 for arm in ARMS)
    return {"comparison": paired.compare(list(parts.values()))} if whole else {}


def esvit(session: Session) -> Mapping[str, Callable[[], Row]]:
    """EsViT's pre-training on all training images of CIFAR-10."""
    return {"view+region": partial(_esvit, session)}


def _esvit(session: Session) -> Row:
    source = session.source("cifar10")
    assert source is not None
    train, test = (120, 40) if session.toy else (50_000, 10_000)
    data = paired.make_subset(source, session.work / f"cifar10-{train}-{test}", train, test)
    settings: dict[str, Any] = {
        "model": esvit_gain.MODEL, "model_args": esvit_gain.ARGUMENTS, "img_size": [32], "tasks": "view+region",
        "monitor": str(data), "drop_path": 0.0, "epochs": 20, "device": session.device,
    }  # fmt: skip
    settings |= TOY_ESVIT if session.toy else {}
    output = session.work / f"esvit{'-toy' if session.toy else ''}"
    until_done(output, data, settings, session, pretraining=True)
    curve = esvit_gain.curve(output)
    return {
        "monitor_before": curve[0],
        "monitor_after_each_epoch": curve[1:],
        "nearest_neighbours": esvit_gain.nearest_neighbours(output, data, session.device),
        "images": train,
        "test_images": test,
        "settings": {**settings, "monitor": "the same set"},
    }


def esvit_summary(parts: Mapping[str, Row]) -> Row:
    """Before and after; one run, so there is no spread over seeds."""
    row = parts["view+region"]
    return {"before": row["monitor_before"], "after": row["monitor_after_each_epoch"][-1], "runs": 1}


# Small networks with and without DrLoc: a night on two CPU cores, or minutes on a GPU.
JOBS = 6  # small networks leave a GPU idle between two of their steps
GRACE = 45  # seconds for workers to save where they are
NETWORKS = {
    "Swin": "--model swin_tiny_patch4_window7_224 --model-args patch_size=2 window_size=4 embed_dim=32 depths=[1,3] "
    "num_heads=[1,2]",
    "ViT": "--model vit_tiny_patch16_224 --model-args patch_size=4 embed_dim=64 depth=6 num_heads=2",
}
SHARED = ["--recipe", "small-images", "--init", "none", "--epochs", "100", "--lr", "0.002", "--val-fraction", "0.0909"]
GRID_TOY = ["--recipe", "small-images", "--init", "none", "--epochs", "1", "--batch-size", "16", "--workers", "0"]
GRID_SEEDS, TOY_SEEDS = ["0", "1", "2", "3", "4"], ["0", "1"]


def command_of(session: Session, data: Path, output: Path) -> list[str]:
    """Return the one command of the comparison."""
    arms = [
        f"{name}{ending}: {flags} --method {method}"
        for name, flags in NETWORKS.items()
        for ending, method in (("", "supervised"), (" + DrLoc", "drloc"))
    ]
    shared, seeds = (GRID_TOY, TOY_SEEDS) if session.toy else (SHARED, GRID_SEEDS)
    words = ["compare", str(data), "--arms", *arms, "--seeds", *seeds, *shared, "--device", session.device]
    return [*words, "--jobs", str(2 if session.toy else JOBS), "--output", str(output)]


def drloc_grid(session: Session) -> Mapping[str, Callable[[], Row]]:
    """Supervised against DrLoc for two small networks, five seeds."""
    return {"grid": partial(_grid, session)}


def _grid(session: Session) -> Row:
    source = session.source("cifar10")
    assert source is not None
    train, test = (110, 40) if session.toy else (5_500, 2_000)
    data = paired.make_subset(source, session.work / f"cifar10-{train}-{test}", train, test)
    output = session.work / f"drloc-grid{'-toy' if session.toy else ''}"
    command = command_of(session, data, output)
    _run(command, max(session.left - GRACE, session.left / 2))
    found = {name: _rows(output / f"{name}.csv") for name in ("arms", "differences", "runs")}
    return {**found, "settings": {"command": command[2:-2], "train": train, "test": test}}


def _run(words: list[str], seconds: float) -> None:
    """Call paucal for as long as there is time; the next call continues what is unfinished.

    Raises:
        OutOfTime: it is not finished.
    """
    program = [sys.executable, "-m", "paucal.cli.main", *words]
    with subprocess.Popen(program, start_new_session=True, stdout=subprocess.PIPE, text=True) as process:
        try:
            said = process.communicate(timeout=max(seconds, 1))[0]
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGINT)
            try:
                process.communicate(timeout=GRACE)
            except subprocess.TimeoutExpired:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            raise OutOfTime from None
    if process.returncode:
        raise RuntimeError(f"paucal compare ended with {process.returncode}: {said[-400:]}")


def _rows(path: Path) -> list[dict[str, Any]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def drloc_grid_summary(parts: Mapping[str, Row]) -> Row:
    """The differences, as the comparison states them."""
    return {"differences": parts["grid"]["differences"]}


ADAPTED, TOY_ADAPTED = "vit_base_patch16_224", "vit_mini"
RANKS = {"all weights": None, "rank 4": 4, "rank 16": 16}


def adapters(session: Session) -> Mapping[str, Callable[[], Row]]:
    """Return the training steps, by what learns."""
    return {name: partial(_adapted_step, session, rank) for name, rank in RANKS.items()}


def _adapted_step(session: Session, rank: int | None) -> Row:
    model, side, batch, repeats = (TOY_ADAPTED, 16, 4, 2) if session.toy else (ADAPTED, 224, 64, 30)
    device = torch.device(session.device)
    backbone = BackboneSpec(model, 100, image_size=(side, side)).build()
    objective = Supervised(backbone, tuning=FineTuning(lora_rank=rank)).to(device).train()
    learning = [parameter for parameter in objective.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(learning, lr=1e-4)
    images = Batch(torch.arange(batch), [torch.randn(batch, 3, side, side)], torch.arange(batch) % 100).to(device)
    progress = Progress(0, 1, 1)

    def step() -> None:
        with torch.autocast(device.type, torch.bfloat16):
            total = objective(images, progress).total
        total.backward()
        objective.before_step(progress)
        optimizer.step()
        objective.after_step(progress)
        optimizer.zero_grad(set_to_none=True)

    seconds = interleaved({"step": step}, repeats, session.device)["step"]
    return {
        "images_per_second": spread([batch / value for value in seconds]),
        "peak_memory_mib": peak_memory(step, session.device),
        "learning": sum(parameter.numel() for parameter in learning),
        "settings": {"model": model, "side": side, "batch": batch, "rank": rank},
    }


def adapters_summary(parts: Mapping[str, Row]) -> Row:
    """Return the middle speed and the memory of each."""
    return {name: [row["images_per_second"]["median"], row["peak_memory_mib"]] for name, row in parts.items()}


PIECES = (
    Piece(
        "drloc_swin", "Swin-T at 224 pixels on CIFAR-10, with and without DrLoc", 12, drloc, drloc_summary, ("cifar10",)
    ),
    Piece("esvit_50000", "EsViT on 50,000 CIFAR-10 images", 10, esvit, esvit_summary, ("cifar10",)),
    Piece(
        "drloc_grid",
        "small Swin and ViT on 5,000 images of CIFAR-10, 100 epochs, five seeds, with and without DrLoc",
        15,
        drloc_grid,
        drloc_grid_summary,
        ("cifar10",),
    ),
    Piece("adapters", "a step of ViT-B with low-rank adapters and with all weights", 0.5, adapters, adapters_summary),
)
