"""Locks on object storage: objects that name the writing process and are rewritten regularly.

Object storage does not have the links and reliable file times that `runs.lock` uses. So a conditional request creates
the object only if it does not exist, and a process that holds a lock counts as dead if the lock's object stays
unchanged for a minute.
"""

import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from paucal.data.shards.requests import retry
from paucal.reading import parse_json
from paucal.runs.lock import DEAD_AFTER_SECONDS, RENEWAL_SECONDS, is_running, pid_namespace
from paucal.types import UserError
from paucal.wording import first_line

_HELD_TOKENS: set[str] = set()  # tokens of the locks that this process holds
# fsspec protocols of storage that has folders
_PROTOCOLS_WITH_FOLDERS = {"file", "local", "memory", "sftp", "ssh", "smb", "hdfs", "webhdfs", "ftp"}


def write_in_folder(storage: Any, path: str, write: Callable[[str], None]) -> None:
    """Create the parent folder of a path, unless the storage has no folders; then call `write` with the path."""
    protocols = storage.protocol if isinstance(storage.protocol, tuple) else (storage.protocol,)
    if _PROTOCOLS_WITH_FOLDERS & {*protocols}:
        storage.makedirs(path.rpartition("/")[0], exist_ok=True)
    write(path)


class StorageLock:
    """An exclusive lock on an fsspec file system, in the object `path`.json; `what` names the run in messages."""

    def __init__(self, storage: Any, path: str, what: str) -> None:
        self.what = what
        self.lost = False
        self._storage, self._base, self._path = storage, path, f"{path}.json"
        since = time.strftime("%Y-%m-%d %H:%M:%S")
        self._content = {"token": uuid.uuid4().hex, "pid": os.getpid(), "host": socket.gethostname(), "since": since}
        self._content |= {"space": pid_namespace(), "beats": 0}
        self._ended = threading.Event()

    @contextmanager
    def held(self) -> Iterator["StorageLock"]:
        """Hold the lock within the block."""
        try:
            self._acquire(self._path)
        except UserError:
            raise
        except Exception as problem:  # each storage library has its own exceptions
            raise UserError(f"{self.what} cannot be written ({first_line(problem)}): check the address.") from problem
        _HELD_TOKENS.add(self._content["token"])
        thread = threading.Thread(target=self._renew_until_end, name="storage lock", daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._ended.set()
            thread.join()
            _HELD_TOKENS.discard(self._content["token"])
            with suppress(Exception):  # if the removal fails, the lock expires after a minute
                if self._read_token(self._path) == self._content["token"]:
                    self._storage.rm_file(self._path)

    def check(self) -> None:
        """Raise a UserError if another process has taken over the lock."""
        if self.lost:
            raise UserError(
                f"another process has taken over {self.what}, since this process was suspended for over "
                f"{DEAD_AFTER_SECONDS:.0f} seconds: this process exits, and has copied nothing since."
            )

    def confirm(self) -> None:
        """Read the lock from the storage, and raise a UserError if another process has taken over the lock."""
        self.lost = self.lost or self._read_token(self._path) not in (self._content["token"], None)
        self.check()

    def _renew_until_end(self) -> None:
        while not self._ended.wait(RENEWAL_SECONDS) and not self.lost:
            with suppress(Exception):  # the storage may be briefly unavailable
                if self._read_token(self._path) not in (self._content["token"], None):
                    self.lost = True
                    return
                self._content["beats"] += 1
                self._storage.pipe_file(self._path, self._lock_content())

    def _acquire(self, path: str) -> None:
        """Create the lock's object; an object of a dead process is replaced while holding a second lock."""
        while not self._create_lock(path):
            holder = self._read_lock(path)
            if holder is None:  # the lock was just released
                continue
            if self._is_holder_alive(path, holder):
                holder_text = f"process {holder.get('pid')} on {holder.get('host')}, since {holder.get('since')}"
                raise UserError(
                    f"{self.what} is being written by {holder_text}: wait for that process or stop it first; a process "
                    f"that was killed counts as ended after {DEAD_AFTER_SECONDS:.0f} seconds."
                )
            takeover_path = f"{self._base}-after-{holder.get('token')}.json"
            self._acquire(takeover_path)
            is_unchanged = self._read_token(path) == holder.get("token")
            if is_unchanged:
                retry(lambda: self._storage.pipe_file(path, self._lock_content()))
            self._storage.rm_file(takeover_path)
            if is_unchanged:
                return

    def _create_lock(self, path: str) -> bool:
        if self._read_lock(path) is not None:  # needed on storage that does not support conditional requests
            return False
        try:
            content = self._lock_content()
            write_in_folder(self._storage, path, lambda path: self._storage.pipe_file(path, content, mode="create"))
        except Exception:  # the type of exception for an existing object depends on the storage
            if self._read_lock(path) is None:
                raise
        return self._read_token(path) == self._content["token"]

    def _is_holder_alive(self, path: str, holder: dict[str, Any]) -> bool:
        """Return whether the process that holds a lock is alive; if necessary, wait for a renewal of the lock."""
        if holder.get("space") == pid_namespace() and isinstance(holder.get("pid"), int):
            if holder["pid"] == os.getpid():
                return holder.get("token") in _HELD_TOKENS
            if not is_running(holder["pid"]):
                return False
        deadline = time.monotonic() + DEAD_AFTER_SECONDS
        while time.monotonic() < deadline:
            if (current := self._read_lock(path)) != holder:
                return current is not None
            time.sleep(RENEWAL_SECONDS / 10)
        return False

    def _read_token(self, path: str) -> Any:
        return (self._read_lock(path) or {}).get("token")

    def _read_lock(self, path: str) -> dict[str, Any] | None:
        def read() -> bytes | None:
            try:
                return self._storage.cat_file(path, end=1 << 16)
            except FileNotFoundError:
                return None

        content = retry(read)
        try:
            holder = None if content is None else parse_json(content)
        except ValueError:
            return {}
        return holder if isinstance(holder, dict) else None if content is None else {}

    def _lock_content(self) -> bytes:
        return json.dumps(self._content).encode()
