"""How a location is opened: with labels or without, which columns hold what, and what paths are relative to."""

from dataclasses import dataclass
from pathlib import Path

from paucal.data.verify import ReportProgress


@dataclass(frozen=True)
class SourceOptions:
    """Options of `open_images` that hold for one location.

    Attributes:
        labelled: False takes the images alone.
        label_column: Column of the classes in a table or Parquet file; None finds it.
        image_column: Column of the paths or images; None finds it.
        root: Folder that the paths of a table or list are relative to; None for the folder of the table, the one above,
            or a folder `images` (or of another name, where it is the only one) beside it, whichever has the images;
            those of a part may be in a folder of its name.
        separator: Sign between several labels in a cell, "none" for one label in each; None finds out.
        progress: Called with (shards, shards in all) where shards without an index are looked through.
    """

    labelled: bool = True
    label_column: str | None = None
    image_column: str | None = None
    root: Path | None = None
    separator: str | None = None
    progress: ReportProgress | None = None
