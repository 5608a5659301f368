"""The labelling page: the next image for each open browser tab, and the CSV file of labels.

Each label is appended to the file and flushed to disk before it is confirmed; only undoing a label rewrites the file.
If the process is killed, at most the last line, whose label was not confirmed, is incomplete.
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
from paucal.reading import expand_user_path
from paucal.runner.outputs import refuse_inside_images
from paucal.runner.writable import check_folder_writable
from paucal.types import UserError
from paucal.writing import csv_text, write_atomically

MAX_SIDE = 1600  # largest side of an image on the page, in pixels
LEASE_SECONDS = 120.0  # time for which an image is reserved for the tab that shows the image
LABELS_PER_TRAINING = 50  # number of new labels after which the page shows the training command
NO_CLASS = ""  # label of images that belong to none of the classes
COLUMNS = ("image_path", "label")
MAX_FILE_BYTES = 1 << 28  # size limit of an existing file of labels


class LabelFile:
    """Labels of images and their CSV file; a context manager that locks the file against other processes.

    Labels in an existing file are read, and further labels are appended.

    Attributes:
        labels: Labels by path of the image, in the order in which they were saved; "" for "none of the classes".
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
        # The lock file is removed before it is closed, so that no other process can lock the file in between.
        Path(self._lock.name).unlink(missing_ok=True)
        self._lock.close()

    def add(self, image: str, label: str) -> None:
        """Append a label and flush it to disk. An OSError is raised if the disk is full."""
        if not self.path.exists():
            self._write_labels(self.labels)
        size = self.path.stat().st_size
        with self.path.open("ab") as file:
            try:
                file.write(_encode_rows((image, label)))
                file.flush()
                os.fsync(file.fileno())
            except OSError:
                with suppress(OSError):
                    os.truncate(self.path, size)
                raise
        self.labels[image] = label

    def remove(self, image: str) -> None:
        """Remove the label of an image, and rewrite the file on disk."""
        remaining = {name: label for name, label in self.labels.items() if name != image}
        self._write_labels(remaining)
        self.labels = remaining

    def _write_labels(self, labels: dict[str, str]) -> None:
        write_atomically(self.path, lambda file: file.write(_encode_rows(COLUMNS, *labels.items())))

    def _read_labels(self) -> None:
        if not self.path.exists():
            return
        if self.path.stat().st_size > MAX_FILE_BYTES:
            raise UserError(f"--save: {str(self.path)!r} is too large for a file of labels: give another name.")
        content = self.path.read_bytes()
        complete_lines = content[: content.rfind(b"\n") + 1]  # an incomplete line is a label that was not confirmed
        rows = list(csv.reader(io.StringIO(complete_lines.decode(errors="surrogateescape"), newline="")))
        if not rows or tuple(rows[0]) != COLUMNS or any(len(row) != len(COLUMNS) for row in rows):
            raise UserError(
                f"--save: {str(self.path)!r} is not a CSV file with the columns image_path,label written by this page: "
                "give another name."
            )
        self.labels = {image: label for image, label in rows[1:]}
        if len(complete_lines) < len(content):
            self._write_labels(self.labels)


def check_label_file(text: str, images: str) -> Path:
    """Return the path of the CSV file of labels, after checking that it can be written."""
    path = expand_user_path(text, "--save")
    if path.suffix.lower() != ".csv":
        raise UserError(f"--save: {text[:120]!r} must end in .csv: give another name.")
    refuse_inside_images(path, {"--label": images}, flag="--save")
    check_folder_writable(path.parent, "--save")
    return path


def _encode_rows(*rows: tuple[str, str]) -> bytes:
    return csv_text(*rows).encode(errors="surrogateescape")


def _lock_or_refuse(descriptor: int, path: Path) -> None:
    """Lock an open file until it is closed or the process ends, or refuse if another process has locked it."""
    try:
        import fcntl
    except ImportError:  # Windows
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise UserError(
            f"--save: another process of paucal serve is writing {str(path)!r}: stop it, or give another name."
        ) from None


class Conflict(UserError):
    """The image already has a different label, saved in another tab."""


@dataclass
class Tab:
    """A browser tab with the labelling page."""

    labelled: list[int] = field(default_factory=list)  # positions of images labelled in this tab, the latest last
    skipped: set[int] = field(default_factory=set)  # positions of images postponed in this tab


@dataclass(frozen=True)
class Suggestion:
    """A model's suggestion for an image."""

    top_classes: Sequence[tuple[str, float]] = ()  # most probable classes with their probabilities
    reason: str = ""  # why the image is worth labelling


