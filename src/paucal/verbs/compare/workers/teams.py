"""Workers as processes on this machine; `clusters` has those on SLURM and Ray.

Every worker does the same: it computes the grid of a folder, which all machines must see.
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
    """A group of started workers."""

    def alive(self) -> int:
        """Return how many workers run or wait to start."""
        ...

    def stop(self) -> None:
        """Let the workers save their state and end."""
        ...

    def describe(self) -> str:
        """Return what was started, and where the logs are."""
        ...

    @property
    def lost(self) -> int:
        """Number of crashed workers, which should be replaced."""
        ...


class Processes:
    """Workers that are processes on this machine, each with its own GPU if there are several.

    Args:
        folder: Folder of the grid.
        count: Number of workers.
        threads: Threads of each worker.
        device: "cuda" to distribute the GPUs.
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
        command = [sys.executable, "-m", "paucal.verbs.compare.cells", str(self._folder.resolve())]
        with log.open("ab") as out:
            # In a new session: an interrupt at the terminal reaches only the leading process, which stops the workers.
            return subprocess.Popen(command, stdout=out, stderr=out, env=environment, start_new_session=True)

    @property
    def pids(self) -> list[int]:
        """The process ids."""
        return [worker.pid for worker in self._workers]

    def alive(self) -> int:
        """Return how many workers run."""
        return sum(worker.poll() is None for worker in self._workers)

    @property
    def lost(self) -> int:
        """Number of killed workers."""
        return sum((worker.poll() or 0) < 0 for worker in self._workers)

    def stop(self) -> None:
        """Let the workers save their state, and wait for them."""
        for worker in self._workers:
            if worker.poll() is None:
                worker.terminate()
        for worker in self._workers:
            worker.wait()

    def describe(self) -> str:
        """Return what was started."""
        count = counted(len(self._workers), "worker process", "worker processes")
        return f"{count}; their logs are in {self._folder / LOGS}"


def _devices() -> list[str]:
    """Return the names of the GPUs that this process may use, from CUDA_VISIBLE_DEVICES if it is set."""
    allotted = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    count = torch.cuda.device_count()
    return allotted[:count] if allotted else [str(number) for number in range(count)]
