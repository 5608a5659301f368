"""Check that an output path can be written before work begins."""

import errno
import os
import tempfile
from pathlib import Path

from paucal.types import UserError

LONGEST_NAME = ".predictions.csv.4194304.tmp"  # an example of the longest file name in an output folder


def check_folder_writable(path: Path, flag: str = "--output") -> None:
    """Raise a UserError unless files can be written into a folder (which may not exist yet); leave no file behind."""
    _try_to_write(path, LONGEST_NAME, path, flag)


def _try_to_write(path: Path, name: str, target: Path, flag: str) -> None:
    """Create a file `name` in the folder `path` and remove it again; the error message of a failure names `target`."""
    created: list[Path] = []
    try:
        for folder in (*reversed(path.absolute().parents), path.absolute()):
            if folder.exists() and not folder.is_dir():
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
            if not folder.is_dir():
                folder.mkdir()
                created.append(folder)
        with tempfile.TemporaryDirectory(dir=path, prefix=".paucal-", ignore_cleanup_errors=True) as probe:
            Path(probe, name).touch()
    except (OSError, ValueError) as problem:
        raise UserError(_format_write_error(target, flag, problem)) from problem
    finally:
        for folder in reversed(created):
            try:
                folder.rmdir()
            except OSError:  # another process uses the folder
                break


def check_file_writable(path: Path, flag: str = "--output") -> None:
    """Raise a UserError unless a new file can be written at `path`; leave no file behind."""
    try:
        is_taken = path.exists() or path.is_symlink()
    except (OSError, ValueError) as problem:  # the name is too long
        raise UserError(_format_write_error(path, flag, problem)) from problem
    if is_taken:
        raise UserError(f"{flag}: {str(path)!r} exists already: choose another name, or remove it.")
    temporary = f".{path.name}.{os.getpid()}.tmp"  # the name of the temporary file in `write_atomically`
    _try_to_write(path.parent, temporary, path, flag)


def _format_write_error(path: Path, flag: str, problem: Exception) -> str:
    reason = getattr(problem, "strerror", None) or str(problem)
    path_text = str(path) if len(str(path)) <= 120 else f"{str(path)[:120]}..."
    return f"{flag}: {path_text!r} cannot be written ({reason[0].lower()}{reason[1:]}): give another folder or name."
