"""How much of the machine this process may take: memory and processor cores."""

import os
import sys
from pathlib import Path

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")
_UNKNOWN = 4 << 30  # what is assumed on systems that do not say


def available_memory() -> int:
    """Return the bytes of memory that are free for use, within the limit of a container if there is one."""
    limits = [value for value in (_from_meminfo(), _from_cgroup()) if value is not None]
    return min(limits) if limits else _from_sysconf()


def usable_cores() -> int:
    """Return the processor cores that this process may run on, which taskset, SLURM and containers make fewer."""
    try:
        return max(1, len(os.sched_getaffinity(0)))
    except (AttributeError, OSError):  # macOS and Windows
        return os.cpu_count() or 1


def peak_memory(device: str) -> int | None:
    """Return the bytes that this process has taken at most: of its GPU where it computes on one, else of the machine.

    None where the system does not say (Windows).
    """
    import torch  # here: who counts cores needs no more than a moment

    if device.startswith("cuda") and torch.cuda.is_available():
        return int(torch.cuda.max_memory_allocated())
    try:
        import resource
    except ImportError:
        return None
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def _from_meminfo() -> int | None:
    try:
        lines = _MEMINFO.read_text().splitlines()
    except OSError:
        return None
    found = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    return found[0] if found else None


def _from_cgroup() -> int | None:
    try:
        limit = (_CGROUP / "memory.max").read_text().strip()
        used = int((_CGROUP / "memory.current").read_text())
        counts = dict(line.split() for line in (_CGROUP / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return None
    # Files that were read lately count as used, but the kernel gives their pages up on demand.
    used -= int(counts.get("inactive_file", 0))
    return max(int(limit) - used, 0) if limit.isdigit() else None


def _from_sysconf() -> int:
    """Take half of the physical memory where the free part is unknown (macOS)."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    except (AttributeError, ValueError, OSError):
        return _UNKNOWN
