"""Locks on folders: a file in the folder names the writing process, which keeps renewing the file's modification time.

This works for several machines with a shared disk: the file is created by a hard link, so that only one process can
succeed, and its age is measured by the clock of the disk. A process that ends without releasing its lock (SIGKILL, a
power cut) counts as dead at once on its own machine, and on other machines after a time without a renewal.
"""

import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from paucal.reading import read_text
from paucal.types import UserError

LOCK = "lock.json"
RUN = "the run"
BEAT = 10.0  # seconds between two renewals of the lock
SILENCE = 60.0  # seconds without a renewal after which the holder counts as dead
_HELD: set[str] = set()  # tokens of the locks of this process


@dataclass(frozen=True)
class Holder:
    """The holder of a lock: a process, its machine and boot, and the start time."""

    token: str
    pid: int
    host: str
    space: str
    since: str


class RunLock:
    """An exclusive lock on a folder, held from `acquire` to `release`.

    Args:
        folder: Folder of a run, or of other results that take long to write.
        what: Kind of folder, for messages.
    """

    def __init__(self, folder: Path, what: str = RUN) -> None:
        self.folder = folder
        self.what = what
        self.path = folder / LOCK
        self.lost = False
        self._token = uuid.uuid4().hex
        self._ended = threading.Event()
        self._last_beat = 0.0

    def acquire(self) -> None:
        """Acquire the lock."""
        claim = self.folder / f".{LOCK}.{self._token}.tmp"
        since = time.strftime("%Y-%m-%d %H:%M:%S")
        holder = Holder(self._token, os.getpid(), socket.gethostname(), process_space(), since)
        _HELD.add(self._token)  # before other threads see the claim, and think that its process is dead
        try:
            claim.write_text(json.dumps(asdict(holder)))
            self._seize(self.path, claim)
        except BaseException:
            _HELD.discard(self._token)
            raise
        finally:
            claim.unlink(missing_ok=True)
        self._last_beat = time.monotonic()
        threading.Thread(target=self._live, name="run lock", daemon=True).start()

    def release(self) -> None:
        """Release the lock, unless another process holds it by now."""
        self._ended.set()
        _HELD.discard(self._token)
        if _token_in(self.path) == self._token:
            self.path.unlink(missing_ok=True)

    def check(self) -> None:
        """Raise a UserError if another process has taken over the lock.

        Raises:
            UserError: Another process holds it, since this one was suspended for long.
        """
        if time.monotonic() - self._last_beat > 3 * BEAT:  # the process and its thread may have been suspended
            self._beat()
        if self.lost:
            raise UserError(
                f"another process has taken over {self.what} {str(self.folder)!r} while this one was stopped for over "
                f"{SILENCE:.0f} seconds, or its {LOCK} was removed: this one ends, and has written nothing since then."
            )

    def _live(self) -> None:
        while not self._ended.wait(BEAT) and not self.lost:
            self._beat()

    def _beat(self) -> None:
        try:
            self.lost = self.lost or _token_in(self.path) != self._token
            if not self.lost:
                os.utime(self.path)
            self._last_beat = time.monotonic()
        except OSError:  # a shared disk may be briefly unavailable
            pass

    def _seize(self, path: Path, claim: Path) -> None:
        """Link the claim to `path`, if there is no lock or its holder is dead.

        If several processes find the same holder dead, only one may replace it: the first to create a mark with the
        identity of the dead lock. It then renames the mark to the lock in one step, so that there is always a lock. A
        mark of a dead process is taken over in the same way.
        """
        while not _link(claim, path):
            held, found = _holder(path), _identity(path)
            if found is None:
                continue
            if _is_live(path, held, _modified(claim)):
                raise UserError(_in_use(self.folder, self.what, held))
            mark = self.folder / f".{LOCK}.after-{found}.tmp"
            self._seize(mark, claim)
            if _identity(path) == found:
                mark.replace(path)
                return
            mark.unlink(missing_ok=True)


