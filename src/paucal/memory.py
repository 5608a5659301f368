"""Free memory, peak memory of this process, out-of-memory errors, and allocator settings that keep freed memory."""

import ctypes
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

# Parts of the messages of out-of-memory errors that are plain RuntimeErrors. The last part is from CUDA libraries
# (CUBLAS_STATUS_ALLOC_FAILED).
_OUT_OF_MEMORY_TEXTS = ("out of memory", "can't allocate memory", "not enough memory", "_status_alloc_failed")
_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")
_ASSUMED_MEMORY = 4 << 30  # bytes of memory on systems that do not report their memory

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # constants of glibc's malloc.h
# glibc's default values. For the trim threshold, this is the largest value that glibc chooses automatically.
_DEFAULT_OPTIONS = {_MMAP_MAX: 65536, _TRIM_THRESHOLD: 64 << 20}
_KEEPING_OPTIONS = {_MMAP_MAX: 0, _TRIM_THRESHOLD: 2**31 - 1}  # never return freed memory to the system
_state = {"is_keeping": False}  # whether `keep_freed_memory` is active
# Environment variables with which users configure glibc's allocator.
_USER_VARIABLES = ("MALLOC_MMAP_MAX_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


def is_out_of_memory(problem: BaseException) -> bool:
    """Return whether an exception is an out-of-memory error."""
    import torch  # imported late, since commands that only print do not need torch

    if isinstance(problem, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(problem, RuntimeError) and any(text in str(problem).lower() for text in _OUT_OF_MEMORY_TEXTS)


def read_available_memory() -> int:
    """Return the number of bytes of free memory, within the memory limit of the container if there is one."""
    limits: list[int] = []
    with suppress(OSError):
        lines = _MEMINFO.read_text().splitlines()
        limits += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")][:1]
    with suppress(OSError, ValueError):
        limit = (_CGROUP / "memory.max").read_text().strip()
        used = int((_CGROUP / "memory.current").read_text())
        counts = dict(line.split() for line in (_CGROUP / "memory.stat").read_text().splitlines())
        # Cached pages of recently read files count as used, but the kernel frees them on demand.
        used -= int(counts.get("inactive_file", 0))
        if limit.isdigit():
            limits.append(max(int(limit) - used, 0))
    if limits:
        return min(limits)
    try:  # half of the physical memory, on systems that do not report free memory (macOS)
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    except (AttributeError, ValueError, OSError):
        return _ASSUMED_MEMORY


def peak_memory(device: str) -> int | None:
    """Return the peak GPU or main memory of this process in bytes; None if the system does not report it (Windows)."""
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
def keep_freed_memory() -> Iterator[None]:
    """Within this context, the process keeps freed memory for later allocations; unused memory is returned at the end.

    glibc returns every large block to the system as soon as the block is freed. A network on the CPU frees and
    allocates hundreds of large blocks in each step, and the system clears every page again. This can take two
    thirds of the time of a prediction. The context has no effect without glibc (macOS, Windows, musl), if the user has
    set an environment variable of glibc's allocator, or inside another such context.
    """
    mallopt = (
        None
        if _state["is_keeping"] or any(name in os.environ for name in _USER_VARIABLES)
        else _glibc_function("mallopt")
    )
    if mallopt is None:
        yield
        return
    for name, value in _KEEPING_OPTIONS.items():
        mallopt(name, value)
    _state["is_keeping"] = True
    try:
        yield
    finally:
        _state["is_keeping"] = False
        for name, value in _DEFAULT_OPTIONS.items():
            mallopt(name, value)
        if (trim := _glibc_function("malloc_trim")) is not None:
            trim(0)


def _glibc_function(name: str) -> Callable[..., int] | None:
    if sys.platform != "linux":
        return None
    try:
        return getattr(ctypes.CDLL("libc.so.6"), name)
    except (OSError, AttributeError):  # another C library
        return None
