"""`paucal.shard`: write images into shards, for sets that are too large to read file by file."""

import shlex
import shutil
import time
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from paucal.data.images import ImageSet
from paucal.data.label_kinds import describe_labels
from paucal.data.shards.folders import is_remote, upload_folder
from paucal.data.shards.writing import write_shards
from paucal.data.stores import EncodedStore, locate
from paucal.runner.console import Console, RecordingConsole
from paucal.runner.frames import Data, takes_frames
from paucal.runner.images import open_undecoded, with_run_decode_options
from paucal.runner.outputs import check_new_folder
from paucal.settings.options import check_ranges
from paucal.settings.values import settings_from_keywords, with_settings_signature
from paucal.types import UserError
from paucal.verbs.shard.settings import ShardSettings
from paucal.wording import counted, format_duration, was_or_were
from paucal.writing import replace_folder

MIB = 2**20
_SIZE_SAMPLE = 64  # number of images whose file size is read to estimate the size of the set
_TAR_OVERHEAD = 2560  # maximum bytes of tar headers and padding for an image and its label


@dataclass(frozen=True)
class Sharded:
    """Result of `paucal shard`.

    Attributes:
        folder: Folder or URL of the shards, which every command accepts as DATA.
        images: Number of images in the shards.
        shards: Number of shards.
        n_bytes: Size of all shards in bytes.
        left_out: Keys of the unreadable images that `on_bad_image="skip"` left out.
        said: Lines that the command line prints.
    """

    folder: str
    images: int
    shards: int
    n_bytes: int
    left_out: tuple[str, ...] = ()
    said: tuple[str, ...] = ()


@with_settings_signature(ShardSettings)
@takes_frames
def shard(data: Data, **settings: Any) -> Sharded:
    """Write a set into shards in random order, with separate shards for train, val and test; same as `paucal shard`.

    The bytes of the images are not changed, but each image is decoded once, so that all images in the shards are
    readable. The folder appears when it is complete.

    Args:
        data: Images, as in `paucal.train`.
        **settings: Any field of `paucal.verbs.shard.settings.ShardSettings`; `output` is required.

    Returns:
        The folder of the shards, which every command accepts as DATA, and the number and size of the shards.

    Raises:
        UserError: There are no images, some are unreadable, or the output is invalid.
        TypeError: A setting does not exist.

    Example:
        >>> shards = paucal.shard("photos/", output="shards/")  # doctest: +SKIP
        >>> paucal.train(shards.folder)  # doctest: +SKIP
    """
    console = RecordingConsole()
    result = shard_set(
        settings_from_keywords(ShardSettings, {**settings, "data": data}, "paucal.shard", "shard"), console
    )
    return replace(result, said=tuple(console.said))


def shard_set(settings: ShardSettings, console: Console) -> Sharded:
    """Write the images of a set into shards, and print a summary; see `shard`."""
    check_ranges(settings)
    if settings.output is None:
        raise UserError("OUT is missing: give a new folder for the shards, or a URL such as s3://bucket/set.")
    start_time = time.monotonic()
    if is_remote(settings.output):
        with TemporaryDirectory(prefix="paucal-shards-") as folder:
            result = _write_shards(settings, Path(folder), console)
            upload_folder(Path(folder), settings.output)
    else:
        target = check_new_folder(settings.output, {"DATA": settings.data}, settings.data_root, "OUT")
        with replace_folder(target) as folder:
            result = _write_shards(settings, folder, console)
    console.say(
        f"{counted(result.images, 'image')} in {counted(result.shards, 'shard')} ({result.n_bytes / MIB:.1f} MiB) in "
        f"{result.folder}, written in {format_duration(time.monotonic() - start_time)}"
    )
    if count := len(result.left_out):
        console.say(
            f"note: {counted(count, 'unreadable image')} {was_or_were(count)} left out ({result.left_out[0]}, ...)"
        )
    console.say(f"use the shards as DATA: paucal train {shlex.quote(result.folder)}")
    return result


def _write_shards(settings: ShardSettings, folder: Path, console: Console) -> Sharded:
    images = with_run_decode_options(_open_images(settings), settings)
    for note in images.notes:
        console.say(f"note: {note}")
    _require_disk_space(images, folder)
    with console.progress("writing shards") as advance:
        shards, left_out = write_shards(
            images,
            folder,
            settings.format,
            settings.shard_size * MIB,
            settings.shard_images,
            settings.seed,
            settings.on_bad_image,
            advance,
        )
    size = sum(shard.size for shard in shards)
    return Sharded(str(settings.output), len(images) - len(left_out), len(shards), size, tuple(left_out))


def _open_images(settings: ShardSettings) -> ImageSet:
    try:
        return open_undecoded(settings, labelled=not settings.unlabelled)
    except UserError:
        path = Path(settings.data).expanduser()
        contents = describe_labels(path) if path.exists() and not settings.unlabelled else {}
        if not contents or "train" in contents:
            raise
        raise UserError(
            f"{settings.data} has {' and '.join(contents.values())}, but shards can only contain images with classes: "
            "--unlabelled writes images without labels, for paucal pretrain and paucal predict."
        ) from None


def _require_disk_space(images: ImageSet, folder: Path) -> None:
    """Refuse images that would not fit on the disk, estimated from the file sizes of a sample of the images."""
    sizes = []
    for position in images.sample(_SIZE_SAMPLE).tolist():
        store, row = locate(images.store, position)
        if isinstance(store, EncodedStore):
            try:
                source = store.source(row)
                sizes.append(source.stat().st_size if isinstance(source, Path) else len(source))
            except (OSError, UserError):  # reported when the shards are written
                continue
    needed_bytes = ((float(np.mean(sizes)) if sizes else 0.0) + _TAR_OVERHEAD) * len(images)
    free_bytes = shutil.disk_usage(folder).free
    if needed_bytes > free_bytes:
        raise UserError(
            f"the shards need about {needed_bytes / 2**30:.1f} GiB, but only {free_bytes / 2**30:.1f} GiB are free: "
            "free some space, or give another folder."
        )
