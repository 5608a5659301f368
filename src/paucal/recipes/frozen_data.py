"""The images that frozen backbones are judged on, and that no run among them has been trained on."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from paucal.data.images import ImageSet
from paucal.data.split_file import read_split
from paucal.evaluation.protocols import voc
from paucal.evaluation.protocols.judged_data import JudgedData, judged_data, limit, with_parts
from paucal.evaluation.protocols.metrics import MetricName
from paucal.recipes.judged_models import find_run
from paucal.recipes.prepare import load_images, open_again, pin_data
from paucal.recipes.settings import TrainSettings
from paucal.recipes.voice import Voice
from paucal.runs import RunFolder
from paucal.types import UserError


@dataclass(frozen=True)
class DataSettings:
    """How the images of DATA are opened; as in `TrainSettings`."""

    classes: str | None = None
    data_root: str | None = None
    download: bool = False
    on_bad_image: Literal["refuse", "skip"] = "refuse"
    val_fraction: float | None = None
    test_fraction: float | None = None


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
    target: str | None, run: RunFolder | None, choice: PartSettings, opening: DataSettings, voice: Voice
) -> JudgedData:
    """Open a data set with its parts: a run's own where the target is None or what the run was trained on.

    Raises:
        UserError: it is not there, or lacks a part.
    """
    with voice.progress("reading images") as advance:
        if target is not None and (folder := _voc(target, opening)) is not None:
            data = voc.open_voc(folder)
        elif run is not None and not _is_pretrained(run) and (target is None or _is_own(run, target, opening)):
            images = open_again(run, advance, opening.download)
            data = judged_data(images, read_split(run.split, images), choice.metric)
        else:
            if run is not None and target is None:
                images = open_again(run, advance, opening.download)
            else:
                images = load_images(_as_given(str(target), opening), advance)
            split = with_parts(images, choice.seed, opening.val_fraction, opening.test_fraction)
            data = judged_data(images, split, choice.metric)
    return data if choice.max_images is None else limit(data, choice.max_images, choice.seed)


def _voc(target: str, opening: DataSettings) -> Path | None:
    """Return the folder of VOC2007 where a target means it; a path that exists wins, unless a data root is given."""
    path = Path(target)
    if target == voc.NAME and (opening.data_root is not None or not path.exists()):
        return voc.find_voc(opening.data_root, opening.download)
    return path if voc.is_voc(path) else None


def _as_given(target: str, opening: DataSettings) -> TrainSettings:
    return TrainSettings(
        data=target,
        classes=opening.classes,
        data_root=opening.data_root,
        download=opening.download,
        on_bad_image=opening.on_bad_image,
    )


def _is_pretrained(run: RunFolder) -> bool:
    """Whether a run has learned without labels: then it has no parts of its own, and no label has leaked."""
    return run.read_yaml(run.config.name).get("verb") == "pretrain"


def _is_own(run: RunFolder, target: str, opening: DataSettings) -> bool:
    """Whether a target is what the run was trained on, so that its own parts must be kept."""
    stored: Any = run.read_yaml(run.config.name).get("settings", {})
    chosen = pin_data(TrainSettings(data=target, data_root=opening.data_root))
    return isinstance(stored, dict) and stored.get("data") == chosen.data and opening.classes == stored.get("classes")


def require_unseen(data: JudgedData, models: Sequence[str]) -> None:
    """Refuse test images whose labels one of the runs was trained on or chosen by.

    Raises:
        UserError: there are such.
    """
    for name in models:
        run = find_run(name)
        if run is None or not run.split.is_file() or _is_pretrained(run):
            continue
        stored: Any = run.read_yaml(run.config.name).get("settings", {})
        again = stored.get("data") if isinstance(stored, dict) else None
        if again is None or not _same_source(data.images, again):
            continue
        split = read_split(run.split, data.images)
        used = np.concatenate([split.indices("train"), split.indices("val")])
        seen = int(np.isin(data.parts["test"], used).sum())
        if seen:
            raise UserError(
                f"{name} was trained on, or chosen by, {seen} of the {len(data.parts['test'])} test images of "
                f"{data.name}: judge it on images it has not seen, or on its own by leaving DATA out."
            )


def _same_source(images: ImageSet, stored: str) -> bool:
    here = Path(images.location).expanduser().resolve()
    there = Path(stored).expanduser()
    return images.name == stored or (there.exists() and there.resolve() in (here, *here.parents[:1]))
