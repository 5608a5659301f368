"""Folders of shards on disk or on object storage; shards from object storage are downloaded once and cached."""

import glob
import hashlib
import os
import shutil
import stat
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from paucal.data.decode import UnreadableImage
from paucal.data.decoded.cache_folder import CACHE_VARIABLE, OFF, SHARDS, usable_cache_folder
from paucal.data.shards.index import Shard
from paucal.data.shards.requests import DISK_FULL, retry, send_hedged
from paucal.data.sources.archive import require_safe_name
from paucal.data.sources.folder import require_readable
from paucal.reading import require_regular
from paucal.types import UserError
from paucal.wording import first_line

MAX_CACHE_BYTES = 32 << 30  # maximum total size of the downloaded shards on this machine
_MAX_FRACTION_OF_FREE_DISK = 0.5  # maximum fraction of the free disk space that further downloads may use
# A slow download is started a second time after `_PATIENCE_FACTOR` times the expected duration, but not before
# `_MIN_PATIENCE` seconds. For the first download, whose duration is unknown, this happens after `_FIRST_PATIENCE`
# seconds.
_PATIENCE_FACTOR, _MIN_PATIENCE, _FIRST_PATIENCE = 4.0, 5.0, 60.0
_ABANDONED_SECONDS = 3600.0  # a temporary file of a download may be removed after this time without a new byte
_MAX_SPEEDS = 32  # number of recent downloads whose median speed determines the expected duration
_BLOCK_BYTES = 4 << 20  # number of bytes of a small file that are read at once
# Metadata fields that identify a version of a file on S3, Google Cloud Storage, Azure, web servers and disks.
_VERSION_FIELDS = ("ETag", "etag", "md5Hash", "LastModified", "last_modified", "updated", "mtime")
_INSTALL_COMMAND = "pip install 'paucal[remote]'"


