"""Runs on object storage: made in a folder on this machine, and copied to the storage whenever a state was saved.

The storage has an object for each content, named by its digest, and a manifest that names the objects of the run's
files. Objects are written before the manifest that names them, and the manifest by one request, because storage has no
rename. So a reader finds a whole run, the newest or the one before, whenever the writer is killed.
"""

import hashlib
import json
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from lightning.pytorch import Callback, Trainer

from paucal.data.decoded.cache_folder import OFF, VARIABLE, usable_folder
from paucal.data.shards.folders import open_storage
from paucal.data.shards.requests import GaveUp, first_line, retry
from paucal.data.sources.archive import checked_name
from paucal.reading import parse_json
from paucal.runner.console import Console
from paucal.runner.processes import launched_shape
from paucal.runner.storage_lock import StorageLock
from paucal.runs import RunFolder
from paucal.runs.files import write_text
from paucal.runs.folder import MARKER, PLACE
from paucal.types import UserError

MANIFEST, OBJECTS, LOCK = "manifest.json", "objects", "lock"
FOLDER = "runs"  # subfolder of the image cache
_MOST_MANIFEST = 64 << 20  # bytes
_LOOK = 1.0  # seconds between two looks for a new state
_PIECE = 1 << 20  # bytes
Manifest = dict[str, tuple[str, int]]  # digest and size of each file


class StoredRun:
    """A run on object storage.

    Args:
        url: Location that fsspec can write, such as "s3://bucket/runs/flowers".

    Raises:
        UserError: A package is missing, or the URL is invalid.
    """

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self._storage, root = open_storage(self.url)
        self._root = root.rstrip("/")
        self._kept: Manifest = {}  # the newest manifest
        self._known: dict[str, tuple[tuple[int, ...], str]] = {}  # by file: its stamp, and the digest it had then

    def path(self, name: str) -> str:
        """Return the full path of an object."""
        return f"{self._root}/{name}"

    @property
    def lock(self) -> StorageLock:
        """A lock on the run."""
        return StorageLock(self._storage, self.path(LOCK), f"the run {self.url!r}")

    def manifest(self) -> Manifest | None:
        """Return the digest and the size of each file; None if there is no run.

        Raises:
            UserError: The manifest cannot be read.
        """
        try:
            content = retry(lambda: self._storage.cat_file(self.path(MANIFEST), end=_MOST_MANIFEST))
            files = parse_json(content)["files"]
            return {checked_name(self.url, name): (str(digest), int(size)) for name, (digest, size) in files.items()}
        except FileNotFoundError:
            return None
        except UserError:
            raise
        except Exception as problem:  # every storage has its own types, and the content may be anything
            raise UserError(
                f"the run {self.url!r} cannot be read ({first_line(problem)}): check the address."
            ) from None

    def read_settings(self) -> dict[str, Any]:
        """Return the stored settings, unchecked; empty if there is no run.

        Raises:
            UserError: The config cannot be read.
        """
        manifest = self.manifest() or {}
        if MARKER not in manifest:
            return {}
        with tempfile.TemporaryDirectory(dir=folder_of_runs()) as scratch:
            self._fetch_file(MARKER, manifest[MARKER][0], Path(scratch) / MARKER)
            return RunFolder(Path(scratch)).settings

    def fetch(self, folder: Path) -> None:
        """Make a folder of this machine equal to the run.

        Raises:
            UserError: There is no run, or an object is missing or damaged.
        """
        manifest = self.manifest()
        if manifest is None:
            raise UserError(f"there is no run at {self.url!r}: expected the --output of an earlier call.")
        for file in [file for file in folder.rglob("*") if file.is_file()]:
            if file.relative_to(folder).as_posix() not in manifest:
                file.unlink()
        for name in ("checkpoints", "plots"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        for name, (digest, size) in manifest.items():
            target = folder / name
            if not (target.is_file() and target.stat().st_size == size and _copy(target)[0] == digest):
                self._fetch_file(name, digest, target)
        self._kept = manifest

    def _fetch_file(self, name: str, digest: str, target: Path) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".{target.name}.tmp")
        try:
            retry(lambda: self._storage.get_file(self.path(f"{OBJECTS}/{digest}"), str(temporary)))
            if _copy(temporary)[0] != digest:
                raise UserError(
                    f"{name} of the run {self.url!r} is damaged: its content is not that which was written; restore "
                    f"the object {digest}, or train anew."
                )
            temporary.replace(target)
        except (FileNotFoundError, GaveUp) as problem:
            raise UserError(f"{name} of the run {self.url!r} cannot be read: {first_line(problem)}.") from None
        finally:
            temporary.unlink(missing_ok=True)

    def publish(self, folder: Path) -> None:
        """Copy the files of a folder that have changed, then the manifest; remove what the last two do not name."""
        manifest: Manifest = {}
        for file in _files(folder):
            with suppress(FileNotFoundError):  # removed in the meantime
                name = file.relative_to(folder).as_posix()
                manifest[name] = self._publish_file(name, file)
        content = json.dumps({"files": manifest}).encode()
        retry(lambda: self._storage.pipe_file(self.path(MANIFEST), content))
        wanted = {digest for digest, _ in (*manifest.values(), *self._kept.values())}
        self._kept = manifest
        for path in retry(lambda: self._storage.ls(self.path(OBJECTS), detail=False, refresh=True)):
            if path.rpartition("/")[2] not in wanted:
                with suppress(FileNotFoundError):
                    retry(lambda path=path: self._storage.rm_file(path))

    def _publish_file(self, name: str, file: Path) -> tuple[str, int]:
        status = file.stat()
        stamp, known = (status.st_size, status.st_mtime_ns, status.st_ino), self._known.get(name)
        if known is not None and known[0] == stamp:
            return known[1], status.st_size
        with tempfile.TemporaryDirectory(dir=folder_of_runs()) as scratch:
            copy = Path(scratch) / "copy"
            digest, size = _copy(file, copy)  # the file may grow or be replaced while it is sent
            if all(digest != other for other, _ in self._kept.values()):
                self._storage.makedirs(self.path(OBJECTS), exist_ok=True)  # where storage has folders
                retry(lambda: self._storage.put_file(str(copy), self.path(f"{OBJECTS}/{digest}")))
        self._known[name] = stamp, digest
        return digest, size


