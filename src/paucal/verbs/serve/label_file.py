"""The table of labels from the labelling page: each label is appended and flushed to the disk before it is confirmed.

Only undoing a label rewrites the whole file. If the process is killed, at most a line that was never confirmed is cut
off.
"""

import csv
import io
import os
from contextlib import suppress
from pathlib import Path

from paucal.reading import named_path
from paucal.runner.outputs import refuse_inside_images
from paucal.runs.files import csv_text, try_folder, write_atomically
from paucal.types import UserError

COLUMNS = ("image_path", "label")
MAX_BYTES = 1 << 28


class LabelFile:
    """Labels by image, and the CSV file that holds them; a context manager that keeps other processes out.

    An existing file is continued.

    Attributes:
        labels: Label by path of the image, in the order they were given; "" for "none of the classes".
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.labels: dict[str, str] = {}

    def __enter__(self) -> "LabelFile":
        self._lock = self.path.with_name(f".{self.path.name}.lock").open("ab")
        try:
            _lock_or_refuse(self._lock.fileno(), self.path)
            self._read_labels()
        except BaseException:
            self._lock.close()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        Path(self._lock.name).unlink(missing_ok=True)  # while it is locked
        self._lock.close()

    def add(self, image: str, label: str) -> None:
        """Store a label; it is on the disk when this returns. An OSError is raised if the disk is full."""
        if not self.path.exists():
            self._write_labels(self.labels)
        size = self.path.stat().st_size
        with self.path.open("ab") as file:
            try:
                file.write(_encode((image, label)))
                file.flush()
                os.fsync(file.fileno())
            except OSError:
                with suppress(OSError):
                    os.truncate(self.path, size)
                raise
        self.labels[image] = label

    def remove(self, image: str) -> None:
        """Undo a label; the file without it is on the disk when this returns."""
        remaining = {name: label for name, label in self.labels.items() if name != image}
        self._write_labels(remaining)
        self.labels = remaining

    def _write_labels(self, labels: dict[str, str]) -> None:
        write_atomically(self.path, lambda file: file.write(_encode(COLUMNS, *labels.items())))

    def _read_labels(self) -> None:
        if not self.path.exists():
            return
        if self.path.stat().st_size > MAX_BYTES:
            raise UserError(f"--save: {str(self.path)!r} is too large for a table of labels: give another name.")
        content = self.path.read_bytes()
        complete_lines = content[: content.rfind(b"\n") + 1]  # the rest was not confirmed
        rows = list(csv.reader(io.StringIO(complete_lines.decode(errors="surrogateescape"), newline="")))
        if not rows or tuple(rows[0]) != COLUMNS or any(len(row) != len(COLUMNS) for row in rows):
            raise UserError(
                f"--save: {str(self.path)!r} is not a table of image_path,label as this page writes it: give "
                "another name."
            )
        self.labels = {image: label for image, label in rows[1:]}
        if len(complete_lines) < len(content):
            self._write_labels(self.labels)


def check_label_file(text: str, images: str) -> Path:
    """Return the path of the table of labels."""
    path = named_path(text, "--save")
    if path.suffix.lower() != ".csv":
        raise UserError(f"--save: {text[:120]!r} must end in .csv: give another name.")
    refuse_inside_images(path, {"--label": images}, flag="--save")
    try_folder(path.parent, "--save")
    return path


def _encode(*rows: tuple[str, str]) -> bytes:
    return csv_text(*rows).encode(errors="surrogateescape")


def _lock_or_refuse(descriptor: int, path: Path) -> None:
    """Lock a file for the life of the process; a killed process loses the lock."""
    try:
        import fcntl
    except ImportError:  # Windows
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise UserError(f"--save: another page is writing {str(path)!r}: end it, or give another name.") from None
