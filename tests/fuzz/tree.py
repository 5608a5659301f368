"""Watches a child and all its own children: how long, how much memory, whether it waits for nothing."""

import contextlib
import os
import resource
import signal
import time
from pathlib import Path
from typing import TypedDict

LOOK = 0.1  # seconds between two looks at memory
GRACE = 10.0  # seconds to end after an interrupt
TICKS = os.sysconf("SC_CLK_TCK")


class Limits(TypedDict):
    """What a call may use.

    Attributes:
        busy: seconds of processor time after which it is interrupted.
        idle: seconds without any processor time after which it counts as hung.
        memory: bytes of all its processes.
        processes: how many.
    """

    busy: float
    idle: float
    memory: int
    processes: int


class Tree:
    """A child that leads a session; `look` returns its status once all is over.

    Attributes:
        why: what it was stopped for: "", "busy", "idle", "memory", "processes" or "deaf" (to an interrupt).
    """

    def __init__(self, child: int, limits: Limits) -> None:
        self.child, self.limits, self.why = child, limits, ""
        self._next, self._moved, self._interrupted = time.monotonic() + LOOK, time.monotonic(), 0.0
        self._busy = 0.0

    def look(self) -> int | None:
        """Return the child's status as of `os.waitpid`, or None while it runs."""
        done, status = os.waitpid(self.child, os.WNOHANG)
        if done:
            self._kill()
            return status
        now = time.monotonic()
        if now >= self._next:
            self._next = now + LOOK
            self._check(now)
        return None

    def _check(self, now: float) -> None:
        processes = _descendants(self.child)
        busy, memory = map(sum, zip(*map(_use, processes), strict=True))
        if memory > self.limits["memory"]:  # perhaps pages that forks share are only counted often
            memory = sum(map(_own_memory, processes))
        if busy > self._busy:
            self._busy, self._moved = busy, now
        if memory > self.limits["memory"] or len(processes) > self.limits["processes"]:
            self.why = "memory" if memory > self.limits["memory"] else "processes"
            self._dump()
            self._kill()
        elif self._interrupted and now > self._interrupted + GRACE:
            self.why = "deaf"
            self._dump()
            self._kill()
        elif not self._interrupted and (busy > self.limits["busy"] or now > self._moved + self.limits["idle"]):
            self.why = "busy" if busy > self.limits["busy"] else "idle"
            self._dump()
            os.kill(self.child, signal.SIGINT)
            self._interrupted = now

    def interrupt(self) -> None:
        """Ask the child to end, as a person does with Ctrl-C."""
        if not self._interrupted:
            os.kill(self.child, signal.SIGINT)
            self._interrupted = time.monotonic()

    def _dump(self) -> None:
        """Let the child write where it is."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.child, signal.SIGUSR1)
        time.sleep(LOOK)

    def _kill(self) -> None:
        for process in _descendants(self.child)[1:]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.child, signal.SIGKILL)


def _descendants(process: int) -> list[int]:
    found = [process]
    for one in found:
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{one}/task").iterdir():
                found += map(int, (task / "children").read_text().split())
    return found


def _use(process: int) -> tuple[float, int]:
    """Return seconds of processor time, and bytes of memory with those that it shares with its parent."""
    with contextlib.suppress(OSError, IndexError):
        stat = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        resident, shared = Path(f"/proc/{process}/statm").read_text().split()[1:3]
        return (int(stat[11]) + int(stat[12])) / TICKS, (int(resident) - int(shared)) * resource.getpagesize()
    return 0.0, 0


def _own_memory(process: int) -> int:
    """Return bytes of memory, of what several share a part."""
    with contextlib.suppress(OSError):
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
    return 0
