"""CPU cores: how many cores this process may use, and how threads wait for each other on shared cores."""

import logging
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

log = logging.getLogger("paucal")

# File that lists the control groups of this process, and folder in which control groups are mounted.
_MEMBERSHIP, _CGROUP = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")
# Subfolders where control groups may be mounted, and quota files in a group's folder: version 2, then version 1.
_MOUNT_FOLDERS = ("", "unified", "cpu", "cpu,cpuacct", "cpuacct,cpu")
_QUOTA_FILES = (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us"))

# Environment variables that make waiting threads spin only briefly before they sleep. If another process needs one of
# two cores, two spinning threads take five times as long as one thread. libgomp (torch on Linux) reads GOMP_SPINCOUNT,
# in loop iterations (1000 take about 10 microseconds). libomp (macOS) and Intel's libiomp (Windows, conda) read
# KMP_BLOCKTIME, in milliseconds.
SHORT_SPIN = {"GOMP_SPINCOUNT": "1000", "KMP_BLOCKTIME": "0"}
THREADS_VARIABLE = "OMP_NUM_THREADS"
LATE_IMPORT_WARNING = (
    "torch was imported before paucal, so torch's threads spin while they wait. If other programs are running, a "
    "training step can take up to five times as long. Import paucal before torch, or set "
    + " and ".join(f"{name}={value}" for name, value in SHORT_SPIN.items())
    + " for the program."
)

MAX_TIME_RATIO = 0.9  # a change of the number of threads must reduce the time of a step to at most this fraction
SPIN_SECONDS = 0.1  # CPU time of the busy loop in `measure_slowdown`
MIN_OTHER_LOAD = 0.3  # cores count as shared if other processes use more than this number of cores
# The number of threads that this module has set, as text, and whether to warn that torch was imported too early.
_state = {"threads": "", "late": False}


def count_usable_cores() -> int:
    """Return the number of CPU cores that this process may use.

    This is the number of cores that taskset or SLURM bind the process to, or the CPU quota of its container (rounded
    up) if the quota is lower.
    """
    return max(1, min(_count_bound_cores(), math.ceil(min(read_cpu_quota(), 1e6))))


def read_cpu_quota(membership: Path = _MEMBERSHIP, root: Path = _CGROUP) -> float:
    """Return the average number of CPU cores that control groups allow this process; infinity if there is no limit."""
    try:
        groups = {line.split(":", 2)[-1].lstrip("/") for line in membership.read_text().splitlines()}
    except OSError:  # macOS and Windows
        return math.inf
    # A group is also limited by its parent groups. Inside a container, the listed path may be the host's path, which is
    # not mounted; the container's own group is then mounted at `root`.
    folders = {
        folder
        for mount in (root / name for name in _MOUNT_FOLDERS)
        for group in groups
        for folder in (mount / group, *(mount / group).parents)
        if folder.is_relative_to(mount)
    }
    return min(map(_read_quota, folders), default=math.inf)


def prepare_threads() -> None:
    """Set environment variables that make OpenMP threads spin only briefly and, under a CPU quota, limit their number.

    `import paucal` calls this function, since OpenMP libraries read the variables only once, when torch loads the
    libraries. Variables that the user has set are not changed. Child processes inherit all of these variables.
    """
    is_set_by_user = any(name in os.environ for name in (*SHORT_SPIN, "OMP_WAIT_POLICY"))
    if "torch" in sys.modules:
        _state["late"] = not is_set_by_user
        return
    if not is_set_by_user:
        os.environ.update(SHORT_SPIN)
    if count_usable_cores() < _count_bound_cores() and THREADS_VARIABLE not in os.environ:
        _state["threads"] = os.environ[THREADS_VARIABLE] = str(count_usable_cores())


def warn_of_late_import() -> None:
    """Log a warning, once, that threads spin for a long time because torch was imported before paucal."""
    import torch

    if _state["late"] and torch.get_num_threads() > 1:
        log.warning(LATE_IMPORT_WARNING)
    _state["late"] = False


@contextmanager
def threads_restored() -> Iterator[None]:
    """Restore the number of torch threads at the end of this context."""
    import torch

    before = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def limited_threads() -> Iterator[None]:
    """Limit the number of torch threads to the usable cores within this context, unless the user has set the number."""
    import torch

    with threads_restored():
        if not is_thread_count_set() and torch.get_num_threads() > count_usable_cores():
            torch.set_num_threads(count_usable_cores())
        yield


def is_thread_count_set() -> bool:
    """Return whether the user, or the parent process, has set the number of threads."""
    return os.environ.get(THREADS_VARIABLE, "") not in ("", _state["threads"])


def cores_are_shared() -> bool:
    """Return whether other processes compete for this process's cores, or the CPU quota is not a whole number."""
    if read_cpu_quota() < count_usable_cores():
        return True
    try:
        load = os.getloadavg()[0]  # average load of the last minute
    except (AttributeError, OSError):  # Windows
        return False
    other_cores = (os.cpu_count() or 1) - count_usable_cores()  # cores that only other processes use
    return load - min(1.0, time.process_time() / 60) - other_cores > MIN_OTHER_LOAD


def measure_slowdown() -> float:
    """Measure and return the ratio of a busy thread's wall time to its CPU time; the ratio is 1 on an idle core."""
    begin, cpu_begin = time.perf_counter(), time.thread_time()
    while (cpu_seconds := time.thread_time() - cpu_begin) < SPIN_SECONDS:
        pass
    return max(1.0, (time.perf_counter() - begin) / cpu_seconds)


def choose_threads(step: Callable[[], object]) -> int:
    """Set and return the number of torch threads with which `step` is fastest, unless the user has set the number.

    The number is halved, or doubled, as long as that makes the step clearly faster. Each number that is tried costs
    two calls of `step`; only the second call is timed.
    """
    import torch

    best, seconds_by_count = torch.get_num_threads(), dict[int, float]()
    if is_thread_count_set():
        return best

    def measure_step(count: int) -> float:
        torch.set_num_threads(count)
        if count not in seconds_by_count:
            step()  # warm-up with this number of threads
            begin = time.perf_counter()
            step()
            seconds_by_count[count] = time.perf_counter() - begin
        return seconds_by_count[count]

    for move in (lambda count: count // 2, lambda count: 2 * count):
        while 1 <= move(best) <= count_usable_cores() and measure_step(move(best)) < MAX_TIME_RATIO * measure_step(
            best
        ):
            best = move(best)
    torch.set_num_threads(best)
    return best


def _count_bound_cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except (AttributeError, OSError):  # macOS and Windows
        return os.cpu_count() or 1


def _read_quota(folder: Path) -> float:
    for names in _QUOTA_FILES:
        try:
            quota, period = " ".join((folder / name).read_text() for name in names).split()
            if quota.isdecimal() and int(quota) > 0:  # otherwise "max", or -1
                return int(quota) / int(period)
        except (OSError, ValueError, ZeroDivisionError):
            continue
    return math.inf
