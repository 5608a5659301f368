"""Write files and folders atomically, so that readers never see partial content."""

import csv
import io
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO


def write_atomically(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Let `write` fill a temporary file beside `path`, flush the file to disk, and rename it to `path`.

    After a crash or an error at any time, `path` contains either the old or the new content, never a mixture.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            _write_file(file, write)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as problem:
        if problem.errno is None:
            raise
        raise OSError(problem.errno, problem.strerror, str(path)) from problem
    finally:
        temporary.unlink(missing_ok=True)
    _sync_folder(path.parent)


def _write_file(file: BinaryIO, write: Callable[[BinaryIO], object]) -> None:
    recording_file = _ErrorRecordingFile(file)
    try:
        write(recording_file)  # type: ignore[arg-type]
    except Exception as error:
        if isinstance(error, OSError) or recording_file.problem is None:
            raise
        raise recording_file.problem from None


class _ErrorRecordingFile:
    """File wrapper that keeps the OSError of a failed write, which `torch.save` replaces by a RuntimeError."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.problem: OSError | None = None

    def write(self, content: bytes) -> int:
        """Write the content; if this raises an OSError, keep the error as `problem`."""
        try:
            return self._file.write(content)
        except OSError as problem:
            self.problem = problem
            raise

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def link_or_copy(source: Path, path: Path) -> None:
    """Make `path` a second name or a copy of the file `source`, atomically.

    A hard link is used if the file system supports hard links. This is safe because `source` is only ever replaced by
    a new file, never modified in place.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        try:
            os.link(source, temporary)
        except OSError:
            shutil.copyfile(source, temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    _sync_folder(path.parent)


@contextmanager
def replace_folder(path: Path) -> Iterator[Path]:
    """Yield a new folder to write into, which replaces the folder `path` when the block ends without an error.

    If the block raises an error or the process is killed, the old folder stays unchanged.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent) as temporary:
        new_folder = Path(temporary) / path.name  # a subfolder, since only the owner may read `temporary` itself
        new_folder.mkdir()
        yield new_folder
        if path.exists():
            path.rename(Path(temporary) / "before")
        new_folder.rename(path)


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text atomically.

    Bytes of Linux file names that are not UTF-8 are written as escapes, which JSON parsers convert back.
    """
    write_atomically(path, lambda file: file.write(text.encode(errors="backslashreplace")))


def csv_text(*rows: Iterable[object]) -> str:
    r"""Return rows as CSV text with "\n" line ends; the first row is the header.

    Example:
        >>> csv_text(("class", "images"), ("cat, dog", 3)).splitlines()
        ['class,images', '"cat, dog",3']
    """
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def _sync_folder(folder: Path) -> None:
    """Flush a rename in a folder to disk, on systems that support this (Windows does not)."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
