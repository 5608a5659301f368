"""From a location to images that are checked, decoded and split."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from paucal.cores import usable_cores
from paucal.data.channels.counting import count_channels
from paucal.data.decode import WHOLE, Reading
from paucal.data.decoded.prepare import prepare_images, side_for
from paucal.data.decoded.read_as import as_opened
from paucal.data.images import ImageSet
from paucal.data.maps.reader import LabelMaps, MapReader
from paucal.data.named.locations import data_root, is_named
from paucal.data.shards.place import is_remote
from paucal.data.sources.opening import BUILT_IN, open_images
from paucal.data.sources.several import SEPARATOR, roots_of
from paucal.data.splits.classes import choose_classes
from paucal.data.splits.split import Split
from paucal.evaluation.yardstick import Yardstick, yardstick
from paucal.rules.circumstances import Facts, best_device
from paucal.runs import RunFolder
from paucal.settings.groups import DataSettings, LabelledDataSettings
from paucal.types import UserError
from paucal.verbs.run.processes import launched_shape

Advance = Callable[[int, int], None]
D = TypeVar("D", bound=DataSettings)


@dataclass(frozen=True)
class Prepared:
    """Images that are known to be readable, what each is used for, and their label maps where they are asked for."""

    images: ImageSet
    split: Split
    label_maps: MapReader | None = None

    @property
    def yardstick(self) -> Yardstick:
        """What models of these images are chosen by."""
        return yardstick(self.images.multi_hot is not None)

    def part(self, name: str) -> NDArray[np.int64]:
        """Return the indices of "train", "val" or "test"."""
        return self.split.indices(name)

    def counts(self) -> dict[str, int]:
        """Return the number of images per part."""
        return {name: len(self.part(name)) for name in ("train", "val", "test")}

    def facts(self) -> Facts:
        """Return what the automatic settings look at."""
        sizes = self.images.sample_sizes()
        device, bf16 = best_device()
        return Facts(
            n_train=len(self.part("train")),
            n_classes=len(self.images.classes),
            median_side=int(np.median(sizes.min(axis=1))),
            hinted_size=self.images.hints.image_size,
            hinted_epochs=self.images.hints.epochs,
            flip=self.images.hints.flip,
            cores=usable_cores(),
            device=device,
            bf16=bf16,
            devices=torch.cuda.device_count() if device == "cuda" else 1,
            launched=launched_shape(),
            several_labels=self.images.multi_hot is not None,
        )


def pin_data(settings: D, paths: Iterable[str] = ()) -> D:
    """Return settings that find the same data from any folder and at any later time.

    Args:
        settings: with `data` and `data_root`.
        paths: names of further settings that are paths, where they name something that exists.
    """
    changes = {}
    if is_named(settings.data, settings.data_root):
        # With a root the name stays a name, also where a folder is called so.
        changes["data_root"] = str(data_root(settings.data_root))
    elif (
        settings.data != BUILT_IN
        and not is_remote(settings.data)
        and all(Path(one).expanduser().exists() for one in roots_of(settings.data))
    ):
        changes["data"] = SEPARATOR.join(_absolute(one) for one in roots_of(settings.data))
    if settings.data_root is not None:
        changes["data_root"] = _absolute(settings.data_root)
    labelled = isinstance(settings, LabelledDataSettings)
    for name in (*("classes",) * labelled, *paths):
        value = getattr(settings, name)
        if value is not None and Path(value).expanduser().exists():
            changes[name] = _absolute(value)
    return replace(settings, **changes)


def _absolute(path: str) -> str:
    return str(Path(path).expanduser().resolve())


def reading_for(image_size: Sequence[int] | None, like: Reading = WHOLE) -> Reading:
    """Return how images are read for a network that sees this (height, width), or one side; None for whole ones.

    Args:
        image_size: in pixels.
        like: has the channels, and the values that a model was trained with; without values they are measured.
    """
    return replace(like, side=None if image_size is None else side_for(image_size))


def first_reading(settings: DataSettings, images: ImageSet, stored: Reading | None = None) -> Reading:
    """Return with how many channels, and from which values, images are read.

    Args:
        settings: may say how many channels.
        images: whose headers tell it otherwise.
        stored: of a run that goes on.

    Raises:
        UserError: the images differ in their channels.
    """
    return stored or Reading(channels=settings.channels or count_channels(images))


def load_images(
    settings: DataSettings, advance: Advance | None = None, labelled: bool = True, reading: Reading = WHOLE
) -> ImageSet:
    """Open the images, decode each once, and keep them decoded where there is room.

    Args:
        settings: where they are, and which of their classes are used.
        advance: called with (images read, images in all).
        labelled: whether they must have labels; else any nesting of folders does.
        reading: how much of them is needed.

    Raises:
        UserError: there are none, they are not laid out as expected, or some cannot be read.
    """
    return decoded(find_images(settings, labelled, advance), settings, reading, advance)


def decoded(images: ImageSet, settings: DataSettings, reading: Reading, advance: Advance | None = None) -> ImageSet:
    """Decode each image of a set once, and keep them decoded where there is room.

    Raises:
        UserError: some cannot be read, and the settings do not say to leave them out.
    """
    return prepare_images(as_opened(images), reading, on_bad=settings.on_bad_image, progress=advance)[0]


def find_images(settings: DataSettings, labelled: bool = True, advance: Advance | None = None) -> ImageSet:
    """Open the images without a look at their pixels.

    Args:
        settings: where they are, and which of their classes are used.
        labelled: whether they must have labels.
        advance: called with (shards, shards in all) where shards are looked through.

    Raises:
        UserError: there are none, or they are not laid out as expected.
    """
    images = open_images(
        settings.data,
        labelled=labelled,
        label_column=settings.label_column if isinstance(settings, LabelledDataSettings) else None,
        label_separator=settings.label_separator if isinstance(settings, LabelledDataSettings) else None,
        image_column=settings.image_column,
        root=settings.data_root,
        download=settings.download,
        progress=advance,
    )
    if isinstance(settings, LabelledDataSettings) and settings.classes is not None:
        images = choose_classes(images, settings.classes)
    return images


def with_label_maps(prepared: Prepared, labels: str | None, method: str, advance: Advance | None = None) -> Prepared:
    """Open the label maps of the training images.

    Raises:
        UserError: none are given, they are not those of these images, or their teacher was trained on images that
            this run validates or tests with, whose scores would then be no honest ones.
    """
    if labels is None:
        raise UserError(f"--method {method} learns from label maps: make them with 'paucal label' and give --labels.")
    maps = LabelMaps(Path(labels).expanduser())
    images, split = prepared.images, prepared.split
    seen = set(maps.facts.trained_on)
    known = {part: sum(images.keys[i] in seen for i in split.indices(part)) for part in ("val", "test")}
    if any(known.values()):
        select = "" if known["test"] else ", or keep no images for validation (--val-fraction 0)"
        raise UserError(
            f"--labels: the teacher was trained on {sum(known.values())} of the images that this run keeps for "
            "validation and test, whose labels it knows: use the teacher's --seed and split, or another teacher"
            f"{select}."
        )
    return replace(prepared, label_maps=maps.rows(images, prepared.part("train"), advance))


def open_again(
    run: RunFolder, advance: Advance | None = None, download: bool = False, reading: Reading = WHOLE
) -> ImageSet:
    """Open the images of a run from where they were when it began.

    Args:
        run: the run.
        advance: called with (images read, images in all).
        download: whether a published set that is not there any more may be fetched.
        reading: how much of the images is needed.

    Raises:
        UserError: the run's settings cannot be read, or the images are gone.
    """
    stored = run.settings
    if "data" not in stored:
        raise UserError(f"{str(run.config)!r} does not say which data was used; give DATA.")
    opened = LabelledDataSettings(
        data=str(stored["data"]),
        data_root=stored.get("data_root"),
        download=download,
        on_bad_image=stored.get("on_bad_image", "refuse"),
        classes=stored.get("classes"),
        image_column=stored.get("image_column"),
        channels=stored.get("channels"),
        label_column=stored.get("label_column"),
        label_separator=stored.get("label_separator"),
    )
    return load_images(opened, advance, reading=reading)
