"""Who starts workers, as processes of this machine; SLURM and Ray are in `clusters`. They start them, and nothing else.

What a worker does is the same everywhere: it works at the grid of a folder, which all machines must see.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import torch

from paucal.wording import counted

LOGS = "workers"


class Team(Protocol):
    """Workers that were started."""

    def alive(self) -> int:
        """Return how many of them are still at work, or wait to begin."""
        ...

    def stop(self) -> None:
        """Have them save what they are at, and end."""
        ...

    def describe(self) -> str:
        """Say what was started, and where their words are."""
        ...

    @property
    def lost(self) -> int:
        """How many have ended without a word, so that others in their place make sense."""
        ...


class Processes:
    """Workers that are processes of this machine, each with a device of its own where there are several.

    Args:
        folder: of the grid.
        count: of workers.
        threads: of each.
        device: "cuda" where they share GPUs out.
    """

    def __init__(self, folder: Path, count: int, threads: int, device: str | None = None) -> None:
        self._folder = folder
        logs = folder / LOGS
        logs.mkdir(exist_ok=True)
        devices = _devices() if device == "cuda" else []
        self._workers = [self._start(logs / f"{number}.log", number, threads, devices) for number in range(count)]

    def _start(self, log: Path, number: int, threads: int, devices: Sequence[str]) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        if len(devices) > 1:
            environment["CUDA_VISIBLE_DEVICES"] = devices[number % len(devices)]
        command = [sys.executable, "-m", "paucal.verbs.comparing.cells", str(self._folder.resolve())]
        with log.open("ab") as out:
            # A session of its own: an interrupt at the terminal is for the call that leads, which then stops them.
            return subprocess.Popen(command, stdout=out, stderr=out, env=environment, start_new_session=True)

    @property
    def pids(self) -> list[int]:
        """The numbers of the processes."""
        return [worker.pid for worker in self._workers]

    def alive(self) -> int:
        """Return how many are at work."""
        return sum(worker.poll() is None for worker in self._workers)

    @property
    def lost(self) -> int:
        """How many were killed."""
        return sum((worker.poll() or 0) < 0 for worker in self._workers)

    def stop(self) -> None:
        """Have them save what they are at, and wait for it."""
        for worker in self._workers:
            if worker.poll() is None:
                worker.terminate()
        for worker in self._workers:
            worker.wait()

    def describe(self) -> str:
        """Say what was started."""
        count = counted(len(self._workers), "worker process", "worker processes")
        return f"{count}; what they complain of is in {self._folder / LOGS}"


def _devices() -> list[str]:
    """Return the names of the GPUs that this process may use, of those that it was allotted where there is a list."""
    allotted = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    count = torch.cuda.device_count()
    return allotted[:count] if allotted else [str(number) for number in range(count)]