class StoredCopy(Callback):
    """Copies a run to storage in a thread whenever a state was saved, and at the end.

    Args:
        stored: Run on storage.
        lock: Its lock, held.
        folder: Folder of the run on this machine.
        console: Console for messages.
    """

    def __init__(self, stored: StoredRun, lock: StorageLock, folder: Path, console: Console) -> None:
        self.folder = folder
        self._stored, self._lock, self._console = stored, lock, console
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._live, name="copy of the run", daemon=True)
        self._state = self._saved_state()

    def on_train_batch_start(self, trainer: Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """End the run if another process has taken it over."""
        self._lock.check()

    def __enter__(self) -> "StoredCopy":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        if self._lock.lost or not RunFolder(self.folder).config.exists():
            return
        try:
            self._stored.publish(self.folder)
        except Exception as failure:  # every storage has its own types
            what = (
                f"the run cannot be copied to {self._stored.url!r} ({first_line(failure)}): the storage has an earlier "
                f"state, and the whole run is in {str(self.folder)!r}, until the URL is used again on this machine."
            )
            if problem is None:
                raise UserError(what) from failure
            self._console.say(what)

    def _live(self) -> None:
        while not self._ended.wait(_LOOK):
            state = self._saved_state()
            if state == self._state or self._lock.lost:
                continue
            try:
                self._stored.publish(self.folder)
                self._state = state
            except Exception as problem:
                self._console.say(f"note: the state is not yet copied to {self._stored.url}: {first_line(problem)}")

    def _saved_state(self) -> list[tuple[str, int]]:
        run, state = RunFolder(self.folder), []
        for file in (run.config, run.card, run.weights, run.best, run.last, self.folder / "summary.json"):
            with suppress(OSError):
                state.append((file.name, file.stat().st_mtime_ns))
        return state


@contextmanager
def written_to_storage(url: str, is_resumed: bool, console: Console) -> Iterator[StoredCopy]:
    """Lock a run on storage and copy its folder on this machine there, within the block and at its end.

    Args:
        url: Location of the run.
        is_resumed: Whether the run exists and is first fetched; else there must be none.
        console: Console for messages.

    Raises:
        UserError: Another process writes the run, there is none or one already, or it cannot be read or written.
    """
    stored = StoredRun(url)
    home = folder_of_runs() / hashlib.blake2b(stored.url.encode(), digest_size=16).hexdigest()
    folder = home / "run"
    with stored.lock.held() as lock:
        home.mkdir(parents=True, exist_ok=True)
        if is_resumed:
            stored.fetch(folder)
        elif stored.manifest() is not None:
            raise UserError(f"--output: {url!r} exists already: resume it with --resume {url}, or choose another.")
        else:
            shutil.rmtree(folder, ignore_errors=True)
        write_text(home / PLACE, json.dumps({"url": stored.url}) + "\n")
        with StoredCopy(stored, lock, folder, console) as copy:
            yield copy
    console.say(f"the run is in {stored.url}")


def require_one_machine(overwrite: bool = False) -> None:
    """Refuse what a run on object storage cannot do.

    Raises:
        UserError: It has processes on several machines, or would replace another run.
    """
    shape = launched_shape()
    if shape is not None and shape[1] > 1:
        raise UserError("a run on object storage has processes of one machine: give --output on a shared disk.")
    if overwrite:
        raise UserError("--overwrite is not supported on object storage: choose a new --output.")


def folder_of_runs() -> Path:
    """Return the folder of this machine's copies of runs on storage.

    Raises:
        UserError: The image cache is off or cannot be written.
    """
    cache = usable_folder()
    if cache is None:
        raise UserError(
            f"runs on storage are made in the image cache, which is off or cannot be written: set {VARIABLE} to a "
            f"folder (not {OFF!r})."
        )
    (cache / FOLDER).mkdir(mode=0o700, parents=True, exist_ok=True)
    return cache / FOLDER


def _files(folder: Path) -> list[Path]:
    """Return the files of a run, checkpoints first: all others are then at least as new."""
    files = [file for file in folder.rglob("*") if file.is_file() and not file.name.startswith(".")]
    files = [file for file in files if file != folder / "lock.json"]
    return sorted(files, key=lambda file: (file.parent.name != "checkpoints", file))


def _copy(file: Path, target: Path | None = None) -> tuple[str, int]:
    """Return the digest and the size of a file, and write the content that they belong to into another file."""
    digest, size = hashlib.blake2b(digest_size=32), 0
    with file.open("rb") as source, open(os.devnull if target is None else target, "wb") as copy:
        while piece := source.read(_PIECE):
            digest.update(piece)
            copy.write(piece)
            size += len(piece)
    return digest.hexdigest(), size
