"""Coordinate the processes that train one run: ranks, process group, and the path of the run folder.

If a launcher (torchrun, SLURM) starts all processes at once, the processes form a process group before files are
written. If Lightning starts the other processes when training begins, an environment variable passes the path of the
run folder to them. In both cases only the first process reads the flags and creates the folder, and the other processes
read the stored settings, so that all processes have the same settings.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from lightning.fabric.plugins.environments.cluster_environment import ClusterEnvironment
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment

from paucal.distributed import is_distributed
from paucal.types import UserError

T = TypeVar("T")

RUN_VARIABLE = "PAUCAL_RUN"
# Phrases that identify torch's messages about failed communication between processes
_EXCHANGE_PHRASES = ("gloo", "nccl", "connection closed by peer", "connection reset by peer")


def launcher() -> ClusterEnvironment | None:
    """Return the environment of the launcher; None if this process runs alone or was started by Lightning."""
    for environment_type in (TorchElasticEnvironment, SLURMEnvironment):
        if environment_type.detect():
            environment = environment_type()
            return environment if environment.world_size() > 1 else None
    return None


def launched_process_counts() -> tuple[int, int] | None:
    """Return (processes per node, nodes) as set by the launcher; None if there is no launcher."""
    environment = launcher()
    if environment is None:
        return None
    world_size = environment.world_size()
    local_processes = int(os.environ.get("LOCAL_WORLD_SIZE") or os.environ.get("SLURM_NTASKS_PER_NODE") or world_size)
    return local_processes, world_size // local_processes


def is_rank_zero() -> bool:
    """Return whether this process has rank 0, and so reads the flags, writes files and prints."""
    environment = launcher()
    if environment is not None:
        return environment.global_rank() == 0
    return not (RUN_VARIABLE in os.environ and int(os.environ.get("LOCAL_RANK", 0)) > 0)


def init_launched_group() -> None:
    """Initialise the process group if a launcher started this process.

    With GPUs, gloo gathers results on the CPU, and NCCL reduces gradients on the GPUs.
    """
    environment = launcher()
    if environment is None or dist.is_initialized():
        return
    os.environ["MASTER_ADDR"] = environment.main_address
    os.environ["MASTER_PORT"] = str(environment.main_port)
    backend = "gloo"
    if torch.cuda.is_available():
        torch.cuda.set_device(environment.local_rank())
        backend = "cpu:gloo,cuda:nccl"
    dist.init_process_group(backend, rank=environment.global_rank(), world_size=environment.world_size())


@contextmanager
def tell_others_of_failure() -> Iterator[None]:
    """If the block raises an exception, notify the processes that wait in `receive_path`, so that they exit."""
    try:
        yield
    except BaseException:
        if launcher() is not None:
            dist.broadcast_object_list([None])
        raise


def send_path(path: Path) -> None:
    """Send the path of the run folder from the first process to the processes that wait in `receive_path`."""
    if launcher() is not None:
        dist.broadcast_object_list([str(path)])


def receive_path() -> Path:
    """Return the path of the run folder, as sent by the first process."""
    if launcher() is None:
        return Path(os.environ[RUN_VARIABLE])
    received: list[str | None] = [None]
    dist.broadcast_object_list(received)
    if received[0] is None:
        raise UserError("the first process could not start the run; see the message of that process.")
    return Path(received[0])


@contextmanager
def run_passed_to_children(run: Path) -> Iterator[None]:
    """Within the block, store the path of the run folder in an environment variable, for Lightning's new processes."""
    if launcher() is not None:
        yield
        return
    os.environ[RUN_VARIABLE] = str(run.resolve())
    try:
        yield
    finally:
        if int(os.environ.get("LOCAL_RANK", 0)) == 0:  # so that this process can start another run
            os.environ.pop(RUN_VARIABLE, None)


def broadcast_value(value: T) -> T:
    """Return the value of the first process; every process must call this function."""
    if not is_distributed():
        return value
    received = [value]
    dist.broadcast_object_list(received)
    return received[0]


def run_on_rank_zero(act: Callable[[], T]) -> T:
    """Call `act` on the first process while the others wait; return its result on all, which must call this function.

    If `act` raises an exception, the other processes raise a UserError.
    """
    outcome: Any = (False, None)  # whether `act` succeeded, and its result
    try:
        if not is_distributed() or dist.get_rank() == 0:
            outcome = True, act()
    finally:
        outcome = broadcast_value(outcome)
    succeeded, result = outcome
    if not succeeded:
        raise UserError("the first process could not continue the run; see the message of that process.")
    return result


@contextmanager
def explain_lost_processes(resume: str) -> Iterator[None]:
    """Raise a UserError that recommends the command `resume` if the communication between processes fails.

    A closed connection causes an error at once; a process that hangs causes an error after torch's timeout (half an
    hour on the CPU, ten minutes on GPUs).
    """
    try:
        yield
    except RuntimeError as problem:
        if not isinstance(problem, dist.DistError) and not any(
            phrase in str(problem).lower() for phrase in _EXCHANGE_PHRASES
        ):
            raise
        raise UserError(
            "another process of this run ended or did not answer; the output of that process says why. The newest "
            f"checkpoint is kept: continue with '{resume}', if needed with fewer processes."
        ) from problem


def wait_for_all() -> None:
    """Wait until every process has reached this point."""
    if is_distributed():
        dist.barrier()
