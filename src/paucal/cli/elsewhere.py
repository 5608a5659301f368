"""Runs on a cluster: the flags `--on`, `--slurm` and `--print-script` of the training commands."""

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from paucal.types import UserError

if TYPE_CHECKING:
    from paucal.runner.elsewhere.command import Command

_SLURM_ONLY_MESSAGE = "--slurm is for SLURM jobs: give --on slurm or --print-script slurm, or remove --slurm."


def run_elsewhere(verb: str, values: Namespace, argv: Sequence[str]) -> int | None:
    """Start a run on a cluster (`--on`), or print the script of such a run (`--print-script`).

    Returns:
        The exit code; None if the caller must continue on this machine, because neither flag was given, or `--on` was
        given with `--print-config`.
    """
    if values.on is None and values.print_script is None:
        if values.slurm is not None:
            raise UserError(_SLURM_ONLY_MESSAGE)
        return None
    if values.time_limit is not None and "slurm" in (values.on, values.print_script):
        # If the run ended itself at its time limit, the job would be requeued, or the run would stay unfinished.
        flag = "--on" if values.print_script is None else "--print-script"
        raise UserError(
            f"--time-limit is not supported with {flag} slurm: give the limit to SLURM, as in --slurm timeout_min=600."
        )
    if values.slurm is not None and "slurm" not in (values.on, values.print_script):
        raise UserError(_SLURM_ONLY_MESSAGE)
    if values.print_config and values.print_script is None:
        return None
    from paucal.runner.elsewhere.command import command_of
    from paucal.runner.elsewhere.packages import require_package, require_sbatch, slurm_options

    options = slurm_options(values.slurm or ())
    if values.print_script is None:
        require_package(str(values.on))
        if values.on == "slurm":
            require_sbatch()
    elif values.output is None and values.resume is None:
        raise UserError("--print-script needs --output: a run folder on a disk that all machines share.")
    command = command_of(verb, argv, values.output, values.resume)
    machines = _ClusterMachines(values.devices or 1, values.nodes or 1, values.device, options)
    if values.print_script is not None:
        print(_make_script(values.print_script, command, machines), end="")
        return 0
    return _start_job(str(values.on), command, machines)


class _ClusterMachines(NamedTuple):
    """The machines of a run on a cluster.

    Attributes:
        devices: Number of processes per machine, one per device.
        nodes: Number of machines.
        device: Value of `--device`; None if the flag was not given.
        options: Further options for SLURM, by submitit's names.
    """

    devices: int
    nodes: int
    device: str | None
    options: dict[str, str | int]

    @property
    def on_gpu(self) -> bool:
        """Whether each process has a GPU."""
        return self.device in (None, "cuda")


def _make_script(cluster: str, command: "Command", machines: _ClusterMachines) -> str:
    from paucal.runner.elsewhere.scripts import kuberay_job, slurm_script

    if cluster == "kuberay":
        return kuberay_job(command, machines.devices, machines.nodes, machines.on_gpu)
    script = slurm_script(command, machines.devices, machines.nodes, machines.on_gpu, machines.options)
    # SLURM writes its log beside the run folder, but does not create the parent folder of the log.
    Path(command.run).parent.mkdir(parents=True, exist_ok=True)
    return script


def _start_job(cluster: str, command: "Command", machines: _ClusterMachines) -> int:
    """Run the command on Ray until it ends, or submit the command to SLURM; return the exit code."""
    from paucal.runner.elsewhere import ray, slurm

    if cluster == "ray":
        print(f"the run will be in {command.run}, the logs are in {command.logs}", flush=True)
        return 0 if ray.train_on_ray(command, machines.devices * machines.nodes, machines.device) else 130
    job = slurm.submit(command, machines.devices, machines.nodes, machines.on_gpu, machines.options)
    print(slurm.describe(job, command))
    return 0
