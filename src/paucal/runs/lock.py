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
    """An exclusive lock on a folder, held from `acquire` to `release`; messages name it by `what`."""

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
            self._take_over(self.path, claim)
        except BaseException:
            _HELD.discard(self._token)
            raise
        finally:
            claim.unlink(missing_ok=True)
        self._last_beat = time.monotonic()
        threading.Thread(target=self._renew_until_ended, name="run lock", daemon=True).start()

    def release(self) -> None:
        """Release the lock, unless another process holds it by now."""
        self._ended.set()
        _HELD.discard(self._token)
        if _token_in(self.path) == self._token:
            self.path.unlink(missing_ok=True)

    def check(self) -> None:
        """Raise a UserError if another process has taken over the lock, since this one was suspended for long."""
        if time.monotonic() - self._last_beat > 3 * BEAT:  # the process and its thread may have been suspended
            self._renew()
        if self.lost:
            raise UserError(
                f"another process has taken over {self.what} {str(self.folder)!r}, since this one was suspended for "
                f"over {SILENCE:.0f} seconds or its {LOCK} was removed: this one exits, and has written nothing since."
            )

    def _renew_until_ended(self) -> None:
        while not self._ended.wait(BEAT) and not self.lost:
            self._renew()

    def _renew(self) -> None:
        try:
            self.lost = self.lost or _token_in(self.path) != self._token
            if not self.lost:
                os.utime(self.path)
            self._last_beat = time.monotonic()
        except OSError:  # a shared disk may be briefly unavailable
            pass

    def _take_over(self, path: Path, claim: Path) -> None:
        """Link the claim to `path`, if there is no lock or its holder is dead.

        If several processes find the same holder dead, only one may replace it: the first to create a mark with the
        identity of the dead lock. It then renames the mark to the lock in one step, so that there is always a lock. A
        mark of a dead process is taken over in the same way.
        """
        while not _link_unless_there(claim, path):
            holder, lock_identity = _read_holder(path), _file_identity(path)
            if lock_identity is None:
                continue
            if _is_live(path, holder, _modified_at(claim)):
                raise UserError(_in_use_message(self.folder, self.what, holder))
            mark = self.folder / f".{LOCK}.after-{lock_identity}.tmp"
            self._take_over(mark, claim)
            if _file_identity(path) == lock_identity:
                mark.replace(path)
                return
            mark.unlink(missing_ok=True)


@contextmanager
def sole_writer(folder: Path, what: str) -> Iterator[RunLock]:
    """Create a folder of results that take long to write if it is missing, and lock it within the block."""
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
    return path.exists() and _is_live(path, _read_holder(path), time.time(), patient=False)


def names_holder(folder: Path) -> bool:
    """Return whether a folder has a lock that names its holder, who may be dead."""
    return _read_holder(folder / LOCK) is not None


def require_unlocked(folder: Path, what: str = RUN) -> None:
    """Refuse a folder that another process is writing into; nothing is changed."""
    path = folder / LOCK
    if path.exists() and _is_live(path, _read_holder(path), time.time()):
        raise UserError(_in_use_message(folder, what, _read_holder(path)))


def _in_use_message(folder: Path, what: str, holder: Holder | None) -> str:
    holder_text = f"process {holder.pid} on {holder.host}, since {holder.since}" if holder else "another process"
    return (
        f"{what} {str(folder)!r} is being written by {holder_text}: wait for it or stop it first; a process that was "
        f"killed counts as ended after {SILENCE:.0f} seconds."
    )


def _is_live(path: Path, holder: Holder | None, now: float, patient: bool = True) -> bool:
    """Return whether a lock's holder is alive; `patient` waits for its next renewal if necessary."""
    try:
        is_silent = now - _modified_at(path) > SILENCE
    except FileNotFoundError:
        return False
    if holder is None or holder.space != process_space():
        return not is_silent
    if holder.pid == os.getpid():
        return holder.token in _HELD
    return is_running(holder.pid) and (not is_silent or (patient and _is_renewed(path)))


def _is_renewed(path: Path) -> bool:
    """Wait for the next renewal of a lock, and return whether it came.

    A live holder may look silent after a jump of the clock or after its machine was asleep.
    """
    identity, end = _file_identity(path), time.monotonic() + 1.5 * BEAT
    while time.monotonic() < end:
        if _file_identity(path) != identity:
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


def _read_holder(path: Path) -> Holder | None:
    """Return the holder stored in a lock; None if it is missing, incomplete or foreign."""
    try:
        content = json.loads(read_text(path, 1 << 16, errors="replace"))
        return Holder(*(kind(content[name]) for name, kind in Holder.__annotations__.items()))
    except (OSError, UserError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _token_in(path: Path) -> str | None:
    holder = _read_holder(path)
    return None if holder is None else holder.token


def _file_identity(path: Path) -> str | None:
    """Return the unique identity of a lock file; None if it does not exist."""
    try:
        state = path.stat()
    except FileNotFoundError:
        return None
    return f"{state.st_ino}-{state.st_mtime_ns}"


def _link_unless_there(source: Path, path: Path) -> bool:
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


def _modified_at(path: Path) -> float:
    return path.stat().st_mtime


def process_space() -> str:
    """Return the scope in which a process id is unique: boot of the machine, and container."""
    parts = [socket.gethostname()]
    for read_part in (
        lambda: Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        lambda: os.readlink("/proc/self/ns/pid"),
    ):
        try:
            parts.append(read_part())
        except OSError:
            continue
    return " ".join(parts)
