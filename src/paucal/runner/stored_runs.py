"""Runs on object storage, which are written to a local folder and copied to the storage after each saved state.

The storage has an object for each distinct file content, named by the digest of the content, and two manifests that
list the objects of the run's files. Object storage cannot rename objects, so a new state is uploaded in this order:
first its objects, then its manifest, which overwrites the older of the two manifests. The complete manifest with the
highest number is valid. So even if the writer is killed, a reader finds a complete run in its newest or previous state.
"""

import hashlib
import json
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from lightning.pytorch import Callback, Trainer

from paucal.data.decoded.cache_folder import CACHE_VARIABLE, OFF, STORED_RUNS, usable_cache_folder
from paucal.data.shards.folders import open_storage
from paucal.data.shards.requests import RetriesFailed, retry
from paucal.data.sources.archive import require_safe_name
from paucal.reading import parse_json
from paucal.runner.console import Console
from paucal.runner.processes import launched_process_counts
from paucal.runner.snapshots import FileStamp, take_snapshot
from paucal.runner.storage_lock import StorageLock, write_in_folder
from paucal.runs import RunFolder
from paucal.runs.folder import CONFIG_FILE, PLACE_FILE
from paucal.types import UserError
from paucal.wording import first_line
from paucal.writing import write_text

MANIFEST_NAMES, OBJECTS_FOLDER, LOCK_NAME = ("manifest-0.json", "manifest-1.json"), "objects", "lock"
_MAX_MANIFEST_BYTES = 64 << 20
# File beside a local copy whose newest state could not be uploaded; contains the number of the last uploaded manifest
UNSENT_FILE = "unsent.json"
# Seconds between two checks for a new state, and maximum seconds before an upload is tried again
_CHECK_SECONDS, _MAX_PAUSE_SECONDS = 1.0, 300.0
_ABANDONED_AFTER_SECONDS = 24 * 3600.0  # seconds after which the temporary folder of a killed process is removed
_SCRATCH_PREFIX = "tmp-"  # prefix of the names of temporary folders
Manifest = dict[str, tuple[str, int]]  # digest and size in bytes of each file, by relative path


