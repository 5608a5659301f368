"""Where shards lie: in a folder of this machine, or on object storage, from where each is fetched once and kept."""

import hashlib
import os
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, TypeVar

from paucal.data.decode import UnreadableImage
from paucal.data.decoded.cache_folder import OFF, VARIABLE, usable_folder
from paucal.data.shards.index import Shard
from paucal.data.sources.archive import checked_name
from paucal.data.sources.folder import require_readable
from paucal.reading import read_bytes
from paucal.types import UserError

FOLDER = "shards"  # of the cache
MOST_FETCHED = 32 << 30  # bytes of fetched shards on this machine
_SHARE_OF_FREE = 0.5
_TRIES = 3
_PAUSE = 2.0  # seconds before the second try, twice as long before the third
T = TypeVar("T")
_EXTRA = "pip install 'paucal[remote]'"


class ShardFolder(Protocol):
    """A folder of shards; it is picklable, so that loader workers can be spawned."""

    @property
    def name(self) -> str:
        """Short name for people."""
        ...

    @property
    def location(self) -> str:
        """As `ImageSet.location`."""
        ...

    def listing(self) -> list[Shard] | None:
        """Return all files below, sorted by name, without their parts; None where the storage lists none."""
        ...

    def content(self, name: str, most: int) -> bytes | None:
        """Return a small file; None where there is none. Raises a `UserError`."""
        ...

    def path(self, shard: Shard) -> Path:
        """Return where a shard lies on this machine, fetched where it has to be; raises `UnreadableImage`."""
        ...


