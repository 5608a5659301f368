"""Write scripts that train on a cluster: a batch script for SLURM, and a RayJob (`ray.io/v1`) for KubeRay."""

import hashlib
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from paucal.runner.elsewhere.command import Command
from paucal.runs.folder import SUMMARY_FILE
from paucal.types import UserError

STOP_SIGNAL = "USR1@120"  # SIGUSR1 two minutes before the time limit, so that the run saves its state
# Names of options in submitit that differ from the names in sbatch, mapped to the names in sbatch
_SBATCH_NAMES = {"timeout-min": "time", "mem-gb": "mem", "tasks-per-node": "ntasks-per-node", "name": "job-name"}

_CPUS_PER_PROCESS, _POD_MEMORY = 4, "16Gi"  # requested CPUs per process and memory per pod
_IMAGE = "rayproject/ray:latest"
# Lines of the RayJob that the user must change, mapped to descriptions of the value to insert
_LINES_TO_CHANGE = {
    f"image: {_IMAGE}": "an image with Python, paucal[ray] and packages for the data",
    "claimName: shared": "a volume with the images and the runs, writable from all machines",
    f"memory: {_POD_MEMORY}": "the memory of a machine",
}


def slurm_script(command: Command, devices: int, nodes: int, on_gpu: bool, options: Mapping[str, str | int]) -> str:
    """Return a batch script that begins or resumes a run, and requeues the job if the run was stopped.

    `options` are additional options, with the names of sbatch or of submitit.
    """
    if re.search(r"[\x00-\x1f\x7f\\]", command.run):
        raise UserError(
            f"--output: sbatch cannot read a path with control characters or backslashes such as {command.run!r}: "
            "choose another --output."
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
        option = name.removeprefix("slurm_").replace("_", "-")
        settings[_SBATCH_NAMES.get(option, option)] = f"{value}G" if option == "mem-gb" else value
    lines = ["#!/bin/bash", *(f"#SBATCH --{name}={shlex.quote(str(value))}" for name, value in settings.items())]
    lines += ["#SBATCH --requeue", "", f"cd {shlex.quote(command.folder)} || exit 1"]
    # A finished run may have no checkpoint, so it would begin again without this line.
    lines += [f"[ -e {shlex.quote(f'{command.run}/{SUMMARY_FILE}')} ] && exit 0"]
    lines += _begin_or_resume(command, ["srun", "paucal", *command.begin_words()], ["srun", "paucal"])
    lines += ["code=$?", '[ "$code" = 130 ] && scontrol requeue "$SLURM_JOB_ID"', 'exit "$code"']
    return "\n".join(lines) + "\n"


def kuberay_job(command: Command, devices: int, nodes: int, on_gpu: bool) -> str:
    """Return the YAML of a RayJob that begins or resumes a run on a new cluster; comments mark lines to change."""
    if not Path(command.run).is_relative_to(command.folder):
        raise UserError(
            f"--output: {command.run!r} is not inside the current folder, which is mounted on the machines of the "
            "cluster: choose another --output, or run this command in the folder that the machines share."
        )
    resources = {
        "cpu": str(_CPUS_PER_PROCESS * devices),
        "memory": _POD_MEMORY,
        **({"nvidia.com/gpu": devices} if on_gpu else {}),
    }
    machines = {
        "groupName": "machines",
        **dict.fromkeys(("replicas", "minReplicas", "maxReplicas"), nodes),
        "rayStartParams": {},
        "template": _pod_template("machine", resources, command.folder),
    }
    head = {  # no CPUs, so that no process of the run is placed on the head node
        "rayStartParams": {"num-cpus": "0"},
        "template": _pod_template("head", {"cpu": "2", "memory": _POD_MEMORY}, command.folder),
    }
    on_ray = ["--on", "ray", "--devices", str(devices), "--nodes", str(nodes)]
    # `words` come last, since they may end with `-- DATA`.
    begin = ["paucal", command.verb, "--output", command.run, *on_ray, *command.words]
    lines = [f"cd {shlex.quote(command.folder)} || exit 1"]
    lines += [f"[ -e {shlex.quote(f'{command.run}/{SUMMARY_FILE}')} ] && exit 0"]
    lines += _begin_or_resume(command, begin, ["paucal"], on_ray)
    # A unique name of lower-case letters, digits and dashes, which Kubernetes requires
    slug = re.sub("[^a-z0-9]+", "-", Path(command.run).name.lower()).strip("-")[:20]
    digest = hashlib.blake2b(command.run.encode(), digest_size=4).hexdigest()
    job = {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": {"name": "-".join(part for part in ("paucal", command.verb, slug, digest) if part)},
        "spec": {
            "entrypoint": shlex.join(["bash", "-c", "; ".join(lines)]),  # KubeRay splits and rejoins this text
            "shutdownAfterJobFinishes": True,
            "ttlSecondsAfterFinished": 600,
            "rayClusterSpec": {"headGroupSpec": head, "workerGroupSpecs": [machines]},
        },
    }
    text = yaml.safe_dump(job, sort_keys=False, width=1000, allow_unicode=True)
    for line, meaning in _LINES_TO_CHANGE.items():
        text = re.sub(rf"({re.escape(line)})$", rf"\1  # change: {meaning}", text, flags=re.MULTILINE)
    return text


def _begin_or_resume(command: Command, begin: list[str], program: list[str], suffix: Sequence[str] = ()) -> list[str]:
    """Return lines of a shell script that resume the run if it has a checkpoint, and otherwise begin it with `begin`.

    The command that resumes the run is `program`, the arguments for resuming, and `suffix`.
    """
    resume_line = shlex.join([*program, *command.resume_words(), *suffix])
    if command.resumes:
        return [resume_line]
    checkpoint = shlex.quote(f"{command.run}/checkpoints/last.ckpt")
    return [f"if [ -e {checkpoint} ]", f"then {resume_line}", f"else {shlex.join(begin)}", "fi"]


def _pod_template(name: str, resources: Mapping[str, Any], folder: str) -> dict[str, Any]:
    container = {
        "name": name,
        "image": _IMAGE,
        "resources": {"limits": dict(resources), "requests": dict(resources)},
        "volumeMounts": [{"name": "shared", "mountPath": folder}],
    }
    volume = {"name": "shared", "persistentVolumeClaim": {"claimName": "shared"}}
    return {"spec": {"containers": [container], "volumes": [volume]}}
