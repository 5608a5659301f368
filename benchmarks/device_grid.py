"""Small networks with and without DrLoc: a night on two CPU cores, or minutes on a GPU."""

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

import paired
from device_state import OutOfTime, Piece, Row, Session

JOBS = 6  # small networks leave a GPU idle between two of their steps
GRACE = 45  # seconds for workers to save where they are
NETWORKS = {
    "Swin": "--model swin_tiny_patch4_window7_224 --model-args patch_size=2 window_size=4 embed_dim=32 depths=[1,3] "
    "num_heads=[1,2]",
    "ViT": "--model vit_tiny_patch16_224 --model-args patch_size=4 embed_dim=64 depth=6 num_heads=2",
}
SHARED = ["--recipe", "small-images", "--init", "none", "--epochs", "100", "--lr", "0.002", "--val-fraction", "0.0909"]
TOY = ["--recipe", "small-images", "--init", "none", "--epochs", "1", "--batch-size", "16", "--workers", "0"]
SEEDS, TOY_SEEDS = ["0", "1", "2", "3", "4"], ["0", "1"]


def command_of(session: Session, data: Path, output: Path) -> list[str]:
    """Return the one command of the comparison."""
    arms = [
        f"{name}{ending}: {flags} --method {method}"
        for name, flags in NETWORKS.items()
        for ending, method in (("", "supervised"), (" + DrLoc", "drloc"))
    ]
    shared, seeds = (TOY, TOY_SEEDS) if session.toy else (SHARED, SEEDS)
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


PIECES = (
    Piece(
        "drloc_grid",
        "small Swin and ViT on 5,000 images of CIFAR-10, 100 epochs, five seeds, with and without DrLoc",
        15,
        drloc_grid,
        drloc_grid_summary,
        ("cifar10",),
    ),
)
