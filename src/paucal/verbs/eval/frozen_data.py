"""The images that frozen backbones are judged on."""

from dataclasses import replace
from pathlib import Path
from typing import Protocol

from paucal.data.decode import WHOLE, Reading
from paucal.data.images import ImageSet
from paucal.data.splits.split import Split
from paucal.data.splits.split_csv import read_split
from paucal.evaluation.protocols import voc
from paucal.evaluation.protocols.judged_data import JudgedData, judged_data, limit, with_parts
from paucal.evaluation.seen_images import Identities, readable_lessons
from paucal.metrics.named import MetricName
from paucal.runner.console import Console
from paucal.runner.images import find_images, load_images, open_again
from paucal.runs import RunFolder
from paucal.verbs.eval.choosing import is_same_place, own_parts
from paucal.verbs.eval.settings import OpeningSettings


class PartSettings(Protocol):
    """What is chosen about the parts, whatever the images are."""

    @property
    def metric(self) -> MetricName | None:
        """What is reported; None for the metric of the data set's name."""
        ...

    @property
    def max_images(self) -> int | None:
        """Most images of each part; None for all."""
        ...

    @property
    def seed(self) -> int:
        """Of what is cut and what is left out."""
        ...


def open_data(
    target: str | None,
    run: RunFolder | None,
    choice: PartSettings,
    opening: OpeningSettings,
    console: Console,
    reading: Reading = WHOLE,
) -> JudgedData:
    """Open a data set with its parts: those of the run where the images are the run's own, wherever they lie.

    Args:
        target: what was given.
        run: that is judged; None where a file or a timm model is.
        choice: of parts and measure.
        opening: where images lie.
        console: shows a bar.
        reading: how much of the images the judged models need.

    Raises:
        UserError: it is not there, or lacks a part.
    """
    with console.progress("reading images") as advance:
        if target is not None and (folder := _voc(target, opening)) is not None:
            data = voc.open_voc(folder)
        else:
            if run is not None and (target is None or is_same_place(run, target, opening)):
                images = open_again(run, advance, opening.download, reading)
            else:
                images = load_images(replace(opening, data=str(target)), advance, reading=reading)
            split = _parts_of_run(run, images, target) if run is not None else None
            split = split or with_parts(images, choice.seed, opening.val_fraction, opening.test_fraction)
            data = judged_data(images, split, choice.metric)
    return data if choice.max_images is None else limit(data, choice.max_images, choice.seed)


def find_judged(target: str, opening: OpeningSettings) -> ImageSet:
    """Open a data set without a look at its pixels.

    Raises:
        UserError: it is not there.
    """
    if (folder := _voc(target, opening)) is not None:
        return voc.open_voc(folder).images
    return find_images(replace(opening, data=target))


def _voc(target: str, opening: OpeningSettings) -> Path | None:
    """Return the folder of VOC2007 where a target means it; a path that exists wins, unless a data root is given."""
    path = Path(target)
    if target == voc.NAME and (opening.data_root is not None or not path.exists()):
        return voc.find_voc(opening.data_root, opening.download)
    return path if voc.is_voc(path) else None


def _parts_of_run(run: RunFolder, images: ImageSet, target: str | None) -> Split | None:
    """Return the parts that images have in a run, where all are its own; None where they have to be cut.

    A run that has learned without labels has no parts of its own, and no label has leaked.
    """
    if run.config.is_file() and run.verb == "pretrain":
        return None
    if target is None:
        return read_split(run.split, images)
    parts = own_parts(readable_lessons(run), Identities(images, streamed=True))
    if parts is None or not {"train", "test"} <= set(parts.tolist()):
        return None
    return Split(parts, f"the parts that the images have in {run.path}")