class StoredRun:
    """A run on object storage, at a URL that fsspec can write to, such as `s3://bucket/runs/flowers`."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self._storage, root = open_storage(self.url)
        self._root = root.rstrip("/")
        self._newest_manifest: Manifest = {}  # files of the manifest that was last fetched or published
        self.number = 0  # number of the newest manifest that was read or written; 0 if there is no manifest
        self._uploaded: dict[str, tuple[FileStamp, str]] = {}  # stamp and digest of each file at its last upload

    def path(self, name: str) -> str:
        """Return the full path of an object."""
        return f"{self._root}/{name}"

    @property
    def lock(self) -> StorageLock:
        """A lock on the run."""
        return StorageLock(self._storage, self.path(LOCK_NAME), f"the run {self.url!r}")

    def manifest(self) -> Manifest | None:
        """Return the files of the newest complete manifest; None if there is no run."""
        manifests = [self._read_manifest(name) for name in MANIFEST_NAMES]
        complete_manifests = [manifest for manifest in manifests if manifest]
        if not complete_manifests:
            if None not in manifests:
                raise UserError(
                    f"both manifests of the run {self.url!r} are damaged: restore a manifest, or train again."
                )
            return None
        self.number, files = max(complete_manifests, key=lambda manifest: manifest[0])
        return files

    def _read_manifest(self, name: str) -> tuple[int, Manifest] | tuple[()] | None:
        """Return the number and files of a manifest; an empty tuple if it is damaged, None if it is missing."""
        try:
            content = retry(lambda: self._storage.cat_file(self.path(name), end=_MAX_MANIFEST_BYTES))
        except FileNotFoundError:
            return None
        except Exception as problem:  # each storage backend raises its own exceptions
            raise UserError(
                f"the run {self.url!r} cannot be read ({first_line(problem)}): check the address."
            ) from None
        try:
            record = parse_json(content)
            files = {str(file): (str(digest), int(size)) for file, (digest, size) in record["files"].items()}
            if record["check"] != _manifest_digest(record["number"], files):
                return ()
            number = int(record["number"])
        except (ValueError, KeyError, TypeError, AttributeError):
            return ()
        for file in files:
            require_safe_name(self.url, file)
        return number, files

    def read_settings(self) -> dict[str, Any]:
        """Return the stored settings without checking them; an empty dictionary if there is no run."""
        manifest = self.manifest() or {}
        if CONFIG_FILE not in manifest:
            return {}
        with _temporary_folder() as scratch:
            self._fetch_file(CONFIG_FILE, manifest[CONFIG_FILE][0], scratch / CONFIG_FILE)
            return RunFolder(scratch).settings

    def fetch(self, folder: Path) -> None:
        """Download the run into a local folder, and remove all other files from the folder."""
        manifest = self.manifest()
        if manifest is None:
            raise UserError(f"there is no run at {self.url!r}, expected the --output of an earlier command.")
        for file in [file for file in folder.rglob("*") if file.is_file()]:
            if file.relative_to(folder).as_posix() not in manifest:
                file.unlink()
        for name in ("checkpoints", "plots"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        for name, (digest, size) in manifest.items():
            target = folder / name
            if not (target.is_file() and target.stat().st_size == size and content_digest(target) == digest):
                self._fetch_file(name, digest, target)
        self._newest_manifest = manifest

    def _fetch_file(self, name: str, digest: str, target: Path) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".{target.name}.tmp")
        try:
            retry(lambda: self._storage.get_file(self.path(f"{OBJECTS_FOLDER}/{digest}"), str(temporary)))
            if content_digest(temporary) != digest:
                raise UserError(
                    f"{name} of the run {self.url!r} is damaged: its content has changed; restore the object "
                    f"{digest}, or train again."
                )
            temporary.replace(target)
        except (FileNotFoundError, RetriesFailed) as problem:
            raise UserError(f"{name} of the run {self.url!r} cannot be read: {first_line(problem)}.") from None
        finally:
            temporary.unlink(missing_ok=True)

    def publish(self, folder: Path, confirm: Callable[[], None] = lambda: None) -> None:
        """Upload changed files of a folder, then a manifest; remove objects that the last two manifests do not list.

        The run may write to the folder during the upload. `confirm` raises an error if another process has taken over
        the lock.
        """
        if not self.number:
            self.manifest()  # updates `number`
        with _temporary_folder() as scratch:
            stamps = take_snapshot(folder, scratch)
            manifest = {name: self._publish_file(name, scratch / name, stamp) for name, stamp in stamps.items()}
            confirm()
            number = self.number + 1
            content = {"number": number, "files": manifest, "check": _manifest_digest(number, manifest)}
            name, text = MANIFEST_NAMES[number % 2], json.dumps(content).encode()
            retry(lambda: self._storage.pipe_file(self.path(name), text))
        listed_digests = {digest for digest, _ in (*manifest.values(), *self._newest_manifest.values())}
        self._newest_manifest, self.number = manifest, number
        confirm()
        with suppress(Exception):  # the credentials may not allow removal, and the run is complete without it
            for path in self._storage.ls(self.path(OBJECTS_FOLDER), detail=False, refresh=True):
                if path.rpartition("/")[2] not in listed_digests:
                    self._storage.rm_file(path)

    def _publish_file(self, name: str, copy: Path, stamp: FileStamp) -> tuple[str, int]:
        stamp_and_digest = self._uploaded.get(name)
        if stamp_and_digest is None or stamp_and_digest[0] != stamp:
            digest = content_digest(copy)
            if all(digest != other for other, _ in self._newest_manifest.values()):
                write_in_folder(
                    self._storage,
                    self.path(f"{OBJECTS_FOLDER}/{digest}"),
                    lambda path: retry(lambda: self._storage.put_file(str(copy), path)),
                )
            stamp_and_digest = self._uploaded[name] = stamp, digest
        return stamp_and_digest[1], copy.stat().st_size


class StorageUploader(Callback):
    """Copies a run to storage: in a background thread whenever the run has saved a state, and once more at the end."""

    def __init__(self, stored: StoredRun, lock: StorageLock, folder: Path, console: Console) -> None:
        self.folder = folder
        self._stored_run, self._lock, self._console = stored, lock, console
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._copy_until_end, name="copy of the run", daemon=True)
        self._copied_file_times = self._list_file_times()

    def on_train_batch_start(self, trainer: Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """End the run if another process has taken over the lock."""
        self._lock.check()

    def __enter__(self) -> "StorageUploader":
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
            self._stored_run.publish(self.folder, self._lock.confirm)
        except Exception as failure:  # each storage backend raises its own exceptions
            write_text(self.folder.parent / UNSENT_FILE, json.dumps({"number": self._stored_run.number}) + "\n")
            message = (
                f"the newest state cannot be copied to {self._stored_run.url!r} ({first_line(failure)}): the state is "
                f"in {str(self.folder)!r}; the next command with this URL on this machine copies it."
            )
            if problem is None:
                raise UserError(message) from failure
            self._console.say(message)

    def _copy_until_end(self) -> None:
        pause, last_reason = _CHECK_SECONDS, ""
        while not self._ended.wait(pause):
            state = self._list_file_times()
            if state == self._copied_file_times or self._lock.lost:
                continue
            try:
                self._stored_run.publish(self.folder, self._lock.confirm)
                self._copied_file_times, pause, last_reason = state, _CHECK_SECONDS, ""
            except Exception as problem:  # each storage backend raises its own exceptions
                pause, reason = min(2 * pause, _MAX_PAUSE_SECONDS), first_line(problem)
                if reason != last_reason:
                    self._console.say(f"note: the state is not yet copied to {self._stored_run.url}: {reason}")
                last_reason = reason

    def _list_file_times(self) -> list[tuple[str, int]]:
        run, state = RunFolder(self.folder), []
        for file in (run.config, run.card, run.weights, run.best, run.last, self.folder / "summary.json"):
            with suppress(OSError):
                state.append((file.name, file.stat().st_mtime_ns))
        return state


@contextmanager
def written_to_storage(
    url: str, is_resumed: bool, console: Console, overwrite: bool = False
) -> Iterator[StorageUploader]:
    """Lock a run on storage, and copy the run's local folder to the storage during the block and when the block ends.

    A resumed run is downloaded first; a new run must not exist on the storage yet. Several machines and `overwrite` are
    refused, since they are not supported.
    """
    process_counts = launched_process_counts()
    if process_counts is not None and process_counts[1] > 1:
        raise UserError("a run on object storage must run on one machine: give --output on a shared disk.")
    if overwrite:
        raise UserError("--overwrite is not supported on object storage: choose a new --output.")
    stored_run = StoredRun(url)
    local_home = local_copies_folder() / hashlib.blake2b(stored_run.url.encode(), digest_size=16).hexdigest()
    folder = local_home / "run"
    with stored_run.lock.held() as lock:
        local_home.mkdir(parents=True, exist_ok=True)
        exists = stored_run.manifest() is not None
        if not is_resumed and exists:
            raise UserError(
                f"--output: {url!r} exists already: resume that run with --resume {url}, or choose another --output."
            )
        # The number of the last manifest uploaded before a failed upload; None if no upload has failed.
        try:
            last_sent_number = int(parse_json((local_home / UNSENT_FILE).read_bytes())["number"])
        except (OSError, ValueError, KeyError, TypeError):
            last_sent_number = None
        has_unsent_state = last_sent_number is not None and folder.exists()
        if is_resumed and has_unsent_state and last_sent_number == stored_run.number:
            console.say(f"copying the newest state of {stored_run.url} from this machine")
            stored_run.publish(folder, lock.confirm)
        else:
            if has_unsent_state:
                kept_copy = local_home / f"unsent-{time.time_ns()}"
                folder.rename(kept_copy)
                console.say(f"a state that could not be copied to the storage is kept in {kept_copy}")
            if is_resumed:
                stored_run.fetch(folder)
            else:
                shutil.rmtree(folder, ignore_errors=True)
        (local_home / UNSENT_FILE).unlink(missing_ok=True)
        write_text(local_home / PLACE_FILE, json.dumps({"url": stored_run.url}) + "\n")
        with StorageUploader(stored_run, lock, folder, console) as copy:
            yield copy
    console.say(f"the run is in {stored_run.url}")


def local_copies_folder() -> Path:
    """Return the folder for local copies of runs on storage."""
    cache = usable_cache_folder()
    if cache is None:
        raise UserError(
            f"runs on object storage need the image cache, which is off or cannot be written: set {CACHE_VARIABLE} to "
            f"a folder (not {OFF!r})."
        )
    (cache / STORED_RUNS).mkdir(mode=0o700, parents=True, exist_ok=True)
    return cache / STORED_RUNS


@contextmanager
def _temporary_folder() -> Iterator[Path]:
    """Yield a temporary folder beside the copies of runs, after removing old temporary folders of killed processes."""
    path = local_copies_folder()
    for leftover in path.glob(f"{_SCRATCH_PREFIX}*"):
        with suppress(OSError):
            if time.time() - leftover.stat().st_mtime > _ABANDONED_AFTER_SECONDS:
                shutil.rmtree(leftover)
    with tempfile.TemporaryDirectory(dir=path, prefix=_SCRATCH_PREFIX) as scratch:
        yield Path(scratch)


def _manifest_digest(number: int, manifest: Manifest) -> str:
    """Return a digest of a manifest, which shows whether the manifest was written completely."""
    return hashlib.blake2b(repr((number, sorted(manifest.items()))).encode(), digest_size=16).hexdigest()


def content_digest(file: Path) -> str:
    """Return the digest of a file's content, as hexadecimal text."""
    with file.open("rb") as source:
        return hashlib.file_digest(source, lambda: hashlib.blake2b(digest_size=32)).hexdigest()
