"""Data sets of the Hugging Face hub by name: their Parquet files, either the authors' or those that the hub has made.

No code of a data set runs: no script, no pickle. `huggingface_hub` comes with timm and keeps what it has downloaded.
"""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from paucal.data.images import ImageSet
from paucal.data.sources.parquet import open_parquet
from paucal.data.sources.source import SourceOptions
from paucal.types import UserError

PREFIX = "hf:"
CONVERTED = "refs/convert/parquet"  # the branch where the hub keeps Parquet files of most data sets

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")  # no path that leads anywhere else


def is_on_hub(location: str | Path) -> bool:
    """Whether a location names a data set of the hub, such as "hf:uoft-cs/cifar100"."""
    return str(location).startswith(PREFIX)


def open_hub(location: str, _: Any, options: SourceOptions) -> ImageSet:
    """Open the Parquet files of a data set.

    Args:
        location: "hf:OWNER/NAME", or "hf:OWNER/NAME/CONFIGURATION" if a data set has several configurations.
        options: Columns and labels as for Parquet files, and whether the set may be downloaded.

    Raises:
        UserError: The name is invalid, or the set is missing, cannot be downloaded, has no Parquet files or several
            configurations.
    """
    folder, files = _hub_files(str(location), options.download)
    images = open_parquet(folder, files, options)
    return replace(images, name=str(location).rsplit("/", 1)[-1], location=str(location))


def _hub_files(location: str, download: bool) -> tuple[Path, list[Path]]:
    """Return a folder and the Parquet files of a data set in it."""
    owner, name, *configuration = [*location.removeprefix(PREFIX).split("/", 2), "", ""][:3]
    if not all(map(_NAME.fullmatch, (owner, name, configuration[0] or name))):
        raise UserError(
            f"{location!r} names no data set of the hub; expected hf:OWNER/NAME, as in hf:uoft-cs/cifar100."
        )
    repository, problem = f"{owner}/{name}", ""
    for revision in (None, CONVERTED):
        try:
            root = _download(repository, revision, download)
        except Exception as error:  # no network, no such set, no permission: the library has a type for each
            problem = str(error).split("\n")[0].strip() or type(error).__name__
            continue
        files = sorted(root.rglob("*.parquet"))
        if files:
            return root, _select_configuration(root, files, configuration[0], location)
        problem = "it has no Parquet files"
    how = "check the name and the network" if download else "fetch it with --download"
    raise UserError(f"the data set {repository} is not on this machine, or cannot be opened ({problem}); {how}.")


def _download(repository: str, revision: str | None, download: bool) -> Path:
    from huggingface_hub import snapshot_download  # imported here: it takes a second, and most data does not need it

    options: dict[str, Any] = {"repo_type": "dataset", "revision": revision, "allow_patterns": ["*.parquet"]}
    return Path(snapshot_download(repository, local_files_only=not download, **options))


def _select_configuration(root: Path, files: list[Path], wanted: str, location: str) -> list[Path]:
    """Return the files of one configuration, which is the first folder of their paths."""
    tops = sorted({file.relative_to(root).parts[0] for file in files if len(file.relative_to(root).parts) > 1})
    if wanted:
        chosen = [file for file in files if file.relative_to(root).parts[0] == wanted]
        if not chosen:
            raise UserError(f"{location} has no configuration {wanted!r}; it has {', '.join(tops[:8])}.")
        return chosen
    if len(tops) > 1:
        raise UserError(
            f"{location} has several configurations ({', '.join(tops[:8])}); name one: {location}/{tops[0]}."
        )
    return files
