"""The labelling page: the next image of each of several tabs, and the table of the saved labels.

Each label is appended to the table and flushed to the disk before it is confirmed; only undoing a label rewrites the
whole file. If the process is killed, at most a line that was never confirmed is cut off.
"""

import csv
import io
import os
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from PIL import Image

from paucal.data.decode import UnreadableImage
from paucal.data.images import ImageSet
from paucal.reading import named_path
from paucal.runner.outputs import refuse_inside_images
from paucal.runs.files import csv_text, try_folder, write_atomically
from paucal.types import UserError

SIDE = 1600  # longest side of a picture on the page, in pixels
LEASE = 120.0  # seconds for which an image is reserved for the tab that shows it
OFFER = 50  # new labels after which the page offers to train again
NONE = ""  # label of images that belong to none of the classes
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


class Conflict(UserError):
    """The image got another label from another tab."""


@dataclass
class Tab:
    """An open page, with the images that were labelled in it, the latest last, and those that were postponed."""

    given: list[int] = field(default_factory=list)
    skipped: set[int] = field(default_factory=set)


@dataclass(frozen=True)
class Suggestion:
    """The model's suggestion for an image: its likeliest classes with probabilities, and the reason for its rank."""

    answers: Sequence[tuple[str, float]] = ()
    reason: str = ""


class Labelling:
    """Images that people label, one at a time in each tab, called from several threads.

    Args:
        images: Images to label.
        paths: Path of each image.
        order: Positions of the images, the most useful first.
        classes: Classes to choose from.
        saved: File of the labels.
        suggestions: Suggestions of a model, by position of the image.
        command: Training command for the labels.
    """

    def __init__(
        self,
        images: ImageSet,
        paths: Sequence[str],
        order: Sequence[int],
        classes: Sequence[str],
        saved: LabelFile,
        suggestions: Mapping[int, Suggestion],
        command: str,
    ) -> None:
        self.classes = tuple(classes)
        self._images, self._paths, self._order, self._saved = images, list(paths), list(order), saved
        self._suggestions, self._command = suggestions, command
        self._lock = threading.Lock()
        self._tabs: dict[str, Tab] = {}
        self._leases: dict[int, tuple[str, float]] = {}
        self._at_first = len(saved.labels)

    def state(self) -> dict[str, Any]:
        """Return the rest of the page: classes, progress and the training command."""
        n_labelled = sum(path in self._saved.labels for path in self._paths)
        n_new = len(self._saved.labels) - self._at_first
        return {
            "classes": list(self.classes),
            "done": n_labelled,
            "total": len(self._paths),
            "file": str(self._saved.path),
            "command": self._command if n_new >= OFFER or n_labelled == len(self._paths) else "",
        }

    def next(self, name: str) -> dict[str, Any]:
        """Return the image that a tab shows next; no other tab gets it meanwhile."""
        with self._lock:
            return self._next_item(name)

    def save(self, name: str, index: int, label: str) -> dict[str, Any]:
        """Save a label of a tab, one of the classes or `NONE`, and return the next image.

        A Conflict is raised if the image has another label, and a UserError if there is no such image or class.
        """
        with self._lock:
            path = self._checked_path(index)
            if label != NONE and label not in self.classes:
                raise UserError(f"there is no class {label[:80]!r}: reload the page.")
            stored_label = self._saved.labels.get(path)
            if stored_label is None:
                self._saved.add(path, label)
            elif stored_label != label:
                text = f"this image was labelled {stored_label or 'none of these'} in another tab"
                raise Conflict(f"{text}; that label is kept.")
            tab = self._state_of_tab(name)
            if index not in tab.given:  # a page that got no response sends the same request again
                tab.given.append(index)
            self._leases.pop(index, None)
            return self._next_item(name)

    def skip(self, name: str, index: int) -> dict[str, Any]:
        """Show an image after all others in this tab, and return the next one."""
        with self._lock:
            self._checked_path(index)
            self._state_of_tab(name).skipped.add(index)
            self._leases.pop(index, None)
            return self._next_item(name)

    def undo(self, name: str) -> dict[str, Any]:
        """Undo the latest label of a tab, and return its image."""
        with self._lock:
            tab = self._state_of_tab(name)
            while tab.given:
                index = tab.given.pop()
                if self._checked_path(index) in self._saved.labels:
                    self._saved.remove(self._checked_path(index))
                    self._leases[index] = (name, time.monotonic())
                    return self._as_json(index)
            return self._next_item(name)

    def picture(self, index: int) -> bytes:
        """Return an image as JPEG."""
        self._checked_path(index)
        try:
            picture = self._images.store.read(index).convert("RGB")
        except UnreadableImage as problem:
            raise UserError(str(problem)) from problem
        picture.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
        buffer = io.BytesIO()
        picture.save(buffer, "JPEG", quality=90)
        return buffer.getvalue()

    def _next_item(self, name: str) -> dict[str, Any]:
        tab, now = self._state_of_tab(name), time.monotonic()
        # A tab has one image: the image that it showed before is free for other tabs.
        self._leases = {
            index: (owner, since)
            for index, (owner, since) in self._leases.items()
            if owner != name and now - since < LEASE
        }
        unlabelled = [index for index in self._order if self._paths[index] not in self._saved.labels]
        waiting = [index for index in unlabelled if index not in self._leases]
        index = next((index for index in waiting if index not in tab.skipped), next(iter(waiting), None))
        if index is None:
            return {**self.state(), "image": None, "elsewhere": len(unlabelled)}
        self._leases[index] = (name, now)
        return self._as_json(index)

    def _as_json(self, index: int) -> dict[str, Any]:
        suggestion = self._suggestions.get(index, Suggestion())
        answers = [{"name": name, "probability": round(share, 4)} for name, share in suggestion.answers]
        image = {"number": index, "name": self._images.keys[index], "answers": answers, "reason": suggestion.reason}
        return {**self.state(), "image": image}

    def _checked_path(self, index: int) -> str:
        if not 0 <= index < len(self._paths):
            raise UserError("there is no such image: reload the page.")
        return self._paths[index]

    def _state_of_tab(self, name: str) -> Tab:
        return self._tabs.setdefault(name[:64], Tab())
