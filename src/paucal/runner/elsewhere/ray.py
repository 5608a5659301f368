"""Train on a Ray cluster: Ray Train starts the processes, and restarts all processes if one is lost."""

import os
import socket
import time
from pathlib import Path
from typing import Any

import torch.distributed as dist

from paucal.runner.elsewhere.command import Command
from paucal.runner.elsewhere.packages import connect_to_ray, import_ray, task_resources
from paucal.runner.elsewhere.slurm import STOPPED_CODE
from paucal.runs import RunFolder
from paucal.runs.lock import DEAD_AFTER_SECONDS, RENEWAL_SECONDS, is_locked
from paucal.types import UserError

MAX_FAILURES = 20  # maximum number of restarts
CODE_FILE = "code"  # name of the file in the log folder with the last exit code of the first process
_FAILED_CODE = 2  # exit code if data or settings are invalid, or if another process of the run was lost


def train_on_ray(command: Command, processes: int, device: str | None, threads: int | None = None) -> bool:
    """Train on the cluster at RAY_ADDRESS, or on this machine; return whether the run has finished.

    With `device` None, GPUs are used if the cluster has any. With `threads` (CPUs per process) None, the cluster's CPUs
    are divided equally among the processes.
    """
    ray = import_ray()
    from ray.train import FailureConfig, RunConfig, ScalingConfig  # imported here, since Ray is optional
    from ray.train.torch import TorchConfig, TorchTrainer

    owns_cluster = connect_to_ray(ray)
    cluster = ray.cluster_resources()
    per_task = task_resources(cluster, threads or max(1, int(cluster.get("CPU", 1)) // processes), device)
    for resource, count in (("CPU", per_task["num_cpus"]), ("GPU", per_task["num_gpus"])):
        if (needed := processes * count) > (available := cluster.get(resource, 0)):
            print(f"{needed} {resource}s are needed, but the cluster has {available:.0f}: waiting for more", flush=True)
    resources = {"CPU": per_task["num_cpus"], **({"GPU": 1} if per_task["num_gpus"] else {})}
    variables = {name: value for name, value in os.environ.items() if name.startswith(("PAUCAL_", "HF_HUB_"))}
    variables["OMP_NUM_THREADS"] = str(per_task["num_cpus"])
    trainer = TorchTrainer(
        run_ray_worker,
        train_loop_config={"command": command, "environment": variables},
        scaling_config=ScalingConfig(
            num_workers=processes, use_gpu=bool(per_task["num_gpus"]), resources_per_worker=resources
        ),
        torch_config=TorchConfig(backend="gloo"),
        run_config=RunConfig(
            name="ray", storage_path=str(command.logs), failure_config=FailureConfig(max_failures=MAX_FAILURES)
        ),
    )
    try:
        trainer.fit()
    except Exception as problem:  # Ray raises many types of exceptions
        reason = " ".join(str(problem).split())[-300:]
        raise UserError(f"--on ray: the run failed ({reason}); the logs are in {command.logs}.") from problem
    finally:
        if owns_cluster:
            ray.shutdown()
    finished = RunFolder(Path(command.run)).finished
    if not finished and (code := (command.logs / CODE_FILE).read_text()) != str(STOPPED_CODE):
        lines = (command.logs / "0.log").read_text(errors="replace").strip().splitlines()
        raise UserError(f"--on ray: the run ended with exit code {code} ({lines[-1] if lines else 'no output'}).")
    return finished


def run_ray_worker(config: dict[str, Any]) -> None:
    """Run one process of a run in a Ray worker, with torchrun's variables; Ray restarts all if it raises an error."""
    import ray  # imported here, since Ray is optional
    from ray.train import get_context

    command: Command = config["command"]
    context = get_context()
    rank, world_size = context.get_world_rank(), context.get_world_size()
    environment = dict(config["environment"])
    if gpus := ray.get_gpu_ids():  # Ray Train makes all GPUs of a machine visible to each of its workers
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, gpus))
    if world_size > 1:
        address: list[Any] = [_free_address() if rank == 0 else None]
        dist.broadcast_object_list(address)  # in Ray's process group; the run creates its own group
        rank_variables = {
            "RANK": rank,
            "WORLD_SIZE": world_size,
            # Each process counts as a separate machine, since Ray may move processes when it restarts them.
            "LOCAL_RANK": 0,
            "LOCAL_WORLD_SIZE": 1,
            "GROUP_RANK": rank,
            "MASTER_ADDR": address[0][0],
            "MASTER_PORT": address[0][1],
            "TORCHELASTIC_RUN_ID": "ray",
        }
        environment |= {name: str(value) for name, value in rank_variables.items()}
    if rank == 0:
        # A process on a lost machine cannot release the run's lock, so wait until the lock expires.
        deadline = time.monotonic() + DEAD_AFTER_SECONDS + RENEWAL_SECONDS
        while is_locked(Path(command.run)) and time.monotonic() < deadline:
            time.sleep(1.0)
    code = command.start(environment, f"{rank}.log").wait()
    if rank == 0:
        (command.logs / CODE_FILE).write_text(str(code))
    if code == _FAILED_CODE and not RunFolder(Path(command.run)).last.exists():
        return  # restarting would not help with invalid data or settings
    if code not in (0, STOPPED_CODE):
        raise RuntimeError(f"paucal {command.verb} ended with exit code {code}; see {rank}.log in {command.logs}")


def _free_address() -> tuple[str, int]:
    import ray.util

    with socket.socket() as listener:
        listener.bind(("", 0))
        return ray.util.get_node_ip_address(), listener.getsockname()[1]
