"""Copies of a run folder as it is at one moment, while the run goes on writing."""

import os
import shutil
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from paucal.runs.folder import MARKER
from paucal.runs.lock import LOCK

_TRIES = 20  # snapshots of a run that writes at the same time
Stamp = tuple[int, int, int]  # size, time of change and number of a file


def take_snapshot(folder: Path, target: Path) -> dict[str, Stamp]:
    """Fill a folder with the files of a run as they are at one moment, as if its process had been killed then.

    Checkpoints are linked, since they are replaced and never changed; other files may grow, and are copied.

    Returns:
        The stamp of each file.
    """
    for _ in range(_TRIES):
        shutil.rmtree(target)
        before = _stamps(folder)
        try:
            for name in before:
                _link_or_copy(folder / name, target / name, is_linked=name.startswith("checkpoints/"))
        except FileNotFoundError:  # replaced in the meantime
            continue
        after = _stamps(folder)
        if _checkpoints(before) == _checkpoints(after):
            return before
    raise OSError("the run writes faster than it can be copied")


def _checkpoints(stamps: Mapping[str, Stamp]) -> dict[str, Stamp]:
    return {name: stamp for name, stamp in stamps.items() if name.startswith("checkpoints/") or name == MARKER}


def _stamps(folder: Path) -> dict[str, Stamp]:
    found = {}
    for file in sorted(folder.rglob("*")):
        name = file.relative_to(folder).as_posix()
        if file.name.startswith(".") or name == LOCK:
            continue
        with suppress(FileNotFoundError):  # removed in the meantime
            status = file.stat()
            if stat.S_ISREG(status.st_mode):
                found[name] = status.st_size, status.st_mtime_ns, status.st_ino
    return found


def _link_or_copy(source: Path, target: Path, is_linked: bool) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if is_linked:
        with suppress(OSError):  # this disk has no hard links, or the file is gone, which copying reports
            os.link(source, target)
            return
    shutil.copyfile(source, target)