@contextmanager
def sole_writer(folder: Path, what: str) -> Iterator[RunLock]:
    """Create a folder if it is missing, and lock it within the block.

    Args:
        folder: Folder of results that take long to write.
        what: Kind of folder, for messages.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = RunLock(folder, what)
    lock.acquire()
    try:
        yield lock
    finally:
        lock.release()


def is_locked(folder: Path) -> bool:
    """Return without waiting whether a process is writing into a folder; nothing is changed.

    After a jump of the clock, a live holder counts as dead until its next renewal.
    """
    path = folder / LOCK
    return path.exists() and _is_live(path, _holder(path), time.time(), patient=False)


def names_holder(folder: Path) -> bool:
    """Return whether a folder has a lock that names its holder, who may be dead."""
    return _holder(folder / LOCK) is not None


def require_unlocked(folder: Path, what: str = RUN) -> None:
    """Refuse a folder that another process is writing into; nothing is changed."""
    path = folder / LOCK
    if path.exists() and _is_live(path, _holder(path), time.time()):
        raise UserError(_in_use(folder, what, _holder(path)))


def _in_use(folder: Path, what: str, held: Holder | None) -> str:
    who = f"process {held.pid} on {held.host}, since {held.since}" if held else "another process"
    return (
        f"{what} {str(folder)!r} is being written by {who}: wait for it or stop it first; a process that was "
        f"killed counts as ended after {SILENCE:.0f} seconds."
    )


def _is_live(path: Path, held: Holder | None, now: float, patient: bool = True) -> bool:
    """Return whether a lock's holder is alive; `patient` waits for its next renewal if necessary."""
    try:
        silent = now - _modified(path) > SILENCE
    except FileNotFoundError:
        return False
    if held is None or held.space != process_space():
        return not silent
    if held.pid == os.getpid():
        return held.token in _HELD
    return is_running(held.pid) and (not silent or (patient and _is_renewed(path)))


def _is_renewed(path: Path) -> bool:
    """Wait for the next renewal of a lock, and return whether it came.

    A live holder may look silent after a jump of the clock or after its machine was asleep.
    """
    before, end = _identity(path), time.monotonic() + 1.5 * BEAT
    while time.monotonic() < end:
        if _identity(path) != before:
            return path.exists()
        time.sleep(0.05 * BEAT)
    return False


def is_running(pid: int) -> bool:
    """Return whether a process of this machine runs; True if unknown."""
    if os.name != "posix":  # other systems have no harmless signal
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


def _holder(path: Path) -> Holder | None:
    """Return the holder stored in a lock; None if it is missing, incomplete or foreign."""
    try:
        content = json.loads(read_text(path, 1 << 16, errors="replace"))
        return Holder(*(kind(content[name]) for name, kind in Holder.__annotations__.items()))
    except (OSError, UserError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _token_in(path: Path) -> str | None:
    held = _holder(path)
    return None if held is None else held.token


def _identity(path: Path) -> str | None:
    """Return the unique identity of a lock file; None if it does not exist."""
    try:
        state = path.stat()
    except FileNotFoundError:
        return None
    return f"{state.st_ino}-{state.st_mtime_ns}"


def _link(source: Path, path: Path) -> bool:
    """Link `path` to the file `source`, unless it exists; return whether it was linked."""
    try:
        os.link(source, path)
        return True
    except FileExistsError:
        return False
    except OSError:  # this disk has no hard links
        pass
    try:
        with path.open("xb") as file:
            file.write(source.read_bytes())
        return True
    except FileExistsError:
        return False


def _modified(path: Path) -> float:
    return path.stat().st_mtime


def process_space() -> str:
    """Return the scope in which a process id is unique: boot of the machine, and container."""
    parts = [socket.gethostname()]
    for read in (
        lambda: Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        lambda: os.readlink("/proc/self/ns/pid"),
    ):
        try:
            parts.append(read())
        except OSError:
            continue
    return " ".join(parts)
