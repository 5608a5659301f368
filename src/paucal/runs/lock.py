"""Locks on folders: a lock file in the folder names the writing process, which keeps updating the file's timestamp.

The locks work for several machines with a shared disk. The lock file is created by a hard link, so that only one
process can succeed, and the age of the lock file is measured by the clock of the disk. If a process ends without
releasing its lock (SIGKILL, power failure), processes on the same machine can take over the lock at once. Processes on
other machines can take over the lock after it has not been renewed for a while.
"""

import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from paucal.reading import read_text
from paucal.types import UserError

LOCK_FILE = "lock.json"
RUN_NOUN = "the run"  # words before the path of a locked run folder in messages
RENEWAL_SECONDS = 10.0  # seconds between two renewals of the lock
DEAD_AFTER_SECONDS = 60.0  # seconds without renewal after which the holder of a lock counts as dead
_HELD_TOKENS: set[str] = set()  # tokens of the locks of this process


@dataclass(frozen=True)
class Holder:
    """The holder of a lock, as stored in the lock file."""

    token: str  # random identifier of the `RunLock` object
    pid: int
    host: str
    space: str  # scope in which `pid` is unique, see `pid_namespace`
    since: str  # local time at which the lock was acquired


class RunLock:
    """An exclusive lock on a folder, held from `acquire` to `release`; `what` names the content in messages."""

    def __init__(self, folder: Path, what: str = RUN_NOUN) -> None:
        self.folder = folder
        self.what = what
        self.path = folder / LOCK_FILE
        self.lost = False
        self._token = uuid.uuid4().hex
        self._released = threading.Event()
        self._last_renewal = 0.0

    def acquire(self) -> None:
        """Acquire the lock and start a thread that renews the lock; raise a UserError if a live process holds it."""
        claim = self.folder / f".{LOCK_FILE}.{self._token}.tmp"
        since = time.strftime("%Y-%m-%d %H:%M:%S")
        holder = Holder(self._token, os.getpid(), socket.gethostname(), pid_namespace(), since)
        # The token is added first, because other threads would otherwise consider the holder of the new lock dead.
        _HELD_TOKENS.add(self._token)
        try:
            claim.write_text(json.dumps(asdict(holder)))
            self._take_over(self.path, claim)
        except BaseException:
            _HELD_TOKENS.discard(self._token)
            raise
        finally:
            claim.unlink(missing_ok=True)
        self._last_renewal = time.monotonic()
        threading.Thread(target=self._renew_until_released, name="run lock", daemon=True).start()

    def release(self) -> None:
        """Release the lock, unless another process has taken it over."""
        self._released.set()
        _HELD_TOKENS.discard(self._token)
        if _read_token(self.path) == self._token:
            self.path.unlink(missing_ok=True)

    def check(self) -> None:
        """Raise a UserError if another process has taken over the lock while this process was suspended."""
        # If the process was suspended, so was the thread that renews the lock.
        if time.monotonic() - self._last_renewal > 3 * RENEWAL_SECONDS:
            self._renew()
        if self.lost:
            raise UserError(
                f"another process has taken over {self.what} {str(self.folder)!r}, because this process was suspended "
                f"for over {DEAD_AFTER_SECONDS:.0f} seconds or its {LOCK_FILE} was removed: this process has written "
                "nothing since, and exits."
            )

    def _renew_until_released(self) -> None:
        while not self._released.wait(RENEWAL_SECONDS) and not self.lost:
            self._renew()

    def _renew(self) -> None:
        with suppress(OSError):  # a shared disk may be briefly unavailable
            self.lost = self.lost or _read_token(self.path) != self._token
            if not self.lost:
                os.utime(self.path)
            self._last_renewal = time.monotonic()

    def _take_over(self, path: Path, claim: Path) -> None:
        """Turn the file `claim` into the lock file `path` if there is no lock or the holder of the lock is dead.

        If several processes find the same abandoned lock, only one process may replace the lock: the process that is
        the first to create a second file (the mark), which is named after the abandoned lock. This process then renames
        the mark to the lock file in a single step, so that the folder is locked at all times. An abandoned mark is
        taken over in the same way.
        """
        while not _link_unless_exists(claim, path):
            holder, lock_identity = _read_holder(path), _file_identity(path)
            if lock_identity is None:
                continue
            if _is_live(path, holder, claim.stat().st_mtime):
                raise UserError(_in_use_message(self.folder, self.what, holder))
            mark = self.folder / f".{LOCK_FILE}.after-{lock_identity}.tmp"
            self._take_over(mark, claim)
            if _file_identity(path) == lock_identity:
                mark.replace(path)
                return
            mark.unlink(missing_ok=True)


