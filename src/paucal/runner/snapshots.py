"""Copy a run folder consistently while the run continues to write to it."""

import os
import shutil
import stat
from contextlib import suppress
from pathlib import Path

from paucal.runs.folder import CONFIG_FILE
from paucal.runs.lock import LOCK_FILE

_MAX_TRIES = 20  # maximum number of attempts to copy a run that is being written
FileStamp = tuple[int, int, int]  # size in bytes, modification time in ns, and inode number of a file


def take_snapshot(folder: Path, target: Path) -> dict[str, FileStamp]:
    """Replace `target` with a copy of a run's files at one moment; return the stamp of each file by relative path.

    Checkpoints are hard-linked, since runs replace checkpoint files but never change them. Other files may grow.
    """
    for _ in range(_MAX_TRIES):
        shutil.rmtree(target)
        first_stamps = _file_stamps(folder)
        try:
            for name in first_stamps:
                _link_or_copy(folder / name, target / name, is_linked=name.startswith("checkpoints/"))
        except FileNotFoundError:  # the run has replaced a file in the meantime
            continue
        second_stamps = _file_stamps(folder)
        changed = {name for name, _ in first_stamps.items() ^ second_stamps.items()}
        if CONFIG_FILE not in changed and not any(name.startswith("checkpoints/") for name in changed):
            return first_stamps
    raise OSError("the run writes faster than it can be copied")


def _file_stamps(folder: Path) -> dict[str, FileStamp]:
    stamps = {}
    for file in sorted(folder.rglob("*")):
        name = file.relative_to(folder).as_posix()
        if file.name.startswith(".") or name == LOCK_FILE:
            continue
        with suppress(FileNotFoundError):  # the run has removed the file in the meantime
            status = file.stat()
            if stat.S_ISREG(status.st_mode):
                stamps[name] = status.st_size, status.st_mtime_ns, status.st_ino
    return stamps


def _link_or_copy(source: Path, target: Path, is_linked: bool) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if is_linked:
        with suppress(OSError):  # the disk has no hard links, or the file is gone, which `copyfile` reports
            os.link(source, target)
            return
    shutil.copyfile(source, target)