class LocalShardFolder:
    """Shards in a folder.

    Args:
        root: the folder.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()

    @property
    def name(self) -> str:
        """Name of the folder."""
        return self.root.name

    @property
    def location(self) -> str:
        """Full path."""
        return str(self.root)

    def listing(self) -> list[Shard]:
        """Return the files of the folder, and of the folders in it."""
        require_readable(self.root)
        files = sorted(file for pattern in ("*", "*/*") for file in self.root.glob(pattern) if file.is_file())
        return [stamped(file, file.relative_to(self.root).as_posix()) for file in files]

    def content(self, name: str, most: int) -> bytes | None:
        """Return a small file; None where there is none."""
        path = self.root / checked_name(self.location, name)
        return read_bytes(path, most) if path.exists() else None

    def path(self, shard: Shard) -> Path:
        """Return the path of a shard."""
        return self.root / shard.name


def stamped(file: Path, name: str) -> Shard:
    """Return a file of this machine as a shard of that name."""
    found = file.stat()
    return Shard(name, found.st_size, changed=found.st_mtime_ns)


class RemoteShardFolder:
    """Shards on object storage, or whatever fsspec can read.

    A shard is fetched whole, by one process for all, when the first image of it is needed; it stays until others need
    its room. What was not used longest goes first.

    Args:
        url: of the folder.
    """

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        folder = usable_folder()
        if folder is None:
            raise UserError(
                f"shards of {url} are fetched into the cache of images, which is off or cannot be written: set "
                f"{VARIABLE} to a folder (not {OFF!r})"
            )
        self.cache = folder / FOLDER / hashlib.blake2b(self.url.encode(), digest_size=16).hexdigest()
        self._opened: tuple[Any, str] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_opened": None}

    @property
    def name(self) -> str:
        """Last part of the URL."""
        return self.url.rsplit("/", 1)[-1]

    @property
    def location(self) -> str:
        """The URL."""
        return self.url

    def listing(self) -> list[Shard] | None:
        """Return the files below the URL; None where the storage lists none, as that of most web servers."""
        files, root = self._storage()
        try:
            found = files.find(root, detail=True)
        except NotImplementedError:
            return None
        except Exception as problem:  # every storage has its own types
            raise UserError(f"{self.url} cannot be listed ({_first_line(problem)}); check the address") from None
        sizes = {path.rstrip("/"): one.get("size") for path, one in found.items()}
        if not sizes or any(size is None for size in sizes.values()):
            return None
        names = {path: path.removeprefix(root.rstrip("/")).lstrip("/") for path in sizes}
        shards = [Shard(checked_name(self.url, name), int(sizes[path] or 0)) for path, name in names.items()]
        return sorted(shards, key=lambda shard: shard.name)

    def content(self, name: str, most: int) -> bytes | None:
        """Return a small file; None where there is none."""
        files, root = self._storage()
        try:
            with files.open(f"{root.rstrip('/')}/{checked_name(self.url, name)}", "rb") as file:
                found = file.read(most + 1)
        except FileNotFoundError:
            return None
        except Exception as problem:  # as above
            raise UserError(f"{self.url}/{name} cannot be read ({_first_line(problem)}); check the address") from None
        if len(found) > most:
            raise UserError(f"{self.url}/{name} has more than {most:,} bytes, the most that are read of such a file")
        return found

    def path(self, shard: Shard) -> Path:
        """Return the fetched shard.

        Raises:
            UnreadableImage: it cannot be fetched, or is not the one that the index knows.
        """
        target = self.cache / shard.name
        if _is_there(target, shard.size):
            return target
        from filelock import FileLock  # as fsspec above

        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with FileLock(target.with_name(f".{target.name}.lock")):
            if not _is_there(target, shard.size):  # another process has fetched it meanwhile
                _make_room(self.cache.parent, shard.size)
                self._fetch(shard, target)
        return target

    def opened(self, shard: Shard) -> Any:
        """Return a shard opened to read some of its bytes: here where it was fetched, else far away."""
        target = self.cache / shard.name
        if _is_there(target, shard.size):
            return target.open("rb")
        files, root = self._storage()
        return files.open(f"{root.rstrip('/')}/{shard.name}", "rb")

    def known(self, name: str) -> Shard:
        """Return a file of the place by its name, where the storage may list none.

        Raises:
            UserError: it is not there, or the storage does not tell how large it is.
        """
        files, root = self._storage()
        try:
            size = files.info(f"{root.rstrip('/')}/{checked_name(self.url, name)}").get("size")
        except FileNotFoundError:
            raise UserError(f"{self.url}/{name} does not exist; check the address") from None
        except Exception as problem:  # as above
            raise UserError(f"{self.url}/{name} cannot be read ({_first_line(problem)}); check the address") from None
        if size is None:
            raise UserError(f"{self.url} does not tell how large {name} is: fetch it, and give the file")
        return Shard(name, int(size))

    def _fetch(self, shard: Shard, target: Path) -> None:
        temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
        try:
            retry(lambda: self._get(shard.name, temporary))
            size = temporary.stat().st_size
            if size != shard.size:
                raise UnreadableImage(
                    f"the shard {shard.name} of {self.url} has {size} bytes, and the index says {shard.size}; "
                    "index the shards again"
                )
            temporary.replace(target)
        except FileNotFoundError:
            raise UnreadableImage(
                f"the shard {shard.name} is missing in {self.url}, and the index names it; put it there, or index the "
                "shards again"
            ) from None
        except UserError:
            raise
        except Exception as problem:  # as above
            raise UnreadableImage(
                f"the shard {shard.name} cannot be fetched from {self.url} ({_first_line(problem)}); check the network"
            ) from None
        finally:
            temporary.unlink(missing_ok=True)

    def _get(self, name: str, target: Path) -> None:
        files, root = self._storage()
        files.get_file(f"{root.rstrip('/')}/{name}", str(target))

    def _storage(self) -> tuple[Any, str]:
        """Return the file system and the path in it, opened anew in every process."""
        if self._opened is None:
            self._opened = open_storage(self.url)
        return self._opened


def is_remote(location: str | Path) -> bool:
    """Whether a location is a URL such as `s3://bucket/shards`.

    Example:
        >>> is_remote("s3://bucket/shards"), is_remote("photos/"), is_remote("hf:owner/name")
        (True, False, False)
    """
    return "://" in str(location)


def open_storage(url: str) -> tuple[Any, str]:
    """Return fsspec's file system of a URL and the path in it.

    Raises:
        UserError: a package is missing, or the address is none.
    """
    try:
        import fsspec.core  # loaded here: only data on object storage needs it
    except ImportError:
        raise UserError(f"{url} needs fsspec: {_EXTRA}") from None
    try:
        return fsspec.core.url_to_fs(url)
    except ImportError as problem:
        raise UserError(f"{url} needs a package that is not installed ({_first_line(problem)}): {_EXTRA}") from None
    except Exception as problem:  # every storage has its own types
        raise UserError(f"{url} cannot be opened ({_first_line(problem)}); check the address") from None


def upload(folder: Path, url: str) -> None:
    """Copy the files of a folder to a new place on object storage; the index last, which says that all are there.

    Raises:
        UserError: the place holds files already, or cannot be written.
    """
    files, root = open_storage(url.rstrip("/"))
    try:
        if files.exists(root) and files.find(root):
            raise UserError(f"OUT: {url} holds something already: give a place that is new.")
        files.makedirs(root, exist_ok=True)
        for file in sorted(folder.iterdir(), key=lambda file: (file.suffix == ".npz", file.name)):
            files.put_file(str(file), f"{root.rstrip('/')}/{file.name}")
    except UserError:
        raise
    except Exception as problem:  # every storage has its own types
        raise UserError(f"OUT: {url} cannot be written ({_first_line(problem)}): check the address.") from None


def fetched_bytes(folder: Path) -> int:
    """Return what fetched shards and stored indices take in a cache folder."""
    return sum(file.stat().st_size for file in (folder / FOLDER).rglob("*") if file.is_file())


def clear_fetched(folder: Path) -> int:
    """Remove fetched shards and stored indices from a cache folder, and return the bytes that this freed."""
    total = fetched_bytes(folder)
    shutil.rmtree(folder / FOLDER, ignore_errors=True)
    return total - fetched_bytes(folder)


def _is_there(target: Path, size: int) -> bool:
    try:
        if target.stat().st_size != size:
            return False
        os.utime(target)  # it counts as used
    except OSError:
        return False
    return True


def _make_room(folder: Path, needed: int) -> None:
    """Remove shards that were used longest ago until there is room for another one."""
    shards = (file for file in folder.rglob("[!.]*") if file.is_file() and file.suffix != ".npz")
    files = sorted(((file.stat().st_mtime, file) for file in shards), key=lambda one: one[0])
    used = sum(file.stat().st_size for _, file in files)
    most = min(MOST_FETCHED, used + int(_SHARE_OF_FREE * shutil.disk_usage(folder).free))
    for _, file in files:
        if used + needed <= most:
            return
        with suppress(OSError):  # open elsewhere, on Windows, or gone already
            used -= file.stat().st_size
            file.unlink()


def retry(work: Callable[[], T]) -> T:
    """Return what some work with a network returns, which is tried three times."""
    for attempt in range(_TRIES):
        try:
            return work()
        except (FileNotFoundError, UserError):  # which another try would not change
            raise
        except Exception:  # as above; networks fail for a while
            if attempt + 1 == _TRIES:
                raise
            time.sleep(_PAUSE * 2**attempt)
    raise AssertionError


def _first_line(problem: BaseException) -> str:
    return str(problem).split("\n")[0].strip() or type(problem).__name__
