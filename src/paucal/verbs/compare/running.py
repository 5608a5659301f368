"""Start the workers of a stored grid, and report their progress and the remaining time.

Workers are processes on this machine, SLURM jobs, or Ray tasks. All machines must see the folder of the grid under the
same path.
"""

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from paucal.runner.clock import end_time_text
from paucal.runner.console import Console
from paucal.runner.elsewhere import packages
from paucal.runs import RunFolder
from paucal.types import UserError
from paucal.verbs.compare._work import POLL_SECONDS, clear_failure, train_cell, work, work_silently
from paucal.verbs.compare.grid import Cell, Grid, State, cells_of, read_grid, state_of
from paucal.verbs.compare.jobs import OVERHEAD_SECONDS
from paucal.verbs.compare.settings import GridSettings
from paucal.wording import counted, format_duration, percent

LOG_FOLDER = "workers"  # subfolder of the grid's folder
# Score to print when a run ends, by command: the key of the score in the run's summary, and the text before the score.
HEADLINES = {"train": ("test_top1", ""), "detect": ("test_ap", "AP "), "segment": ("test_mean_iou", "mean IoU ")}
MAX_SILENCE = 600.0  # longest time in seconds between two progress messages


def run_workers(grid: Grid, grid_settings: GridSettings, resume_command: str, console: Console) -> bool:
    """Compute the unfinished cells of a stored grid with workers; return whether every cell is done or has failed."""
    if grid_settings.retry and (failed := [cell for cell in cells_of(grid) if state_of(cell).name == "failed"]):
        for cell in failed:
            clear_failure(cell)
        console.say(f"trying {counted(len(failed), 'failed run')} again")
    all_settled = are_all_cells_final(grid)
    if all_settled or not grid_settings.jobs:
        return all_settled
    try:
        return _run_until_final(grid, grid_settings, resume_command, console)
    except KeyboardInterrupt:
        console.say(f"stopped; resume with: {resume_command}")
        raise


def are_all_cells_final(grid: Grid) -> bool:
    """Return whether every cell is done or has failed."""
    return all(state_of(cell).is_final for cell in cells_of(grid))


def _run_until_final(grid: Grid, grid_settings: GridSettings, resume_command: str, console: Console) -> bool:
    reporter = ProgressReporter(console, grid_settings.jobs)
    console.say(describe_work(reporter.report(grid), grid_settings.jobs))
    hint = f"you can stop at any time; to continue, or to add workers from another terminal: {resume_command}"
    console.say(f"results go to {grid.folder}; {hint}")
    if grid_settings.on == "here" and grid_settings.jobs == 1:
        return work(grid.folder, lambda cell, threads: train_cell(cell, threads, console), reporter.report)
    device = grid.shared.get("device")
    while True:
        if grid_settings.on == "slurm":
            workers = SlurmWorkers(grid.folder, grid_settings.jobs, grid_settings.slurm)
        elif grid_settings.on == "ray":
            workers = RayWorkers(grid.folder, grid_settings.jobs, grid.threads, device)
        else:
            worker_device = device or ("cuda" if torch.cuda.is_available() else None)
            workers = ProcessWorkers(grid.folder, grid_settings.jobs, grid.threads, worker_device)
        console.say(f"started {workers.describe()}")
        try:
            while workers.count_unfinished():
                time.sleep(POLL_SECONDS / 2)
                reporter.report(read_grid(grid.folder), busy=True)
        except BaseException:
            workers.stop()
            raise
        reporter.report(read_grid(grid.folder))
        if are_all_cells_final(read_grid(grid.folder)):
            return True
        if not workers.n_lost:
            return False
        console.say(f"note: {counted(workers.n_lost, 'worker')} crashed; starting new workers")


def require_workers(on: str, slurm: Sequence[str] | None = None, count: int = 1) -> None:
    """Refuse workers that this machine cannot start; if `count` is 0, check only the SLURM options."""
    if slurm is not None and on != "slurm":
        raise UserError("--slurm sets options of SLURM jobs: add --on slurm.")
    packages.slurm_options(slurm)
    if count and on in packages.PACKAGE_BY_CLUSTER:
        packages.require_package(on)
    if count and on == "slurm":
        packages.require_sbatch()


@dataclass(frozen=True)
class GridProgress:
    """The progress of a grid."""

    states: Mapping[Cell, State]
    seconds_left: float | None  # seconds until every cell is done or has failed; None if unknown
    other_workers: int = 0  # number of busy workers that other calls started

    def time_left(self) -> str:
        """Return the remaining time as a clause, such as "about 5 min left, until 14:05"; "" if unknown or zero."""
        if self.seconds_left is None or self.seconds_left < 1:
            return ""
        return f"about {format_duration(self.seconds_left)} left, until {end_time_text(self.seconds_left)}"


