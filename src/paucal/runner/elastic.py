"""Resuming a run with another number of processes, so that every optimizer step keeps its images.

The order of images in a pass depends on (seed, epoch), and a step takes the next images, however many processes share
them. So only the division of a step's images among processes changes.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment

from paucal.runner.processes import launched_shape
from paucal.settings.groups import JobSettings
from paucal.types import UserError
from paucal.wording import counted

S = TypeVar("S", bound=JobSettings)


def shape_of(changes: Mapping[str, Any], settings: JobSettings) -> tuple[int, int]:
    """Return (processes per node, nodes) of a resumed run: as given, else as launched, else as stored."""
    single_process = (1, 1) if TorchElasticEnvironment.detect() else None  # torchrun started a single process
    devices, nodes = launched_shape() or single_process or (settings.devices, settings.nodes)
    return changes.get("devices", devices), changes.get("nodes", nodes)


def with_processes(settings: S, devices: int, nodes: int) -> tuple[S, dict[str, str]]:
    """Return settings for another number of processes with the same images per optimizer step, and the reasons.

    A process takes at most as many images per forward pass as before, since more might not fit in its memory. It takes
    more passes per step instead.
    """
    batch, processes = settings.effective_batch, devices * nodes
    share, remainder = divmod(batch, processes)
    if remainder or not share:
        divisors = [n for n in range(1, batch + 1) if batch % n == 0]
        nearest = sorted(sorted(divisors, key=lambda n: abs(n - processes))[:2])
        raise UserError(
            f"{counted(processes, 'process', 'processes')} cannot share the {counted(batch, 'image')} of a step of "
            f"this run equally: resume it with {' or '.join(map(str, nearest))}."
        )
    size = max(n for n in range(1, min(share, settings.images_per_pass) + 1) if share % n == 0)
    text = f"{counted(processes, 'process shares', 'processes share')} the {batch} images of a step"
    strategy = "auto" if processes == 1 else settings.strategy if settings.strategy == "fsdp" else "ddp"
    new_settings: dict[str, Any] = {"devices": devices, "nodes": nodes, "strategy": strategy}
    new_settings |= {"batch_size": size, "accumulate": share // size}
    return replace(settings, **new_settings), dict.fromkeys(new_settings, f"resumed: {text}")
