"""`Source`: one type of image location, such as a folder, a table or a URL, with functions to recognise and open it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from paucal.data.images import ImageSet
from paucal.data.unreadable import ReportProgress


@dataclass(frozen=True)
class SourceOptions:
    """Options for opening one location, with the meaning of the arguments of `open_images`.

    If `root` is None, the folder that the paths in a table or list are relative to is searched for. It may be the
    folder of the file, its parent, or a subfolder that is called `images` or is the only one. The images of a split
    (train, val or test) may be in a folder named after the split.
    """

    labelled: bool = True
    label_column: str | None = None
    image_column: str | None = None
    root: Path | None = None
    separator: str | None = None
    progress: ReportProgress | None = None
    download: bool = False
    skip_damaged: bool = False


@dataclass(frozen=True)
class Source:
    """One type of location that images are opened from, as an entry of `opening.SOURCES`."""

    noun: str  # noun for the location in messages, such as "a list file (.txt)"
    kind: Literal["name", "address", "file", "folder"]  # a name has precedence over a path; an address is remote
    recognise: Callable[[Any, SourceOptions], Any]  # (location, options) -> True or the files; else a false value
    open: Callable[[Any, Any, SourceOptions], ImageSet]  # (location, result of `recognise`, options) -> images