def progress_of(grid: Grid, cells: Sequence[Cell], workers: int, *, busy: bool = False) -> GridProgress:
    """Return the states of all cells, and the remaining time with the workers of this call and of other calls.

    If `busy` is False, this call has no workers yet, so all running cells belong to workers of other calls.
    """
    states = {cell: state_of(cell) for cell in cells}
    n_running = sum(state.name == "running" for state in states.values())
    other_workers = max(0, n_running - workers) if busy else n_running
    if any(arm.name not in grid.forecast for arm in grid.arms):
        return GridProgress(states, None, other_workers)
    finished = [cell for cell, state in states.items() if state.name == "done"]
    durations = {cell: seconds for cell in finished if (seconds := _run_seconds(cell.run)) is not None}
    slowdown = 1.0
    if durations:
        slowdown = sum(durations.values()) / max(1e-9, sum(grid.forecast[cell.arm.name] for cell in durations))
    seconds_left = 0.0
    for cell, state in states.items():
        if not state.is_final:
            done_fraction = _fraction_done(cell.run) if state.name in ("running", "stopped") else 0.0
            seconds_left += (1 - done_fraction) * grid.forecast[cell.arm.name] * slowdown
    if grid.rates:  # an arm gets cells for the other seeds after its learning rate is chosen
        with_rate = {cell.arm.name for cell in cells if not cell.is_trial}
        without_rate = [arm.name for arm in grid.arms if arm.name not in with_rate]
        seconds_left += (len(grid.seeds) - 1) * sum(grid.forecast[name] for name in without_rate) * slowdown
    n_unfinished = sum(not state.is_final for state in states.values())
    return GridProgress(states, seconds_left / max(1, min(workers + other_workers, n_unfinished)), other_workers)


def describe_work(progress: GridProgress, workers: int) -> str:
    """Return a line with the number of runs to compute and the time when they will be finished."""
    todo = sum(not state.is_final for state in progress.states.values())
    time_left = f", {progress.time_left()}" if progress.time_left() else ""
    other_text = f" and {progress.other_workers} of other calls" if progress.other_workers else ""
    return f"time: {counted(todo, 'run')} to compute with {counted(workers, 'worker')}{other_text}{time_left}"


def _run_seconds(run: RunFolder) -> float | None:
    try:
        seconds = run.read_json("summary.json").get("seconds")
    except UserError:
        return None
    return float(seconds) + OVERHEAD_SECONDS if isinstance(seconds, int | float) else None


def _fraction_done(run: RunFolder) -> float:
    try:
        epochs = run.settings.get("epochs")
        return min(1.0, len(run.read_rows()) / epochs) if isinstance(epochs, int) and epochs else 0.0
    except (UserError, OSError):  # the file is being written
        return 0.0


class ProgressReporter:
    """Prints the progress of a grid when a run ends, and after `MAX_SILENCE` seconds without a message."""

    def __init__(self, console: Console, workers: int) -> None:
        self._console, self._workers = console, max(1, workers)
        self._states: dict[Cell, State] | None = None
        self._last_message = time.monotonic()

    def report(self, grid: Grid, *, busy: bool = False) -> GridProgress:
        """Print the runs that have ended since the last call; `busy` has the same meaning as in `progress_of`."""
        progress = progress_of(grid, cells_of(grid), self._workers, busy=busy)
        previous, self._states = self._states, dict(progress.states)
        if previous is None:
            return progress
        n_settled = sum(state.is_final for state in progress.states.values())
        position = f"{n_settled} of {len(progress.states)}"
        for cell, state in progress.states.items():
            if state.is_final and not previous.get(cell, State("pending")).is_final:
                self._say_with_progress(f"{position}: {_end_message(cell, state)}", progress)
        if time.monotonic() - self._last_message > MAX_SILENCE:
            n_running = sum(state.name == "running" for state in progress.states.values())
            self._say_with_progress(f"{position} ended, {n_running} running", progress)
        return progress

    def _say_with_progress(self, text: str, progress: GridProgress) -> None:
        self._last_message = time.monotonic()
        self._console.say("; ".join(part for part in (text, progress.time_left()) if part))


def _end_message(cell: Cell, state: State) -> str:
    if state.name == "failed":
        return f"{cell.name} failed: {state.error}"
    try:
        summary = cell.run.read_json("summary.json")
        name, heading = HEADLINES[cell.verb]
        return f"{cell.name}: {heading}{percent(float(summary[name]))} in {format_duration(float(summary['seconds']))}"
    except (UserError, KeyError, TypeError, ValueError):
        return f"{cell.name}: done"


class ProcessWorkers:
    """Workers that are processes on this machine, each with its own GPU if there are several."""

    def __init__(self, folder: Path, count: int, threads: int, device: str | None = None) -> None:
        self._logs = folder / LOG_FOLDER
        self._logs.mkdir(exist_ok=True)
        gpus: list[str] = []
        if device == "cuda":
            n_gpus = torch.cuda.device_count()
            allotted = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
            gpus = allotted[:n_gpus] if allotted else [str(number) for number in range(n_gpus)]
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


class SlurmWorkers:
    """Workers that are SLURM jobs, submitted with the library submitit; `options` are parameters of submitit.

    With the cluster "local", submitit starts processes on this machine.
    """

    n_lost = 0  # SLURM reports crashed jobs itself

    def __init__(self, folder: Path, count: int, options: Sequence[str] | None = None, cluster: str = "slurm") -> None:
        submitit = packages.import_package("slurm")
        if cluster == "slurm":
            packages.require_sbatch()
        self._logs = folder / LOG_FOLDER
        executor = submitit.AutoExecutor(folder=self._logs, cluster=cluster)
        try:
            parameters = {"name": "paucal-compare", "timeout_min": 24 * 60, **packages.slurm_options(options)}
            executor.update_parameters(**parameters)
            with executor.batch():
                self._jobs = [executor.submit(work_silently, str(folder.resolve())) for _ in range(count)]
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
        self._ray = packages.import_ray()
        self._owns_cluster = packages.connect_to_ray(self._ray)
        resources = packages.task_resources(self._ray.cluster_resources(), threads, device)
        task = self._ray.remote(**resources)(_work_in_ray)
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


def _work_in_ray(folder: str, environment: Mapping[str, str]) -> bool:
    os.environ.update(environment)
    return work_silently(folder)
