"""CPU cores: the number that this process may use, and the waiting of threads on shared cores."""

import logging
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

log = logging.getLogger("paucal")

_MEMBERSHIP, _CGROUP = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")
_MOUNTS = ("", "unified", "cpu", "cpu,cpuacct", "cpuacct,cpu")  # mount points of version 2, then of version 1
_LIMITS = (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us"))  # files of version 2, then of version 1

# If another process needs one of their cores, two threads that wait by spinning take five times as long as one thread.
# libgomp comes with torch on Linux and reads the first name, in rounds of a loop (about 10 microseconds). LLVM's libomp
# (macOS) and Intel's libiomp (Windows, conda) read the second, in milliseconds.
SHORT_SPIN = {"GOMP_SPINCOUNT": "1000", "KMP_BLOCKTIME": "0"}
THREADS = "OMP_NUM_THREADS"
LATE = (
    "torch was loaded before paucal: its threads keep their cores busy while they wait, and on a machine with other "
    "work a step takes up to five times as long; import paucal before torch, or set "
    + " and ".join(f"{name}={value}" for name, value in SHORT_SPIN.items())
    + " for the program."
)

QUICKER = 0.9  # a step must take at most this share of its time to change the number of threads
SAMPLE = 0.1  # CPU seconds of work for measuring the wait for a core
BUSY = 0.3  # smallest load of other processes, in cores, for measuring the best number of threads
_state = {"threads": "", "late": False}  # number of threads set by this module, and whether LATE applies


def usable_cores() -> int:
    """Return the number of CPU cores this process may use: the cores it is bound to, within its container's quota.

    taskset and SLURM bind processes. A fraction of a core counts as one, since one thread cannot use a quota of 1.5.
    """
    return max(1, min(_bound_cores(), math.ceil(min(cpu_quota(), 1e6))))


def cpu_quota(membership: Path = _MEMBERSHIP, root: Path = _CGROUP) -> float:
    """Return the number of CPU cores that control groups allow on average; infinity if there is no limit.

    The file `membership` names the groups of the process, which are mounted in the folder `root`.
    """
    try:
        groups = {line.split(":", 2)[-1].lstrip("/") for line in membership.read_text().splitlines()}
    except OSError:  # macOS and Windows
        return math.inf
    # A group is also limited by its parents. In a container the path may be the one on the host, which is not mounted;
    # the container's own group is mounted at the top.
    folders = {folder for mount in _MOUNTS for group in groups for folder in _and_parents(root / mount, group)}
    return min(map(_quota_of, folders), default=math.inf)


def prepare_threads() -> None:
    """Set the waiting of OpenMP's threads, and their number if a quota limits the cores.

    Called by `import paucal`, since the libraries read these variables once, when torch loads them. Variables that
    the user has set stay, and processes that this one starts inherit them.
    """
    given = any(name in os.environ for name in (*SHORT_SPIN, "OMP_WAIT_POLICY"))
    if "torch" in sys.modules:
        _state["late"] = not given
        return
    if not given:
        os.environ.update(SHORT_SPIN)
    if usable_cores() < _bound_cores() and THREADS not in os.environ:
        _state["threads"] = os.environ[THREADS] = str(usable_cores())


def note_late_import() -> None:
    """Log once that the waiting of threads could not be set, because torch was imported before paucal."""
    import torch

    if _state["late"] and torch.get_num_threads() > 1:
        log.warning(LATE)
    _state["late"] = False


@contextmanager
def threads_restored() -> Iterator[None]:
    """Restore the number of torch's threads after the block."""
    import torch

    before = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def own_threads() -> Iterator[None]:
    """Limit torch's threads to the usable cores inside the block, and restore their number after it."""
    import torch

    with threads_restored():
        if not threads_are_given() and torch.get_num_threads() > usable_cores():
            torch.set_num_threads(usable_cores())
        yield


def threads_are_given() -> bool:
    """Return whether the user, or the program that started this one, has set the number of threads."""
    return os.environ.get(THREADS, "") not in ("", _state["threads"])


def cores_are_shared() -> bool:
    """Return whether other programs use this process's cores, or a quota gives it only a fraction of a core."""
    if cpu_quota() < usable_cores():
        return True
    try:
        load = os.getloadavg()[0]  # average load of the last minute
    except (AttributeError, OSError):  # Windows
        return False
    idle = (os.cpu_count() or 1) - usable_cores()  # other processes may use the remaining cores
    return load - min(1.0, time.process_time() / 60) - idle > BUSY


def slowdown() -> float:
    """Return the current ratio of a thread's wall time to its time on a core of its own."""
    begin, cpu_begin = time.perf_counter(), time.thread_time()
    while (cpu_seconds := time.thread_time() - cpu_begin) < SAMPLE:
        pass
    return max(1.0, (time.perf_counter() - begin) / cpu_seconds)


def choose_threads(step: Callable[[], object]) -> int:
    """Set and return the number of torch threads with which a step is quickest; the step may be repeated.

    The number is halved or doubled as long as that makes the step clearly quicker.
    """
    import torch

    best, known = torch.get_num_threads(), dict[int, float]()
    if threads_are_given():
        return best

    def seconds(count: int) -> float:
        torch.set_num_threads(count)
        if count not in known:
            step()  # warm-up with this number of threads
            begin = time.perf_counter()
            step()
            known[count] = time.perf_counter() - begin
        return known[count]

    for move in (lambda count: count // 2, lambda count: 2 * count):
        while 1 <= move(best) <= usable_cores() and seconds(move(best)) < QUICKER * seconds(best):
            best = move(best)
    torch.set_num_threads(best)
    return best


def _bound_cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except (AttributeError, OSError):  # macOS and Windows
        return os.cpu_count() or 1


def _and_parents(mount: Path, group: str) -> list[Path]:
    folder = mount / group
    return [folder, *(parent for parent in folder.parents if parent.is_relative_to(mount))]


def _quota_of(folder: Path) -> float:
    for names in _LIMITS:
        try:
            quota, period = " ".join((folder / name).read_text() for name in names).split()
            if quota.isdecimal() and int(quota) > 0:  # otherwise "max", or -1
                return int(quota) / int(period)
        except (OSError, ValueError, ZeroDivisionError):
            continue
    return math.inf
