"""CPU cores: how many this process may use, and how threads wait for each other on shared cores."""

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
# Mount points and files of control groups: version 2, then version 1.
_MOUNTS = ("", "unified", "cpu", "cpu,cpuacct", "cpuacct,cpu")
_QUOTA_FILES = (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us"))

# Environment variables that make threads spin only briefly before they sleep. If another process needs one of their
# cores, two spinning threads take five times as long as one thread. libgomp (torch on Linux) reads the first, in rounds
# of a loop (1000 are about 10 microseconds); libomp (macOS) and Intel's libiomp (Windows, conda) the second, in ms.
SHORT_SPIN = {"GOMP_SPINCOUNT": "1000", "KMP_BLOCKTIME": "0"}
THREADS_VARIABLE = "OMP_NUM_THREADS"
LATE_IMPORT_WARNING = (
    "torch was loaded before paucal: its threads keep their cores busy while they wait, and on a machine with other "
    "work a step takes up to five times as long; import paucal before torch, or set "
    + " and ".join(f"{name}={value}" for name, value in SHORT_SPIN.items())
    + " for the program."
)

MAX_TIME_RATIO = 0.9  # a number of threads is changed only if a step then takes at most this share of the time
SPIN_SECONDS = 0.1  # CPU time of the loop that measures the wait for a core
MIN_OTHER_LOAD = 0.3  # load of other processes, in cores, from which on cores count as shared
_state = {"threads": "", "late": False}  # number of threads that this module set; whether to warn of a late import


def usable_cores() -> int:
    """Return the number of CPU cores that this process may use.

    It is limited by the cores that taskset or SLURM bind the process to, and by the quota of its container, rounded up.
    """
    return max(1, min(_bound_cores(), math.ceil(min(cpu_quota(), 1e6))))


def cpu_quota(membership: Path = _MEMBERSHIP, root: Path = _CGROUP) -> float:
    """Return the number of CPU cores that control groups allow on average; infinity without a limit.

    Args:
        membership: File with the control groups of the process.
        root: Folder in which control groups are mounted.
    """
    try:
        groups = {line.split(":", 2)[-1].lstrip("/") for line in membership.read_text().splitlines()}
    except OSError:  # macOS and Windows
        return math.inf
    # A group is also limited by its parents. In a container the path may be that of the host, which is not mounted;
    # then the group of the container is mounted at `root`.
    folders = {folder for mount in _MOUNTS for group in groups for folder in _and_parents(root / mount, group)}
    return min(map(_quota_of, folders), default=math.inf)


def prepare_threads() -> None:
    """Set environment variables so that OpenMP threads spin briefly, and for their number if a quota limits cores.

    `import paucal` calls this, since the libraries read the variables only once, when torch loads them. Variables that
    the user has set are not changed; child processes inherit them.
    """
    is_set_by_user = any(name in os.environ for name in (*SHORT_SPIN, "OMP_WAIT_POLICY"))
    if "torch" in sys.modules:
        _state["late"] = not is_set_by_user
        return
    if not is_set_by_user:
        os.environ.update(SHORT_SPIN)
    if usable_cores() < _bound_cores() and THREADS_VARIABLE not in os.environ:
        _state["threads"] = os.environ[THREADS_VARIABLE] = str(usable_cores())


def note_late_import() -> None:
    """Log once that threads spin for long, because torch was imported before paucal."""
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
def own_threads() -> Iterator[None]:
    """Limit the number of torch threads to the usable cores within this context, unless the user has set it."""
    import torch

    with threads_restored():
        if not threads_are_given() and torch.get_num_threads() > usable_cores():
            torch.set_num_threads(usable_cores())
        yield


def threads_are_given() -> bool:
    """Return whether the user, or the parent process, has set the number of threads."""
    return os.environ.get(THREADS_VARIABLE, "") not in ("", _state["threads"])


def cores_are_shared() -> bool:
    """Return whether other processes need the cores of this one, or its quota includes a fraction of a core."""
    if cpu_quota() < usable_cores():
        return True
    try:
        load = os.getloadavg()[0]  # average load of the last minute
    except (AttributeError, OSError):  # Windows
        return False
    other_cores = (os.cpu_count() or 1) - usable_cores()  # other processes may use these
    return load - min(1.0, time.process_time() / 60) - other_cores > MIN_OTHER_LOAD


def slowdown() -> float:
    """Measure and return the ratio of a thread's wall time to its CPU time, which is 1 on an idle core."""
    begin, cpu_begin = time.perf_counter(), time.thread_time()
    while (cpu_seconds := time.thread_time() - cpu_begin) < SPIN_SECONDS:
        pass
    return max(1.0, (time.perf_counter() - begin) / cpu_seconds)


def choose_threads(step: Callable[[], object]) -> int:
    """Set and return the number of torch threads with which `step` is fastest, unless the user has set the number.

    The number is halved or doubled as long as that makes the step clearly faster, for which the step is repeated.
    """
    import torch

    best, seconds_by_count = torch.get_num_threads(), dict[int, float]()
    if threads_are_given():
        return best

    def seconds(count: int) -> float:
        torch.set_num_threads(count)
        if count not in seconds_by_count:
            step()  # warm-up with this number of threads
            begin = time.perf_counter()
            step()
            seconds_by_count[count] = time.perf_counter() - begin
        return seconds_by_count[count]

    for move in (lambda count: count // 2, lambda count: 2 * count):
        while 1 <= move(best) <= usable_cores() and seconds(move(best)) < MAX_TIME_RATIO * seconds(best):
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
    for names in _QUOTA_FILES:
        try:
            quota, period = " ".join((folder / name).read_text() for name in names).split()
            if quota.isdecimal() and int(quota) > 0:  # otherwise "max", or -1
                return int(quota) / int(period)
        except (OSError, ValueError, ZeroDivisionError):
            continue
    return math.inf
