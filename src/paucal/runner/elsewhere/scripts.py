"""A batch script that makes a run as a job of SLURM."""

import re
import shlex
from collections.abc import Mapping

from paucal.runner.elsewhere.command import Command
from paucal.runs.folder import SUMMARY
from paucal.types import UserError

STOP_SIGNAL = "USR1@120"  # two minutes before the limit: the step ends, and its state is saved
# Words of sbatch where submitit has others.
_SBATCH = {"timeout-min": "time", "mem-gb": "mem", "tasks-per-node": "ntasks-per-node", "name": "job-name"}


def slurm_script(command: Command, devices: int, nodes: int, on_gpu: bool, options: Mapping[str, str | int]) -> str:
    """Return a batch script that starts a run, or resumes it, and is requeued where the run was stopped.

    Args:
        command: Command that makes the run.
        devices: Processes on each machine.
        nodes: Machines.
        on_gpu: Whether each process has a GPU.
        options: Further options of sbatch, by their names in submitit or in sbatch.

    Raises:
        UserError: sbatch cannot read the path of the run.
    """
    if re.search(r"[\x00-\x1f\x7f\\]", command.run):
        raise UserError(
            f"--output: sbatch cannot read a path with control characters or backslashes such as {command.run!r}: "
            "choose another."
        )
    settings: dict[str, str | int] = {
        "job-name": f"paucal-{command.verb}",
        "nodes": nodes,
        "ntasks-per-node": devices,
        **({"gpus-per-node": devices} if on_gpu else {}),
        "time": "24:00:00",
        "output": command.run.replace("%", "%%") + ".%j.log",
        "open-mode": "append",
        "signal": STOP_SIGNAL,
    }
    for name, value in options.items():
        word = name.removeprefix("slurm_").replace("_", "-")
        settings[_SBATCH.get(word, word)] = f"{value}G" if word == "mem-gb" else value
    begin = shlex.join(["srun", "paucal", *command.begin_words()])
    go_on = shlex.join(["srun", "paucal", *command.resume_words()])
    lines = ["#!/bin/bash", *(f"#SBATCH --{name}={shlex.quote(str(value))}" for name, value in settings.items())]
    lines += ["#SBATCH --requeue", "", f"cd {shlex.quote(command.folder)} || exit 1"]
    lines += [f"[ -e {shlex.quote(f'{command.run}/{SUMMARY}')} ] && exit 0"]  # some runs end without a checkpoint
    if command.resumes:
        lines += [go_on]
    else:
        checkpoint = shlex.quote(f"{command.run}/checkpoints/last.ckpt")
        lines += [f"if [ -e {checkpoint} ]", f"then {go_on}", f"else {begin}", "fi"]
    lines += ["code=$?", '[ "$code" = 130 ] && scontrol requeue "$SLURM_JOB_ID"', 'exit "$code"']
    return "\n".join(lines) + "\n"
