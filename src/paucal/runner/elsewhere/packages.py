"""Check and import submitit and Ray, which start processes on clusters, and parse the options for them."""

import importlib
import importlib.util
import os
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

from paucal.types import UserError

# Package that starts the processes, by the value of --on; the value is also the name of paucal's extra for the package
PACKAGE_BY_CLUSTER = {"slurm": "submitit", "ray": "ray"}


def require_package(cluster: str) -> None:
    """Check that the package for --on is installed, without importing it, since Ray reads its settings on import."""
    spec = importlib.util.find_spec(PACKAGE_BY_CLUSTER[cluster])
    if spec is None or spec.origin is None:  # a folder of that name is found, too, but has no origin
        raise UserError(
            f"--on {cluster} needs the package {PACKAGE_BY_CLUSTER[cluster]}, which is not installed: "
            f'pip install "paucal[{cluster}]".'
        )


def import_package(cluster: str) -> Any:
    """Import and return the package for a value of --on."""
    require_package(cluster)
    try:
        return importlib.import_module(PACKAGE_BY_CLUSTER[cluster])
    except (ImportError, OSError) as problem:
        reason = " ".join(str(problem).split()) or type(problem).__name__
        raise UserError(
            f"--on {cluster}: the package {PACKAGE_BY_CLUSTER[cluster]} cannot be imported ({reason}): "
            f'reinstall it with pip install "paucal[{cluster}]".'
        ) from problem


def require_sbatch() -> None:
    """Check that SLURM's `sbatch` is installed on this machine."""
    if shutil.which("sbatch") is None:
        raise UserError(
            "--on slurm: SLURM is not installed on this machine (no sbatch): run this command on a login node, or "
            "remove --on slurm to use this machine."
        )


def slurm_options(words: Sequence[str] | None) -> dict[str, str | int]:
    """Parse options of the form NAME=VALUE; whole numbers without leading zeros become integers.

    Example:
        >>> slurm_options(["slurm_partition=gpu", "gpus_per_node=1"])
        {'slurm_partition': 'gpu', 'gpus_per_node': 1}
    """
    options: dict[str, str | int] = {}
    for option in words or ():
        name, equals, value = option.partition("=")
        if not equals or not name.isidentifier() or not value or not value.isprintable():
            raise UserError(f"--slurm: expected NAME=VALUE such as slurm_partition=gpu, got {option!r}.")
        is_number = value.isdecimal() and str(int(value)) == value  # 0123 may be an account, so it stays text
        options[name] = int(value) if is_number else value
    return options


def connect_to_ray(ray: Any) -> bool:
    """Connect to the cluster at RAY_ADDRESS, or start a cluster here; return False if Ray was already connected."""
    if ray.is_initialized():
        return False
    address = os.environ.get("RAY_ADDRESS")
    quiet_options: dict[str, Any] = {"include_dashboard": False, "log_to_driver": False}
    try:
        ray.init(address=address, logging_level="error", **({} if address else quiet_options))
    except Exception as problem:  # Ray raises many types of exceptions, including Exception itself
        reason = " ".join(str(problem).split())[-300:]
        text = "the cluster cannot be reached" if address else "no cluster could be started on this machine"
        advice = "check RAY_ADDRESS" if address else "try again when the machine is less busy, or remove --on ray"
        raise UserError(f"--on ray: {text} ({reason}): {advice}.") from problem
    return True


def import_ray() -> Any:
    """Import and return Ray."""
    # Under `uv run`, Ray would create a new environment for its workers, without the extras.
    os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    return import_package("ray")


def task_resources(cluster: Mapping[str, float], threads: int, device: str | None) -> dict[str, int]:
    """Return the CPUs and GPUs to request for each Ray task; if `device` is None, a GPU if the cluster has any.

    Example:
        >>> task_resources({"CPU": 64.0, "GPU": 8.0}, 4, None), task_resources({"CPU": 2.0}, 4, "cpu")
        ({'num_cpus': 4, 'num_gpus': 1}, {'num_cpus': 2, 'num_gpus': 0})
    """
    gpus = int(device == "cuda" or (device is None and cluster.get("GPU", 0) >= 1))
    return {"num_cpus": min(threads, int(cluster.get("CPU", threads))), "num_gpus": gpus}
