"""The images of a study: stand-ins at the smaller scales, the published sets at full scale."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from paucal.data.images import ImageSet
from paucal.methods.pretraining_settings import PretrainSettings
from paucal.methods.training_settings import TrainSettings
from paucal.runner.images import find_images
from paucal.studies.parts import DataSet
from paucal.studies.plan import Planned
from paucal.studies.settings import StudySettings
from paucal.types import UserError
from paucal.wording import did_you_mean

TAKEN = ("teacher", "maps", "starts", "drawn")  # folders beside those of the images
LONGEST_NAME = 60
ENOUGH = 1.05  # times the images of a scale, up to which a set is taken whole


@dataclass(frozen=True)
class Places:
    """Where images are.

    Attributes:
        by_name: DATA by the name of a set in the plan.
        shared: settings that find them, for every run.
        lesson: what the starts of a smaller scale learn; "" where there are none.
    """

    by_name: Mapping[str, str]
    shared: Mapping[str, Any]
    lesson: str = ""


def called(runs: Sequence[Planned], asked: StudySettings) -> list[Planned]:
    """Return runs on DATA, and called by its name, where it takes the place of a smaller scale's own images.

    Which classes of those are used says nothing of DATA.
    """
    if asked.scale == "full" or not asked.data:
        return list(runs)
    name = name_of(asked.data[0])
    kept = [{key: value for key, value in run.settings.items() if key != "classes"} for run in runs]
    return [replace(run, data=name, judged=name, settings=own) for run, own in zip(runs, kept, strict=True)]


def name_of(data: str) -> str:
    """Return a name for the folder of a study's images.

    Example:
        >>> name_of("/data/my photos/"), name_of("cifar10"), name_of("teacher")
        ('my-photos', 'cifar10', 'images-teacher')
    """
    name = re.sub(r"[^\w.-]+", "-", Path(os.path.realpath(data)).name).strip("-.")[:LONGEST_NAME]
    return name if name and name not in TAKEN else f"images-{name}".rstrip("-")


def find_places(asked: StudySettings, runs: Sequence[Planned], data_sets: Mapping[str, DataSet]) -> Places:
    """Return where the images of all runs are.

    Raises:
        UserError: a set has no name in paucal and its place is not given, or something is given that is not read.
    """
    wanted = list(dict.fromkeys(name for run in runs for name in (run.data, run.judged)))
    own = {name: getattr(asked, name) for name in ("data_root", "device", "workers")}
    shared = {name: value for name, value in own.items() if value is not None}
    shared |= {"download": True} if asked.download else {}
    words = asked.data or []
    if asked.scale != "full":
        if len(words) > 1 or any("=" in word for word in words):
            raise UserError(f"--data: one DATA takes the place of all sets at --scale {asked.scale}: give one.")
        return Places({name: words[0] if words else name for name in wanted}, shared)
    return Places(_given(words, wanted, data_sets), shared)


def _given(words: Sequence[str], wanted: Sequence[str], data_sets: Mapping[str, DataSet]) -> dict[str, str]:
    given: dict[str, str] = {}
    for word in words:
        name, equals, place = word.partition("=")
        if not equals or not place:
            raise UserError(f"--data: at --scale full expected NAME=DATA such as {wanted[0]}=FOLDER, got {word!r}.")
        if name not in wanted:
            raise UserError(
                f"--data: no run reads {name!r}{did_you_mean(name, wanted)}; they read {', '.join(wanted)}."
            )
        given[name] = place
    for name in wanted:
        if name not in given and not data_sets[name].named:
            one = data_sets[name]
            raise UserError(f"{one.title} cannot be had by name: {one.how}, with --data {name}=DATA.")
    return {name: given.get(name) or data_sets[name].named for name in wanted}


def labelled_images(data: str, shared: Mapping[str, Any], classes: str | None = None) -> ImageSet:
    """Open labelled images without a look at their pixels.

    Args:
        data: where they are.
        shared: settings that find them.
        classes: that are used, as `paucal train --classes` takes them; None for all.

    Raises:
        UserError: they are not there.
    """
    return find_images(TrainSettings(data=data, classes=classes, **_only(shared)))


def unlabelled_images(data: str, shared: Mapping[str, Any]) -> ImageSet:
    """Open images whose labels do not matter, likewise."""
    return find_images(PretrainSettings(data=data, **_only(shared)), labelled=False)


def count_training(images: ImageSet) -> int:
    """Return the images of the train part, or all where no part is declared."""
    return images.declared.count("train") or len(images)


def share_of(images: ImageSet, most: int) -> float | None:
    """Return the share of the training images that are used; None for all."""
    count = count_training(images)
    return None if count <= ENOUGH * most else round(most / count, 6)


def _only(shared: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in shared.items() if name in ("data_root", "download")}
