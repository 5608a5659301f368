"""From a location to images that are checked, decoded and split."""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from paucal.data.cache import cache_images
from paucal.data.classes import choose_classes
from paucal.data.images import ImageSet
from paucal.data.label_maps import LabelMaps, MapReader
from paucal.data.named import data_root, is_named
from paucal.data.sources import BUILT_IN, open_images
from paucal.data.splits import Split, limit_val, make_split, take_few, take_fraction
from paucal.recipes.facts import Facts, best_device
from paucal.recipes.processes import launched_shape
from paucal.recipes.settings import TrainSettings
from paucal.runs import RunFolder
from paucal.types import UserError

Advance = Callable[[int, int], None]


@dataclass(frozen=True)
class Prepared:
    """Images that are known to be readable, what each is used for, and their label maps where they are asked for."""

    images: ImageSet
    split: Split
    label_maps: MapReader | None = None

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
            cores=os.cpu_count() or 1,
            device=device,
            bf16=bf16,
            devices=torch.cuda.device_count() if device == "cuda" else 1,
            launched=launched_shape(),
        )


def pin_data(settings: TrainSettings) -> TrainSettings:
    """Return settings that find the same data from any folder and at any later time."""
    changes = {}
    if is_named(settings.data, settings.data_root):
        # With a root the name stays a name, also where a folder is called so.
        changes["data_root"] = str(data_root(settings.data_root))
    elif settings.data != BUILT_IN and Path(settings.data).expanduser().exists():
        changes["data"] = _absolute(settings.data)
        if settings.data_root is not None:
            changes["data_root"] = _absolute(settings.data_root)
    if settings.labels is not None and Path(settings.labels).expanduser().exists():
        changes["labels"] = _absolute(settings.labels)
    if settings.guide is not None and Path(settings.guide).expanduser().exists():
        changes["guide"] = _absolute(settings.guide)
    if settings.classes is not None and Path(settings.classes).expanduser().exists():
        changes["classes"] = _absolute(settings.classes)
    return replace(settings, **changes)


def _absolute(path: str) -> str:
    return str(Path(path).expanduser().resolve())


def load_images(settings: TrainSettings, advance: Advance | None = None) -> ImageSet:
    """Open the images, decode each once, and keep them decoded where they fit in memory.

    Raises:
        UserError: there are none, they are not laid out as expected, or some cannot be read.
    """
    images = open_images(settings.data, root=settings.data_root, download=settings.download)
    if settings.classes is not None:
        images = choose_classes(images, settings.classes)
    return cache_images(images, on_bad=settings.on_bad_image, progress=advance)[0]


def prepare(settings: TrainSettings, images: ImageSet) -> Prepared:
    """Split the images, and reduce the training part where the settings say so.

    Raises:
        UserError: a class has too few images for the parts, or a share is not one.
    """
    shares = {
        name: value for name in ("val_fraction", "test_fraction") if (value := getattr(settings, name)) is not None
    }
    split = make_split(images, seed=settings.seed, **shares)
    if settings.fraction is not None and settings.few_labels is not None:
        raise UserError("--fraction and --few-labels both reduce the training images; give one of them.")
    if settings.fraction is not None:
        split = take_fraction(split, images.labels, settings.fraction, settings.seed)
    if settings.few_labels is not None:
        split = take_few(split, images.labels, settings.few_labels, settings.seed)
    if settings.fraction is not None or settings.few_labels is not None:
        split = limit_val(split, images.labels, settings.seed)
    return Prepared(images, split)


def with_label_maps(prepared: Prepared, settings: TrainSettings, advance: Advance | None = None) -> Prepared:
    """Open the label maps of the training images.

    Raises:
        UserError: none are given, they are not those of these images, or their teacher was trained on images that
            this run validates or tests with, whose scores would then be no honest ones.
    """
    if settings.labels is None:
        raise UserError(
            f"--method {settings.method} learns from label maps: make them with 'paucal label' and give --labels."
        )
    maps = LabelMaps(Path(settings.labels).expanduser())
    images, split = prepared.images, prepared.split
    seen = set(maps.facts.trained_on)
    held_out = [i for part in ("val", "test") for i in split.indices(part) if images.keys[i] in seen]
    if held_out:
        raise UserError(
            f"--labels: the teacher was trained on {len(held_out)} of the images that this run keeps for validation "
            "and test, whose labels it knows: use the teacher's --seed and split, or another teacher."
        )
    return replace(prepared, label_maps=maps.rows(images, prepared.part("train"), advance))


def open_again(run: RunFolder, advance: Advance | None = None, download: bool = False) -> ImageSet:
    """Open the images of a run from where they were when it began.

    Args:
        run: the run.
        advance: called with (images read, images in all).
        download: whether a published set that is not there any more may be fetched.

    Raises:
        UserError: the run's settings cannot be read, or the images are gone.
    """
    settings = run.read_yaml(run.config.name).get("settings", {})
    if not isinstance(settings, dict) or "data" not in settings:
        raise UserError(f"{str(run.config)!r} does not say which data was used; give DATA.")
    opened = TrainSettings(
        data=str(settings["data"]),
        classes=settings.get("classes"),
        data_root=settings.get("data_root"),
        download=download,
        on_bad_image=settings.get("on_bad_image", "refuse"),
    )
    return load_images(opened, advance)
