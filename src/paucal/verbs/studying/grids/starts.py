"""What the rows of a smaller scale begin with: trained first, on labelled images, in grids beside those of the rows."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from paucal.studies.plan import Planned, start_settings
from paucal.studies.scale import Lesson, Scale
from paucal.studies.study import Study
from paucal.types import UserError
from paucal.verbs.comparing.arms import Arm
from paucal.verbs.comparing.cells.beginning import STARTS
from paucal.verbs.comparing.cells.grid import Grid
from paucal.verbs.comparing.fingerprint import fingerprint
from paucal.verbs.comparing.preparation import settle_grid
from paucal.verbs.comparing.settings import GridSettings
from paucal.verbs.run.voice import Voice
from paucal.verbs.studying.grids.pretraining import pinned_data, seconds_of_pretraining
from paucal.verbs.studying.grids.scenes import DRAWN, LESSON, SCENES, draw_all
from paucal.verbs.studying.grids.storing import new_grid, settle_own
from paucal.verbs.studying.images import Places, labelled_images, share_of, unlabelled_images
from paucal.verbs.studying.settings import StudySettings


def starts_of(study: Study, runs: Sequence[Planned], verb: str) -> list[str]:
    """Return the names of the starts that a verb makes for runs, in their order."""
    names = dict.fromkeys(run.row.start for run in runs if run.row.start)
    return [name for name in names if study.starts[name].verb == verb]


def with_lesson(places: Places, small: Scale, asked: StudySettings, folder: Path) -> Places:
    """Return where the images are, with those of the lesson; scenes are drawn into the folder where none are given."""
    if small.lesson is None:
        return places
    if asked.data or small.data != SCENES:
        return replace(places, by_name={**places.by_name, small.lesson.data: small.lesson.data})
    drawn = draw_all(folder / DRAWN, small.images, small.side).resolve()
    return replace(places, by_name={**places.by_name, SCENES: str(drawn / SCENES), LESSON: str(drawn / LESSON)})


def settle_starts(
    study: Study,
    runs: Sequence[Planned],
    small: Scale,
    asked: StudySettings,
    places: Places,
    folder: Path,
    command: str,
    voice: Voice,
) -> list[Grid]:
    """Check the starts of all runs, measure how long they take, and store a grid for each verb that makes some.

    Args:
        study: that is run.
        runs: of it.
        small: the scale, which has a lesson.
        asked: seeds and who computes.
        places: of the images, those of the lesson among them.
        folder: of the study.
        command: that asks for it.
        voice: shows what takes long.

    Raises:
        UserError: images are not there, a setting does not do, or the folder holds something else.
    """
    if small.lesson is None:
        raise UserError(f"{study.name} has nothing for its starts to learn at this scale: use --scale full.")
    seeds = list(asked.seeds or small.seeds)
    shared = {**places.shared, "data": places.by_name[small.lesson.data]}
    grids = []
    for verb in ("train", "pretrain"):
        names = starts_of(study, runs, verb)
        who = GridSettings(
            seeds=seeds, output=str(folder / STARTS / verb), jobs=asked.jobs, on=asked.on, slurm=asked.slurm
        )
        own = {name: start_settings(study, study.starts[name], small) for name in names}
        if names and verb == "train":
            grids.append(_trained(own, small.lesson, shared, who, command, voice))
        elif names:
            grids.append(_pretrained(own, shared, who, command, voice))
    return grids


def _trained(
    own: Mapping[str, Mapping[str, Any]],
    lesson: Lesson,
    shared: Mapping[str, Any],
    who: GridSettings,
    command: str,
    voice: Voice,
) -> Grid:
    share = share_of(labelled_images(shared["data"], shared), lesson.images)
    few = {} if share is None else {"fraction": share}
    arms = [Arm(name, None, None, {**settings, **few}) for name, settings in own.items()]
    return settle_grid(who, arms, shared, command, voice)


def _pretrained(
    own: Mapping[str, Mapping[str, Any]], shared: Mapping[str, Any], who: GridSettings, command: str, voice: Voice
) -> Grid:
    shared = {**shared, **pinned_data(shared["data"], shared)}
    images = unlabelled_images(shared["data"], shared)
    arms = [Arm(name, None, None, dict(settings)) for name, settings in own.items()]
    where = Path(who.output or "")
    new = new_grid(where, "pretrain", fingerprint(images), shared, arms, who.seeds or (), command)
    return settle_own(new, who, lambda values: seconds_of_pretraining(values, voice), voice)
