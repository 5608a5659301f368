"""The images that frozen backbones are judged on."""

from dataclasses import replace
from pathlib import Path
from typing import Protocol

from paucal.data.decode import WHOLE, Reading
from paucal.data.images import ImageSet
from paucal.data.splits.file import read_split
from paucal.evaluation.protocols import voc
from paucal.evaluation.protocols.judged_data import JudgedData, judged_data, limit, with_parts
from paucal.evaluation.protocols.metrics import MetricName
from paucal.runs import RunFolder
from paucal.settings.groups import DataSettings
from paucal.verbs.judging.settings import OpeningSettings
from paucal.verbs.run.images import find_images, load_images, open_again, pin_data
from paucal.verbs.run.voice import Voice


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
    voice: Voice,
    reading: Reading = WHOLE,
) -> JudgedData:
    """Open a data set with its parts: a run's own where the target is None or what the run was trained on.

    Args:
        target: what was given.
        run: that is judged; None where a file or a timm model is.
        choice: of parts and measure.
        opening: where images lie.
        voice: shows a bar.
        reading: how much of the images the judged models need.

    Raises:
        UserError: it is not there, or lacks a part.
    """
    with voice.progress("reading images") as advance:
        if target is not None and (folder := _voc(target, opening)) is not None:
            data = voc.open_voc(folder)
        elif run is not None and not _is_pretrained(run) and (target is None or _is_own(run, target, opening)):
            images = open_again(run, advance, opening.download, reading)
            data = judged_data(images, read_split(run.split, images), choice.metric)
        else:
            if run is not None and target is None:
                images = open_again(run, advance, opening.download, reading)
            else:
                images = load_images(replace(opening, data=str(target)), advance, reading=reading)
            split = with_parts(images, choice.seed, opening.val_fraction, opening.test_fraction)
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


def _is_pretrained(run: RunFolder) -> bool:
    """Whether a run has learned without labels: then it has no parts of its own, and no label has leaked."""
    return run.verb == "pretrain"


def _is_own(run: RunFolder, target: str, opening: OpeningSettings) -> bool:
    """Whether a target is what the run was trained on, so that its own parts must be kept."""
    stored, chosen = run.settings, pin_data(DataSettings(target, opening.data_root))
    return stored.get("data") == chosen.data and opening.classes == stored.get("classes")
