"""Several processes that train one run: who is first, how they meet, and where the run lies.

Processes come about in two ways. A launcher (torchrun, SLURM) starts all of them at once; they meet here, before
anything is written. Or Lightning starts the others when training begins; they find the run's folder in their
environment. Either way only the first process reads the flags and makes the folder, and the others read the settings
from there, so that no two can disagree.
"""

import os
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from lightning.fabric.plugins.environments.cluster_environment import ClusterEnvironment
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment

from paucal.types import UserError

RUN_VARIABLE = "PAUCAL_RUN"


def launcher() -> ClusterEnvironment | None:
    """Return the launcher that started this process among others; None where it runs alone or under Lightning."""
    for kind in (TorchElasticEnvironment, SLURMEnvironment):
        if kind.detect():
            environment = kind()
            return environment if environment.world_size() > 1 else None
    return None


def launched_shape() -> tuple[int, int] | None:
    """Return (processes per node, nodes) as the launcher has set them; None without a launcher."""
    environment = launcher()
    if environment is None:
        return None
    world = environment.world_size()
    local = int(os.environ.get("LOCAL_WORLD_SIZE") or os.environ.get("SLURM_NTASKS_PER_NODE") or world)
    return local, world // local


def is_first() -> bool:
    """Return whether this process reads the flags, writes the files and speaks."""
    environment = launcher()
    if environment is not None:
        return environment.global_rank() == 0
    return not (RUN_VARIABLE in os.environ and int(os.environ.get("LOCAL_RANK", 0)) > 0)


def meet() -> None:
    """Join the processes of a launcher; nothing where there is none.

    Both backends are opened: results are gathered on the CPU while gradients travel between GPUs.
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


def announce(make: Callable[[], Path]) -> Path:
    """Make the run's folder and tell the other processes where it is; for the first process.

    They are also told when it fails, so that they end instead of waiting.
    """
    if launcher() is None:
        return make()
    try:
        path = make()
    except BaseException:
        dist.broadcast_object_list([None])
        raise
    dist.broadcast_object_list([str(path)])
    return path


def announced() -> Path:
    """Return where the run's folder is; for every process but the first.

    Raises:
        UserError: the first process could not make it, and says why itself.
    """
    if launcher() is None:
        return Path(os.environ[RUN_VARIABLE])
    heard: list[str | None] = [None]
    dist.broadcast_object_list(heard)
    if heard[0] is None:
        raise UserError("the first process could not begin the run; its message says why.")
    return Path(heard[0])


def lead_children_to(run: Path) -> None:
    """Let the processes that Lightning is going to start find the run."""
    if launcher() is None:
        os.environ[RUN_VARIABLE] = str(run.resolve())


def forget_children() -> None:
    """Take back `lead_children_to`, so that the next run of this program is its own."""
    if launcher() is None and int(os.environ.get("LOCAL_RANK", 0)) == 0:
        os.environ.pop(RUN_VARIABLE, None)


def agreed(said: bool) -> bool:
    """Return what the first process says; every process must ask."""
    if not _joined():
        return said
    heard = [said]
    dist.broadcast_object_list(heard)
    return heard[0]


def first_does(act: Callable[[], None]) -> None:
    """Let the first process act while the others wait, which end where it fails; every process must call it.

    Raises:
        UserError: on the others, where the first process could not, and says why itself.
    """
    if not _joined() or dist.get_rank() == 0:
        try:
            act()
        except BaseException:
            agreed(False)
            raise
    if not agreed(True):
        raise UserError("the first process could not go on with the run; its message says why.")


def _joined() -> bool:
    return dist.is_available() and dist.is_initialized()


def wait_for_all() -> None:
    """Wait until every process has come this far; nothing on a single one."""
    if _joined():
        dist.barrier()
