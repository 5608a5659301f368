"""New pictures in a folder, each once, after it has been written completely."""

import os
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from PIL import Image

from paucal.data.decode import Reading, UnreadableImage
from paucal.data.sources.suffixes import IMAGE_SUFFIXES
from paucal.runner.console import Console
from paucal.runner.input_images import Pictures, open_sources
from paucal.types import UserError
from paucal.verbs.predict.video import Frame

POLL = 1.0  # seconds between two checks of the folder
PATIENCE = 10.0  # seconds without a change after which an unreadable picture is skipped
_Stamp = tuple[int, int]  # bytes and time of change


def watched_pictures(
    folder: Path, known: set[str], idle: float | None, reading: Reading, console: Console
) -> Iterator[Frame | None]:
    """Yield new pictures below a folder, oldest first, and None after each check; add their paths to `known`.

    A picture counts as complete when its size and time have not changed between two checks and it can be decoded. A
    picture that stays unreadable is yielded without an image. Watching ends after `idle` seconds without a new picture;
    None for never.
    """
    if not folder.is_dir():
        raise UserError(f"--watch: there is no folder {str(folder)!r}: make it, or give another.")
    waiting, last = dict[str, _Stamp](), time.monotonic()
    while True:
        stamps = _picture_stamps(folder, known)
        complete = [path for path, stamp in stamps.items() if waiting.get(path) == stamp]
        for path in sorted(complete, key=lambda path: (stamps[path][1], path)):
            frame = _read_picture(path, reading, console, given_up=time.time() - stamps[path][1] / 1e9 > PATIENCE)
            if frame is not None:
                known.add(path)
                last = time.monotonic()
                yield frame
        waiting = stamps
        yield None
        if idle is not None and time.monotonic() - last >= idle and not set(stamps) - known:
            return
        time.sleep(POLL)


def _picture_stamps(folder: Path, predicted: set[str]) -> dict[str, _Stamp]:
    """Return the size and time of the pictures without predictions; hidden files are still being written."""
    stamps = {}
    for parent, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(parent, name)
            if path in predicted or name.startswith(".") or not name.lower().endswith(IMAGE_SUFFIXES):
                continue
            try:
                status = os.stat(path)
            except OSError:  # it was just removed or renamed
                continue
            stamps[path] = (status.st_size, status.st_mtime_ns)
    return stamps


def _read_picture(path: str, reading: Reading, console: Console, given_up: bool) -> Frame | None:
    """Return a picture; None if it cannot be read and may still be growing."""
    picture: Image.Image | None = None
    try:
        picture = Pictures(open_sources([path], console, reading), reading).read(0)
        picture.load()
    except (UnreadableImage, UserError, OSError) as problem:
        if not given_up:
            return None
        console.say(f"cannot be read, and has no prediction: {problem}")
    return Frame(path, None, datetime.now().isoformat(timespec="milliseconds"), picture)
