"""Data sets of the Hugging Face hub by name: their Parquet files, those of the authors or those the hub has made.

Nothing of a data set is run: no script, no pickle. `huggingface_hub` comes with timm and keeps what it has fetched.
"""

import re
from pathlib import Path
from typing import Any

from paucal.types import UserError

PREFIX = "hf:"
CONVERTED = "refs/convert/parquet"  # the branch where the hub keeps Parquet files of most data sets

_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")  # of a name; none that leads anywhere else


def is_on_hub(location: str | Path) -> bool:
    """Whether a location names a data set of the hub, such as "hf:uoft-cs/cifar100"."""
    return str(location).startswith(PREFIX)


def hub_files(location: str, download: bool) -> tuple[Path, list[Path]]:
    """Return a folder and the Parquet files of a data set in it.

    Args:
        location: "hf:OWNER/NAME", or "hf:OWNER/NAME/CONFIGURATION" where a data set has several.
        download: whether it may be fetched; else it must have been.

    Raises:
        UserError: the name is none, it is not there, cannot be fetched, has no Parquet files or several configurations.
    """
    owner, name, *configuration = [*location.removeprefix(PREFIX).split("/", 2), "", ""][:3]
    if not all(map(_PART.fullmatch, (owner, name, configuration[0] or name))):
        raise UserError(f"{location!r} names no data set of the hub; expected hf:OWNER/NAME, as in hf:uoft-cs/cifar100")
    repository, problem = f"{owner}/{name}", ""
    for revision in (None, CONVERTED):
        try:
            root = _fetched(repository, revision, download)
        except Exception as error:  # no network, no such set, no permission: the library has a type for each
            problem = str(error).split("\n")[0].strip() or type(error).__name__
            continue
        files = sorted(root.rglob("*.parquet"))
        if files:
            return root, _of_configuration(root, files, configuration[0], location)
        problem = "it has no Parquet files"
    how = "check the name and the network" if download else "fetch it with --download"
    raise UserError(f"the data set {repository} is not on this machine, or cannot be had ({problem}); {how}")


def _fetched(repository: str, revision: str | None, download: bool) -> Path:
    from huggingface_hub import snapshot_download  # loaded here: it takes a second, and most data does not need it

    options: dict[str, Any] = {"repo_type": "dataset", "revision": revision, "allow_patterns": ["*.parquet"]}
    return Path(snapshot_download(repository, local_files_only=not download, **options))


def _of_configuration(root: Path, files: list[Path], wanted: str, location: str) -> list[Path]:
    """Return the files of one configuration, which is the first folder of their paths."""
    tops = sorted({file.relative_to(root).parts[0] for file in files if len(file.relative_to(root).parts) > 1})
    if wanted:
        found = [file for file in files if file.relative_to(root).parts[0] == wanted]
        if not found:
            raise UserError(f"{location} has no configuration {wanted!r}; it has {', '.join(tops[:8])}")
        return found
    if len(tops) > 1:
        raise UserError(
            f"{location} has several configurations ({', '.join(tops[:8])}); name one: {location}/{tops[0]}"
        )
    return files
