"""Definition of a source of images: how its locations are recognised and opened, and its options."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from paucal.data.images import ImageSet
from paucal.data.unreadable import ReportProgress


@dataclass(frozen=True)
class SourceOptions:
    """Options of `open_images` for one location, which describes them.

    If `root` is None, the paths of a table or list are relative to its folder, its parent, or a folder `images` (or the
    only folder) beside it, whichever has the images; the images of a part may be in a folder with its name.
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
    """One kind of location that images are opened from: an entry of the table `opening.SOURCES`.

    Attributes:
        noun: Term for such a location in messages, such as "a list (.txt)".
        kind: Type of the location: "name" for a name that takes precedence over a path, "address" for a remote
            location, or "file" or "folder" for a path.
        find: Function (location, options) that recognises a location; it returns a true value (True, or files for
            `open`), or a false value if the location is not of this kind.
        open: Function (location, result of `find`, options) that opens the images.
    """

    noun: str
    kind: Literal["name", "address", "file", "folder"]
    find: Callable[[Any, SourceOptions], Any]
    open: Callable[[Any, Any, SourceOptions], ImageSet]
