"""Workers that compute the cells of a grid: processes on this machine, SLURM jobs, or Ray tasks.

All machines must see the folder of the grid under the same path.
"""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from paucal.runner.elsewhere.packages import (
    connect_to_ray,
    import_package,
    import_ray,
    require_sbatch,
    slurm_options,
    task_resources,
)
from paucal.types import UserError
from paucal.verbs.compare._computing import work_silently
from paucal.wording import counted

LOG_FOLDER = "workers"  # subfolder of the grid's folder


class ProcessWorkers:
    """Workers that are processes on this machine, each with its own GPU if there are several."""

    def __init__(self, folder: Path, count: int, threads: int, device: str | None = None) -> None:
        self._logs = folder / LOG_FOLDER
        self._logs.mkdir(exist_ok=True)
        gpus = _visible_gpus() if device == "cuda" else []
        command = [sys.executable, "-m", "paucal.verbs.compare", str(folder.resolve())]
        self._workers: list[subprocess.Popen[bytes]] = []
        for number in range(count):
            environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
            if len(gpus) > 1:
                environment["CUDA_VISIBLE_DEVICES"] = gpus[number % len(gpus)]
            with (self._logs / f"{number}.log").open("ab") as log:
                # In a new session, since Ctrl-C must reach only the parent process, which then stops the workers.
                worker = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
            self._workers.append(worker)

    def count_unfinished(self) -> int:
        """Return the number of workers that are running."""
        return sum(worker.poll() is None for worker in self._workers)

    @property
    def n_lost(self) -> int:
        """Number of workers that were killed by a signal and should be replaced."""
        return sum((worker.poll() or 0) < 0 for worker in self._workers)

    def stop(self) -> None:
        """Ask the workers to save a checkpoint and end, and wait for them."""
        for worker in self._workers:
            if worker.poll() is None:
                worker.terminate()
        for worker in self._workers:
            worker.wait()

    def describe(self) -> str:
        """Describe the workers that were started."""
        return f"{counted(len(self._workers), 'worker process', 'worker processes')}; their logs are in {self._logs}"


def _visible_gpus() -> list[str]:
    allotted = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    count = torch.cuda.device_count()
    return allotted[:count] if allotted else [str(number) for number in range(count)]


class SlurmWorkers:
    """Workers that are SLURM jobs, submitted with the library submitit; `options` are parameters of submitit.

    With the cluster "local", submitit starts processes on this machine.
    """

    n_lost = 0  # SLURM reports crashed jobs itself

    def __init__(self, folder: Path, count: int, options: Sequence[str] | None = None, cluster: str = "slurm") -> None:
        submitit = import_package("slurm")
        if cluster == "slurm":
            require_sbatch()
        self._logs = folder / LOG_FOLDER
        executor = submitit.AutoExecutor(folder=self._logs, cluster=cluster)
        try:
            executor.update_parameters(**{"name": "paucal-compare", "timeout_min": 24 * 60, **slurm_options(options)})
            grid_folder = str(folder.resolve())
            with executor.batch():
                self._jobs = [executor.submit(work_silently, grid_folder) for _ in range(count)]
        except (NameError, TypeError, ValueError, AssertionError, RuntimeError) as problem:
            reason = " ".join(str(problem).split()) or type(problem).__name__
            raise UserError(f"--slurm: the jobs were refused ({reason}): correct the options.") from problem

    def count_unfinished(self) -> int:
        """Return the number of jobs that are running or queued."""
        return sum(not job.done() for job in self._jobs)

    def stop(self) -> None:
        """Do nothing: the jobs do not depend on this process."""

    def describe(self) -> str:
        """Describe the submitted jobs."""
        numbers = ", ".join(str(job.job_id) for job in self._jobs)
        return f"{counted(len(self._jobs), 'SLURM job')} ({numbers}); their logs are in {self._logs}"


class RayWorkers:
    """Workers that are tasks of a Ray cluster: the cluster at RAY_ADDRESS, or a new cluster on this machine.

    A task requests a CPU for each of its threads and, if `device` is None, a GPU if the cluster has any.
    """

    n_lost = 0  # Ray restarts tasks whose worker died

    def __init__(self, folder: Path, count: int, threads: int, device: str | None = None) -> None:
        self._ray = import_ray()
        self._owns_cluster = connect_to_ray(self._ray)
        task = self._ray.remote(**task_resources(self._ray.cluster_resources(), threads, device))(_work_in_ray)
        # The processes of a running cluster do not have this process's environment variables for cache folders.
        caches = {name: value for name, value in os.environ.items() if name.startswith(("PAUCAL_", "HF_HUB_"))}
        self._tasks = [task.remote(str(folder.resolve()), caches) for _ in range(count)]

    def count_unfinished(self) -> int:
        """Return the number of tasks that are running or queued."""
        _, left = self._ray.wait(self._tasks, num_returns=len(self._tasks), timeout=0)
        if not left and self._owns_cluster:
            self._owns_cluster = False
            try:
                self._ray.get(self._tasks)
            except self._ray.exceptions.RayError as problem:
                reason = " ".join(str(problem).split())[-300:]
                raise UserError(f"--on ray: a worker failed ({reason}).") from problem
            finally:
                self._ray.shutdown()
            self._tasks = []
        return len(left)

    def stop(self) -> None:
        """Kill the tasks; the next call resumes their cells from the latest checkpoints."""
        for task in self._tasks:
            self._ray.cancel(task, force=True)
        if self._owns_cluster:
            self._owns_cluster = False
            self._ray.shutdown()

    def describe(self) -> str:
        """Describe the workers that were started."""
        return f"{counted(len(self._tasks), 'task')} on Ray"


Team = ProcessWorkers | SlurmWorkers | RayWorkers


def _work_in_ray(folder: str, environment: Mapping[str, str]) -> bool:
    os.environ.update(environment)
    return work_silently(folder)
