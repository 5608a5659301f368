"""`paucal.shard`: images written as shards, for sets that are too large to be read image by image."""

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from paucal.data.classes import choose_classes
from paucal.data.images import ImageSet
from paucal.data.shards.folders import is_remote, upload
from paucal.data.shards.writing import Written, write_shards
from paucal.data.sources.opening import open_images
from paucal.data.stores import EncodedStore, locate
from paucal.reading import named_path
from paucal.runner.clock import duration
from paucal.runner.console import Console, RecordingConsole
from paucal.runner.outputs import refuse_inside_images
from paucal.runs.files import try_folder
from paucal.settings.options import check_ranges
from paucal.settings.values import from_python, shows_settings
from paucal.types import UserError
from paucal.verbs.shard.settings import ShardSettings
from paucal.wording import counted, was

MIB = 2**20
_SAMPLE = 64
_TAR_OVERHEAD = 2560  # bytes of an image and its label in a tar beyond the image's own, at most


@dataclass(frozen=True)
class Sharded:
    """What `paucal shard` has written.

    Attributes:
        folder: where the shards lie, a folder or a URL; it does as DATA of every verb.
        images: how many they hold.
        shards: how many there are.
        n_bytes: of all shards.
        left_out: keys of images that cannot be read, with `on_bad_image="skip"`.
        said: what the command would have printed.
    """

    folder: str
    images: int
    shards: int
    n_bytes: int
    left_out: tuple[str, ...] = ()
    said: tuple[str, ...] = ()


@shows_settings(ShardSettings)
def shard(data: str | os.PathLike[str], **settings: Any) -> Sharded:
    """Write the images of a set into shards, each part of it into its own, in random order; the same as `paucal shard`.

    Images keep their bytes, and each is decoded once on the way, so that the shards hold none that cannot be read. The
    folder appears when all of it is written.

    Args:
        data: anything that `paucal.train` takes.
        **settings: any field of `paucal.verbs.shard.settings.ShardSettings`; `output` is needed.

    Returns:
        Where the shards are, as DATA of every verb takes it, and how many.

    Raises:
        UserError: there are no images, some cannot be read, or the output does not do.
        TypeError: a setting does not exist.

    Example:
        >>> made = paucal.shard("photos/", output="shards/")  # doctest: +SKIP
        >>> paucal.train(made.folder)  # doctest: +SKIP
    """
    console = RecordingConsole()
    found = shard_set(from_python(ShardSettings, {**settings, "data": data}, "paucal.shard", "shard"), console)
    return replace(found, said=tuple(console.said))


def shard_set(settings: ShardSettings, console: Console) -> Sharded:
    """Write the images of a set into shards, and say what was written; see `shard`."""
    check_ranges(settings)
    if settings.output is None:
        raise UserError("there is no OUT: give a new folder for the shards, or a URL such as s3://bucket/set.")
    if is_remote(settings.output):
        with tempfile.TemporaryDirectory(prefix="paucal-shards-") as folder:
            return _write(settings, Path(folder), lambda done: upload(done, str(settings.output)), console)
    target = named_path(settings.output, "OUT")
    _require_empty(target)
    refuse_inside_images(target, {"DATA": settings.data}, settings.data_root, "OUT")
    try_folder(target, "OUT")
    target.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}."))
    try:
        return _write(settings, folder, lambda done: _put_in_place(done, target), console)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _write(settings: ShardSettings, folder: Path, publish: Callable[[Path], None], console: Console) -> Sharded:
    begin = time.monotonic()
    images = _open(settings)
    for note in images.notes:
        console.say(f"note: {note}")
    _require_room(images, folder)
    with console.progress("writing shards") as advance:
        found = write_shards(
            images,
            folder,
            settings.format,
            settings.shard_size * MIB,
            settings.shard_images,
            settings.seed,
            settings.on_bad_image,
            advance,
        )
    publish(folder)
    _tell(found, str(settings.output), time.monotonic() - begin, console)
    return Sharded(str(settings.output), found.images, found.shards, found.n_bytes, found.left_out)


def _tell(found: Written, where: str, seconds: float, console: Console) -> None:
    size = f"{found.n_bytes / MIB:.1f} MiB"
    console.say(
        f"{counted(found.images, 'image')} in {counted(found.shards, 'shard')} ({size}) in {where}, written in "
        f"{duration(seconds)}"
    )
    if left := found.left_out:
        console.say(f"note: {counted(len(left), 'image')} {was(len(left))} left out, being unreadable ({left[0]}, ...)")
    console.say(f"they do as DATA: paucal train {where}")


def _open(settings: ShardSettings) -> ImageSet:
    images = open_images(
        settings.data,
        labelled=not settings.unlabelled,
        label_column=settings.label_column,
        label_separator=settings.label_separator,
        image_column=settings.image_column,
        root=settings.data_root,
        download=settings.download,
    )
    return images if settings.classes is None else choose_classes(images, settings.classes)


def _require_empty(target: Path) -> None:
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UserError(f"OUT: {str(target)!r} holds something already: give a new or an empty folder.")


def _put_in_place(folder: Path, target: Path) -> None:
    """Let the finished folder appear under its name."""
    folder.chmod(0o777 & ~_umask())
    if target.is_dir():
        target.rmdir()  # it is empty
    folder.rename(target)


def _umask() -> int:
    found = os.umask(0)
    os.umask(found)
    return found


def _require_room(images: ImageSet, folder: Path) -> None:
    """Refuse to begin what the disk has no room for, as far as a sample of the images tells."""
    sizes = []
    for position in images.sample(_SAMPLE).tolist():
        store, place = locate(images.store, position)
        if isinstance(store, EncodedStore):
            try:
                source = store.source(place)
                sizes.append(source.stat().st_size if isinstance(source, Path) else len(source))
            except (OSError, UserError):  # it is named when its turn comes
                continue
    needed = (float(np.mean(sizes)) if sizes else 0.0) * len(images) + _TAR_OVERHEAD * len(images)
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise UserError(
            f"the shards take about {needed / 2**30:.1f} GiB, and {free / 2**30:.1f} GiB are free there: free some "
            "space, or give another place."
        )
