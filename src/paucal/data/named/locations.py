"""Where data sets that have names lie, and what to do where they do not.

The files are read, and fetched on request, by torchvision (`named_readers.py`). The layouts below the root are
torchvision's own, so a folder that another program has filled through torchvision does as it is.
"""

import os
from pathlib import Path

from paucal.data.named.table import NAMED, NamedSet

ROOT_VARIABLE = "PAUCAL_DATA"


def is_named(location: str | Path, root: str | Path | None = None) -> bool:
    """Whether a location means a data set by name.

    A path that exists wins over the name, unless a root for named sets is given: `./cifar10` is never the name.
    """
    return isinstance(location, str) and location in NAMED and (root is not None or not Path(location).exists())


def data_root(root: str | Path | None = None) -> Path:
    """Return the absolute folder that holds named sets.

    It is `root`, else the environment's `PAUCAL_DATA`, else `paucal/data` in the user's cache folder
    (`XDG_CACHE_HOME`, else `~/.cache`), the place where torch keeps its own downloads.
    """
    if root is None:
        cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
        root = os.environ.get(ROOT_VARIABLE) or f"{cache}/paucal/data"
    return Path(root).expanduser().resolve()


def home_of(entry: NamedSet, root: Path) -> Path | None:
    """Return the folder that a set's paths are relative to; None where its files are not there."""
    for home in entry.homes:
        folder = root / home
        all_there = all((folder / path).exists() for path in entry.unpacked)
        if all_there and (not entry.one_of or any((folder / path).is_dir() for path in entry.one_of)):
            return folder
    return None


def how_to_get(name: str, root: Path, asked: bool = False) -> str:
    """Return what to do about missing files, as the second half of a sentence; `asked` where fetching was tried."""
    entry = NAMED[name]
    put = f"put {entry.files} from {entry.source} into {root / entry.folder}"
    fetch = "" if not entry.fetchable else "try again, or " if asked else "give --download, or "
    why = "" if entry.fetchable else f"{entry.obstacle}, so "
    # torchvision does not fetch an archive again that lies where it would put it, but insists on its fetcher.
    unpack = " and give --download to unpack them" if entry.fetchable and not entry.fetch_package else ""
    return f"{why}{fetch}{put}{unpack}, or name the folder that has the set with --data-root"
