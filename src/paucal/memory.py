"""The memory that is available to this process."""

import ctypes
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

# Messages of allocators; only CUDA's has its own exception class. The last is from CUDA libraries, which allocate
# memory themselves (CUBLAS_STATUS_ALLOC_FAILED).
_WORDS = ("out of memory", "can't allocate memory", "not enough memory", "_status_alloc_failed")
_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")
_UNKNOWN = 4 << 30  # bytes assumed on systems that do not report their memory

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # constants of glibc's malloc.h
_USUAL = {_MMAP_MAX: 65536, _TRIM_THRESHOLD: 64 << 20}  # the second is the limit of glibc's automatic adjustment
_KEPT = {_MMAP_MAX: 0, _TRIM_THRESHOLD: 2**31 - 1}
_inside: list[bool] = []  # not empty inside `kept_memory`
_ASKED = ("MALLOC_MMAP_MAX_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


def is_out_of_memory(problem: BaseException) -> bool:
    """Return whether an exception is an out-of-memory error."""
    import torch  # imported late, since verbs that only print do not need it

    if isinstance(problem, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(problem, RuntimeError) and any(words in str(problem).lower() for words in _WORDS)


def available_memory() -> int:
    """Return the bytes of free memory, within the limit of a container if there is one."""
    limits = [value for value in (_from_meminfo(), _from_cgroup()) if value is not None]
    return min(limits) if limits else _from_sysconf()


def peak_memory(device: str) -> int | None:
    """Return the peak memory of this process in bytes, of its GPU if it uses one, else of the machine.

    Returns None if the system does not report it (Windows).
    """
    import torch  # imported late, since free memory is also read without torch

    if device.startswith("cuda") and torch.cuda.is_available():
        return int(torch.cuda.max_memory_allocated())
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


@contextmanager
def kept_memory() -> Iterator[None]:
    """Let the process keep freed memory for its next allocations, and return it to the system at the end.

    glibc returns every large block to the system when it is freed. A network on the CPU frees and allocates hundreds of
    them in each step, and the system clears every page anew, which takes up to two thirds of the time of a prediction.
    Other systems (macOS, Windows, musl) are unaffected, and so is a process with glibc's own variables set. Of nested
    contexts only the outermost has an effect.
    """
    tune = None if _inside or any(name in os.environ for name in _ASKED) else _glibc_function("mallopt")
    if tune is None:
        yield
        return
    for name, value in _KEPT.items():
        tune(name, value)
    _inside.append(True)
    try:
        yield
    finally:
        _inside.clear()
        for name, value in _USUAL.items():
            tune(name, value)
        if (trim := _glibc_function("malloc_trim")) is not None:
            trim(0)


def _glibc_function(name: str) -> Callable[..., int] | None:
    if sys.platform != "linux":
        return None
    try:
        return getattr(ctypes.CDLL("libc.so.6"), name)
    except (OSError, AttributeError):  # another C library
        return None


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
    # Cached pages of recently read files count as used, but the kernel frees them on demand.
    used -= int(counts.get("inactive_file", 0))
    return max(int(limit) - used, 0) if limit.isdigit() else None


def _from_sysconf() -> int:
    """Return half of the physical memory, for systems where the free part is unknown (macOS)."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    except (AttributeError, ValueError, OSError):
        return _UNKNOWN
