"""The trainings that need an accelerator: runs that continue from call to call."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import esvit_gain
import paired
from device_state import OutOfTime, Piece, Row, Session
from paucal.runner.console import SilentConsole
from paucal.runner.life import Stopped, begin, resume
from paucal.tasks.classification.job import TrainingJob
from paucal.tasks.pretraining.job import PretrainingJob

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


PIECES = (
    Piece(
        "drloc_swin", "Swin-T at 224 pixels on CIFAR-10, with and without DrLoc", 12, drloc, drloc_summary, ("cifar10",)
    ),
    Piece("esvit_50000", "EsViT on 50,000 CIFAR-10 images", 10, esvit, esvit_summary, ("cifar10",)),
)