class LocalShardFolder:
    """A folder of shards on disk; picklable like `RemoteShardFolder`, so that loader workers can be spawned."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self.name, self.location = self.root.name, str(self.root)

    def list_files(self) -> list[Shard]:
        """Return the files in the folder and in its direct subfolders."""
        require_readable(self.root)
        files = sorted(file for pattern in ("*", "*/*") for file in self.root.glob(pattern) if file.is_file())
        return [shard_from_file(file, file.relative_to(self.root).as_posix()) for file in files]

    def fetch_file(self, name: str, max_bytes: int) -> Path | None:
        """Return the path of a file; None if the file does not exist."""
        path = self.root / require_safe_name(self.location, name)
        return require_regular(path) if path.exists() else None

    def fetch_shard(self, shard: Shard) -> Path:
        """Return the path of a shard, without checking that the file exists."""
        return self.root / shard.name

    def prefetch(self, shard: Shard) -> None:
        """Do nothing, since the shard is on disk; this method has the signature of `RemoteShardFolder.prefetch`."""


def shard_from_file(file: Path, name: str) -> Shard:
    """Return a `Shard` with the given name, and the size and modification time of a file on disk."""
    status = file.stat()
    return Shard(name, status.st_size, changed=status.st_mtime_ns)


class RemoteShardFolder:
    """A folder of shards that fsspec can read; a needed shard is downloaded, once for all processes of the machine."""

    def __init__(self, url: str) -> None:
        self.location = url.rstrip("/")
        self.name = self.location.rsplit("/", 1)[-1]
        folder = usable_cache_folder()
        if folder is None:
            raise UserError(
                f"shards of {url} must be downloaded into the image cache, but the cache is off or cannot be written: "
                f"set {CACHE_VARIABLE} to a folder (not {OFF!r})."
            )
        self.cache = folder / SHARDS / hashlib.blake2b(self.location.encode(), digest_size=16).hexdigest()
        self._opened: tuple[int, Any, str] | None = None
        self._speeds: deque[float] = deque(maxlen=_MAX_SPEEDS)  # bytes per second

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_opened": None}

    def list_files(self) -> list[Shard] | None:
        """Return the files below the URL; None if the storage cannot list files, like most web servers."""
        files, root = self._storage()
        try:
            entries = files.find(root, detail=True)
        except NotImplementedError:
            return None
        except Exception as problem:  # each storage library raises different exceptions
            raise UserError(f"{self.location} cannot be listed ({first_line(problem)}); check the address.") from None
        if not entries or any(entry.get("size") is None for entry in entries.values()):
            return None
        shards = []
        for path, entry in entries.items():
            name = path.rstrip("/").removeprefix(root.rstrip("/")).lstrip("/")
            shards.append(Shard(require_safe_name(self.location, name), int(entry["size"]), changed=_version_of(entry)))
        return sorted(shards, key=lambda shard: shard.name)

    def fetch_file(self, name: str, max_bytes: int) -> Path | None:
        """Download a file and return the path of the copy; None if the file does not exist."""
        self.cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self.cache) as folder:
            copy = Path(folder, name)
            with copy.open("w+b") as file:
                if not self._copy(name, max_bytes, file):
                    return None
                file.seek(0)
                digest = hashlib.file_digest(file, "blake2b").hexdigest()[:32]
            target = self.cache / f"{digest}-{name}"
            with suppress(OSError):  # Windows refuses to replace a file that another process has opened
                copy.replace(target)
        for old_copy in self.cache.glob(f"*-{glob.escape(name)}"):
            with suppress(OSError):
                if old_copy != target:
                    old_copy.unlink()
        return target

    def _copy(self, name: str, max_bytes: int, target: IO[bytes]) -> bool:
        files, path = self._storage(require_safe_name(self.location, name))
        try:
            with files.open(path, "rb", block_size=_BLOCK_BYTES) as file:  # the default block size of s3fs is 50 MiB
                while block := file.read(min(_BLOCK_BYTES, max_bytes + 1 - target.tell())):
                    target.write(block)
        except FileNotFoundError:
            return False
        except Exception as problem:  # each storage library raises different exceptions
            raise UserError(
                f"{self.location}/{name} cannot be read ({first_line(problem)}); check the address."
            ) from None
        if target.tell() > max_bytes:
            raise UserError(f"{self.location}/{name} is larger than the limit of {max_bytes:,} bytes for this file.")
        return True

    def fetch_shard(self, shard: Shard) -> Path:
        """Return the path of a shard's copy in the cache; download the shard unless a copy of its size is there."""
        return self._download_once(shard, retry)

    def prefetch(self, shard: Shard) -> None:
        """Try once to download a shard that will be needed soon."""
        with suppress(Exception):  # `fetch_shard` will try again, and raise the error if it persists
            self._download_once(shard, lambda work: work())

    def _download_once(self, shard: Shard, run_download: Callable[[Callable[[], Path]], Path]) -> Path:
        """Fetch a shard as `fetch_shard` does; `run_download` calls the download function, and may retry."""
        target = self._cache_path(shard)
        if _is_complete(target, shard.size):
            return target
        from filelock import FileLock  # imported here, like fsspec

        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with FileLock(target.with_name(f".{target.name}.lock")):
            if not _is_complete(target, shard.size):  # another process may have downloaded the shard in the meantime
                # Remove the temporary files of processes that were ended during a download.
                for leftover in target.parent.glob(f".{glob.escape(target.name)}.*.tmp"):
                    with suppress(OSError):
                        leftover.unlink()
                _evict_shards(self.cache.parent, shard.size)
                self._fetch(shard, target, run_download)
        return target

    def open_file(self, shard: Shard) -> Any:
        """Open a shard to read a few bytes: the copy in the cache if it exists, else the remote file."""
        target = self._cache_path(shard)
        if _is_complete(target, shard.size):
            return target.open("rb")
        files, path = self._storage(shard.name)
        return files.open(path, "rb")

    def find_file(self, name: str) -> Shard:
        """Return the shard with a name; the storage need not be able to list files."""
        files, path = self._storage(require_safe_name(self.location, name))
        try:
            entry = files.info(path)
        except FileNotFoundError:
            raise UserError(f"{self.location}/{name} does not exist; check the address.") from None
        except Exception as problem:  # each storage library raises different exceptions
            raise UserError(
                f"{self.location}/{name} cannot be read ({first_line(problem)}); check the address."
            ) from None
        if entry.get("size") is None:
            raise UserError(
                f"{self.location} does not report the size of {name}: download this file, and give the local path."
            )
        return Shard(name, int(entry["size"]), changed=_version_of(entry))

    def _cache_path(self, shard: Shard) -> Path:
        """Return the path of a shard's copy in the cache; the path depends on the version of the shard."""
        return self.cache / f"{shard.changed:x}" / shard.name if shard.changed else self.cache / shard.name

    def _fetch(self, shard: Shard, target: Path, run_download: Callable[[Callable[[], Path]], Path]) -> None:
        """Download a shard to `target`; if the download is slow, start a second download and use the first to end."""

        def download_to_temporary(number: int) -> Path:
            temporary = target.with_name(f".{target.name}.{os.getpid()}-{time.monotonic_ns()}-{number}.tmp")
            try:
                self._download_checked(shard, temporary)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise
            return temporary

        def download_hedged() -> Path:
            start_time, patience = time.monotonic(), _FIRST_PATIENCE
            if self._speeds:
                patience = max(_MIN_PATIENCE, _PATIENCE_FACTOR * shard.size / statistics.median(self._speeds))
            path = send_hedged(download_to_temporary, patience, lambda late: late.unlink(missing_ok=True))
            self._speeds.append(shard.size / max(1e-6, time.monotonic() - start_time))
            return path

        try:
            run_download(download_hedged).replace(target)
        except FileNotFoundError:
            raise UnreadableImage(
                f"the shard {shard.name} is in the index, but not in {self.location}; add the shard, or index the "
                "shards again."
            ) from None
        except UserError:
            raise
        except Exception as problem:  # each storage library raises different exceptions
            if isinstance(problem, OSError) and problem.errno in DISK_FULL:
                raise UserError(
                    f"the disk of {self.cache} is too full for the shard {shard.name} of {self.location}: free some "
                    f"space, or set {CACHE_VARIABLE} to a folder on another disk; the run can then be resumed."
                ) from None
            text = f"the shard {shard.name} cannot be downloaded from {self.location} ({first_line(problem)})"
            raise UnreadableImage(f"{text}; check the network connection.") from None

    def _download_checked(self, shard: Shard, target: Path) -> None:
        """Download a shard and compare its size; a ConnectionError means that another try may succeed."""
        self._download(shard.name, target)
        size = target.stat().st_size
        if size == shard.size:
            return
        files, path = self._storage(shard.name)
        remote_size = files.info(path).get("size")
        if remote_size == shard.size:
            raise ConnectionError(f"{size} of {shard.size} bytes arrived")
        raise UnreadableImage(
            f"the shard {shard.name} of {self.location} has {size} bytes, but {shard.size} bytes according to the "
            "index; index the shards again."
        )

    def _download(self, name: str, target: Path) -> None:
        files, path = self._storage(name)
        files.get_file(path, str(target))

    def _storage(self, name: str = "") -> tuple[Any, str]:
        """Return fsspec's file system, and the path in it of the file `name`, or of the folder if `name` is empty."""
        # Each process opens its own file system, since a forked process cannot use the file system of its parent.
        if self._opened is None or self._opened[0] != os.getpid():
            self._opened = os.getpid(), *open_storage(self.location)
        _, files, root = self._opened
        return files, f"{root.rstrip('/')}/{name}" if name else root


