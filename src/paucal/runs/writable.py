"""Check by trying whether results can be written."""

import errno
import os
import tempfile
from pathlib import Path

from paucal.types import UserError

LONGEST = ".predictions.csv.4194304.tmp"  # of the names that are written into a folder of results


def try_folder(path: Path, flag: str = "--output") -> None:
    """Check whether files can be written into a folder, without leaving any.

    Raises:
        UserError: they cannot.
    """
    _try(path, LONGEST, path, flag)


def _try(path: Path, name: str, asked: Path, flag: str) -> None:
    made: list[Path] = []
    try:
        for folder in (*reversed(path.absolute().parents), path.absolute()):
            if folder.exists() and not folder.is_dir():
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
            if not folder.is_dir():
                folder.mkdir()
                made.append(folder)
        with tempfile.TemporaryDirectory(dir=path, prefix=".paucal-", ignore_cleanup_errors=True) as probe:
            Path(probe, name).touch()
    except (OSError, ValueError) as problem:
        raise UserError(_sentence(asked, flag, problem)) from problem
    finally:
        for folder in reversed(made):
            try:
                folder.rmdir()
            except OSError:  # another process has begun to use it
                break


def try_file(path: Path, flag: str = "--output") -> None:
    """Check whether a new file can be written, without leaving it.

    Raises:
        UserError: it exists already, or cannot be written.
    """
    try:
        taken = path.exists() or path.is_symlink()
    except (OSError, ValueError) as problem:  # too long a name
        raise UserError(_sentence(path, flag, problem)) from problem
    if taken:
        raise UserError(f"{flag}: {str(path)!r} exists already: choose another name, or remove it.")
    temporary = f".{path.name}.{os.getpid()}.tmp"  # what `write_atomically` is going to write
    _try(path.parent, temporary, path, flag)


def _sentence(path: Path, flag: str, problem: Exception) -> str:
    reason = getattr(problem, "strerror", None) or str(problem)
    shown = str(path) if len(str(path)) <= 120 else f"{str(path)[:120]}..."
    return f"{flag}: {shown!r} cannot be written ({reason[0].lower()}{reason[1:]}): give a folder and name that can."