class Labelling:
    """The images to label and their labels; each browser tab shows one image at a time. The methods are thread-safe.

    `order` has the positions of the images, the most useful first. `suggestions` maps positions of images to the
    suggestions of a model. `command` is a shell command that trains on the labels.
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
        self._initial_count = len(saved.labels)

    def state(self) -> dict[str, Any]:
        """Return what the page shows beside the image: the classes, the progress and the training command."""
        n_labelled = sum(path in self._saved.labels for path in self._paths)
        n_new = len(self._saved.labels) - self._initial_count
        return {
            "classes": list(self.classes),
            "done": n_labelled,
            "total": len(self._paths),
            "file": str(self._saved.path),
            "command": self._command if n_new >= LABELS_PER_TRAINING or n_labelled == len(self._paths) else "",
        }

    def next(self, name: str) -> dict[str, Any]:
        """Return the image that a tab shows next, and reserve it for this tab."""
        with self._lock:
            return self._next_item(name)

    def save(self, name: str, index: int, label: str) -> dict[str, Any]:
        """Save a label from a tab, one of the classes or `NO_CLASS`, and return the next image.

        Conflict is raised if the image already has a different label, UserError if the image or the class is unknown.
        """
        with self._lock:
            path = self._checked_path(index)
            if label != NO_CLASS and label not in self.classes:
                raise UserError(f"there is no class {label[:80]!r}: reload the page.")
            stored_label = self._saved.labels.get(path)
            if stored_label is None:
                self._saved.add(path, label)
            elif stored_label != label:
                text = f"this image was labelled {stored_label or 'none of these'} in another tab"
                raise Conflict(f"{text}; that label is kept.")
            tab = self._find_tab(name)
            if index not in tab.labelled:  # a page that received no response repeats its request
                tab.labelled.append(index)
            self._leases.pop(index, None)
            return self._next_item(name)

    def skip(self, name: str, index: int) -> dict[str, Any]:
        """Postpone an image until this tab has shown all other images, and return the next image."""
        with self._lock:
            self._checked_path(index)
            self._find_tab(name).skipped.add(index)
            self._leases.pop(index, None)
            return self._next_item(name)

    def undo(self, name: str) -> dict[str, Any]:
        """Remove the latest label saved in a tab, and return its image; if there is no label, return the next image."""
        with self._lock:
            tab = self._find_tab(name)
            while tab.labelled:
                index = tab.labelled.pop()
                if self._checked_path(index) in self._saved.labels:
                    self._saved.remove(self._checked_path(index))
                    self._leases[index] = (name, time.monotonic())
                    return self._as_json(index)
            return self._next_item(name)

    def picture(self, index: int) -> bytes:
        """Return the image at a position as JPEG bytes."""
        self._checked_path(index)
        try:
            picture = self._images.store.read(index).convert("RGB")
        except UnreadableImage as problem:
            raise UserError(str(problem)) from problem
        picture.thumbnail((MAX_SIDE, MAX_SIDE), Image.Resampling.LANCZOS)
        buffer = io.BytesIO()
        picture.save(buffer, "JPEG", quality=90)
        return buffer.getvalue()

    def _next_item(self, name: str) -> dict[str, Any]:
        tab, now = self._find_tab(name), time.monotonic()
        # Drop expired reservations and the tab's previous reservation, since a tab shows one image at a time.
        self._leases = {
            index: (owner, since)
            for index, (owner, since) in self._leases.items()
            if owner != name and now - since < LEASE_SECONDS
        }
        unlabelled = [index for index in self._order if self._paths[index] not in self._saved.labels]
        available = [index for index in unlabelled if index not in self._leases]
        index = next((index for index in available if index not in tab.skipped), next(iter(available), None))
        if index is None:
            return {**self.state(), "image": None, "elsewhere": len(unlabelled)}
        self._leases[index] = (name, now)
        return self._as_json(index)

    def _as_json(self, index: int) -> dict[str, Any]:
        suggestion = self._suggestions.get(index, Suggestion())
        top_classes = [{"name": name, "probability": round(value, 4)} for name, value in suggestion.top_classes]
        image = {"number": index, "name": self._images.keys[index], "answers": top_classes, "reason": suggestion.reason}
        return {**self.state(), "image": image}

    def _checked_path(self, index: int) -> str:
        if not 0 <= index < len(self._paths):
            raise UserError("there is no such image: reload the page.")
        return self._paths[index]

    def _find_tab(self, name: str) -> Tab:
        return self._tabs.setdefault(name[:64], Tab())