ShardFolder = LocalShardFolder | RemoteShardFolder


def _version_of(entry: Mapping[str, Any]) -> int:
    """Return a number that identifies the version of a file; 0 if the storage gives no such metadata."""
    values = [str(entry[name]) for name in _VERSION_FIELDS if entry.get(name) is not None]
    return int.from_bytes(hashlib.blake2b("\n".join(values).encode(), digest_size=7).digest()) if values else 0


def is_remote(location: str | Path) -> bool:
    """Return whether a location is a URL such as `s3://bucket/shards`."""
    return "://" in str(location)


def open_storage(url: str) -> tuple[Any, str]:
    """Return fsspec's file system for a URL, and the path in this file system."""
    try:
        import fsspec.core  # imported here, since only data on object storage needs it
    except ImportError:
        raise UserError(f"{url} needs the package fsspec: {_INSTALL_COMMAND}.") from None
    try:
        return fsspec.core.url_to_fs(url)
    except ImportError as problem:
        raise UserError(
            f"{url} needs a package that is not installed ({first_line(problem)}): {_INSTALL_COMMAND}."
        ) from None
    except Exception as problem:  # each storage library raises different exceptions
        raise UserError(f"{url} cannot be opened ({first_line(problem)}); check the address.") from None


def upload_folder(folder: Path, url: str) -> None:
    """Copy the files in a folder to a new URL; the index is copied last, after all shards that it lists."""
    files, root = open_storage(url.rstrip("/"))
    try:
        if files.exists(root) and files.find(root):
            raise UserError(f"OUT: {url} already contains files: give a new URL.")
        files.makedirs(root, exist_ok=True)
        for file in sorted(folder.iterdir(), key=lambda file: (file.suffix == ".npz", file.name)):
            files.put_file(str(file), f"{root.rstrip('/')}/{file.name}")
    except UserError:
        raise
    except Exception as problem:  # each storage library raises different exceptions
        raise UserError(f"OUT: {url} cannot be written ({first_line(problem)}): check the address.") from None


def _is_complete(target: Path, size: int) -> bool:
    """Return whether a file in the cache has `size` bytes; if so, mark the file as the most recently used."""
    try:
        if target.stat().st_size != size:
            return False
        os.utime(target)
    except OSError:
        return False
    return True


def _evict_shards(folder: Path, needed_bytes: int) -> None:
    """Remove abandoned temporary files, and the least recently used shards until `needed_bytes` fit into the cache."""
    for leftover in folder.rglob(".*.tmp"):
        with suppress(OSError):  # another process may have removed the file
            if time.time() - leftover.stat().st_mtime > _ABANDONED_SECONDS:
                leftover.unlink()
    files: list[tuple[float, int, Path]] = []
    for file in folder.rglob("[!.]*"):
        with suppress(OSError):  # another process may have removed the file
            status = file.stat()
            if stat.S_ISREG(status.st_mode) and file.suffix != ".npz":
                files.append((status.st_mtime, status.st_size, file))
    used_bytes = sum(size for _, size, _ in files)
    max_bytes = min(MAX_CACHE_BYTES, used_bytes + int(_MAX_FRACTION_OF_FREE_DISK * shutil.disk_usage(folder).free))
    for _, size, file in sorted(files, key=lambda entry: entry[0]):
        if used_bytes + needed_bytes <= max_bytes:
            return
        with suppress(OSError):  # Windows refuses to remove a file that another process has opened
            file.unlink(missing_ok=True)
            used_bytes -= size
