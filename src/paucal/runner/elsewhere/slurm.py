"""Submit runs as SLURM jobs with submitit; a preempted job saves its state and is requeued."""

import signal
import subprocess
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paucal.runner.elsewhere.command import Command
from paucal.runner.elsewhere.packages import import_package, require_sbatch
from paucal.runs import RunFolder
from paucal.types import UserError
from paucal.wording import counted

STOPPED_CODE = 130  # exit code of a run that was stopped by a signal or its time limit
_MAX_TIMEOUTS = 1000  # maximum number of timeouts after which submitit requeues a job; submitit's default is 3


class RequeuedCommand:
    """The callable that submitit calls in each task of a job; the run saves its state before the job is requeued."""

    def __init__(self, command: Command) -> None:
        self.command = command
        self._process: subprocess.Popen[bytes] | None = None
        self._wait_thread: threading.Thread | None = None

    def __call__(self) -> int:
        """Start or resume the run; return 0 if it has finished, 130 if it was stopped; raise an error if it failed."""
        if RunFolder(Path(self.command.run)).finished:  # a finished run may have no checkpoint, and would start again
            return 0
        self._process = self.command.start()
        # submitit's signal handler interrupts this wait and calls `checkpoint`, which waits as well. A thread can be
        # joined twice, but waiting twice for a process in one thread would block.
        self._wait_thread = threading.Thread(target=self._process.wait, daemon=True)
        self._wait_thread.start()
        self._wait_thread.join()
        code = self._process.returncode
        if code not in (0, STOPPED_CODE):
            raise RuntimeError(f"paucal {self.command.verb} ended with exit code {code}; see its output for the reason")
        return code

    def checkpoint(self) -> Any:
        """Stop the run so that it saves its state, and return the job that submitit requeues."""
        if self._process is not None and self._wait_thread is not None:
            self._process.send_signal(signal.SIGTERM)
            self._wait_thread.join()
        return import_package("slurm").helpers.DelayedSubmission(RequeuedCommand(self.command))

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_process": None, "_wait_thread": None}


def submit(
    command: Command, devices: int, nodes: int, on_gpu: bool, options: Mapping[str, str | int], cluster: str = "slurm"
) -> Any:
    """Submit a run with `devices` processes on each of `nodes` machines, and return submitit's job.

    With `cluster="local"`, submitit starts the processes on this machine.
    """
    submitit = import_package("slurm")
    if cluster == "slurm":
        require_sbatch()
    executor = submitit.AutoExecutor(folder=command.logs, cluster=cluster, slurm_max_num_timeout=_MAX_TIMEOUTS)
    parameters: dict[str, Any] = {"name": f"paucal-{command.verb}", "timeout_min": 24 * 60}
    parameters |= {"nodes": nodes, "tasks_per_node": devices, **({"gpus_per_node": devices} if on_gpu else {})}
    try:
        executor.update_parameters(**parameters | dict(options))
        return executor.submit(RequeuedCommand(command))
    except (NameError, TypeError, ValueError, AssertionError, RuntimeError) as problem:
        reason = " ".join(str(problem).split()) or type(problem).__name__
        raise UserError(f"--slurm: the job was refused ({reason}): correct the options.") from problem


def describe(job: Any, command: Command) -> str:
    """Return a sentence about the submitted job, with the paths of the run and its logs."""
    return (
        f"submitted job {job.job_id} ({counted(job.num_tasks, 'process', 'processes')}), which is requeued when "
        f"it is preempted or reaches its limit; the run will be in {command.run}, the logs are in {command.logs}"
    )