@contextmanager
def lock_folder(folder: Path, what: str) -> Iterator[RunLock]:
    """Lock a folder within the block; a missing folder is created. `what` names the folder's content in messages."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = RunLock(folder, what)
    lock.acquire()
    try:
        yield lock
    finally:
        lock.release()


def is_locked(folder: Path) -> bool:
    """Return whether a live process holds the lock of a folder, without waiting.

    After a jump of the clock, a live holder counts as dead until the next renewal of the lock.
    """
    path = folder / LOCK_FILE
    return path.exists() and _is_live(path, _read_holder(path), time.time(), wait=False)


def has_holder(folder: Path) -> bool:
    """Return whether a folder has a lock that names a holder, which may be a live or a dead process."""
    return _read_holder(folder / LOCK_FILE) is not None


def require_unlocked(folder: Path, what: str = RUN_NOUN) -> None:
    """Raise a UserError for a folder that another process is writing into."""
    path = folder / LOCK_FILE
    if path.exists() and _is_live(path, _read_holder(path), time.time()):
        raise UserError(_in_use_message(folder, what, _read_holder(path)))


def _in_use_message(folder: Path, what: str, holder: Holder | None) -> str:
    holder_text = f"process {holder.pid} on {holder.host}, since {holder.since}" if holder else "another process"
    return (
        f"{what} {str(folder)!r} is being written by {holder_text}: wait until that process ends, or stop it first; a "
        f"killed process counts as ended after {DEAD_AFTER_SECONDS:.0f} seconds."
    )


def _is_live(path: Path, holder: Holder | None, now: float, wait: bool = True) -> bool:
    """Return whether the holder of a lock is alive; if `wait` is true, first wait for a renewal of an expired lock."""
    try:
        is_expired = now - path.stat().st_mtime > DEAD_AFTER_SECONDS
    except FileNotFoundError:
        return False
    if holder is None or holder.space != pid_namespace():
        return not is_expired
    if holder.pid == os.getpid():
        return holder.token in _HELD_TOKENS
    return is_running(holder.pid) and (not is_expired or (wait and _is_renewed(path)))


def _is_renewed(path: Path) -> bool:
    """Wait for the next renewal of a lock, and return whether the lock was renewed in time.

    After a jump of the clock, or while a machine wakes up, even the lock of a live process may look expired.
    """
    identity, end = _file_identity(path), time.monotonic() + 1.5 * RENEWAL_SECONDS
    while time.monotonic() < end:
        if _file_identity(path) != identity:
            return path.exists()
        time.sleep(0.05 * RENEWAL_SECONDS)
    return False


def is_running(pid: int) -> bool:
    """Return whether a process with this id runs on this machine; True if this cannot be determined."""
    if os.name != "posix":  # other systems have no signal that only tests whether a process exists
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        pass
    return True


def _read_holder(path: Path) -> Holder | None:
    """Return the holder that a lock file names; None if the file is missing, incomplete or not a lock file."""
    try:
        content = json.loads(read_text(path, 1 << 16, errors="replace"))
        return Holder(*(field_type(content[name]) for name, field_type in Holder.__annotations__.items()))
    except (OSError, UserError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _read_token(path: Path) -> str | None:
    holder = _read_holder(path)
    return None if holder is None else holder.token


def _file_identity(path: Path) -> str | None:
    """Return text that differs between lock files and changes with each renewal; None if the file does not exist."""
    try:
        state = path.stat()
    except FileNotFoundError:
        return None
    return f"{state.st_ino}-{state.st_mtime_ns}"


def _link_unless_exists(source: Path, path: Path) -> bool:
    """Create `path` as a hard link to `source`, or as a copy; return False if `path` already exists."""
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


def pid_namespace() -> str:
    """Return the scope in which a process id is unique, as text: host name, boot id and PID namespace (container)."""
    parts = [socket.gethostname()]
    for read_part in (
        lambda: Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        lambda: os.readlink("/proc/self/ns/pid"),
    ):
        with suppress(OSError):
            parts.append(read_part())
    return " ".join(parts)
