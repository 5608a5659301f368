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
from paucal.verbs.comparing.cells.cell import START
from paucal.verbs.comparing.cells.grid import Grid, is_grid, read_grid
from paucal.verbs.comparing.fingerprint import fingerprint
from paucal.verbs.comparing.preparation import settle_grid
from paucal.verbs.comparing.settings import GridSettings
from paucal.verbs.run.voice import Voice
from paucal.verbs.studying.grids.pretraining import pinned_data, seconds_of_pretraining
from paucal.verbs.studying.grids.scenes import DRAWN, LESSON, OTHERS, SCENES, draw_all
from paucal.verbs.studying.grids.storing import new_grid, settle_own
from paucal.verbs.studying.images import Places, labelled_images, share_of, unlabelled_images
from paucal.verbs.studying.settings import StudySettings

VERBS = ("train", "pretrain")  # that make starts


def with_lesson(places: Places, small: Scale, asked: StudySettings, folder: Path) -> Places:
    """Return where the images are, with those of the lesson; scenes are drawn into the folder where none are given."""
    if small.lesson is None:
        return places
    if asked.data or small.data not in (SCENES, OTHERS):
        return replace(places, lesson=small.lesson.data)
    drawn = draw_all(folder / DRAWN, small.images, small.side).resolve()
    own = {small.data: str(drawn / small.data)}
    return replace(places, by_name={**places.by_name, **own}, lesson=str(drawn / LESSON))


def stored_starts(folder: Path) -> list[Grid]:
    """Return the grids of a study's starts, those of labels first."""
    return [read_grid(folder / STARTS / verb) for verb in VERBS if is_grid(folder / STARTS / verb)]


def given_starts(study: Study, runs: Sequence[Planned], words: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return `--init` by the name of a start: as given, or what has it by itself.

    Raises:
        UserError: one is given that the study does not know, or one lacks.
    """
    wanted = list(dict.fromkeys(run.row.start for run in runs))
    given = {name: place for name, _, place in (word.partition("=") for word in words)}
    for name, place in given.items():
        if name not in study.starts or not place:
            raise UserError(f"--init: expected NAME=RUN with NAME one of {', '.join(study.starts)}, got {name!r}.")
    for name in wanted:
        start = study.starts[name]
        if name not in given and not start.init:
            raise UserError(f"{study.name} begins with {start.words}: give it with --init {name}=RUN.")
    return {name: {"init": given.get(name) or study.starts[name].init} for name in wanted}


def settle_starts(
    study: Study,
    rows: Grid,
    small: Scale,
    asked: StudySettings,
    places: Places,
    folder: Path,
    command: str,
    voice: Voice,
) -> None:
    """Check the starts of all rows, measure how long they take, and store a grid for each verb that makes some.

    Args:
        study: that is run.
        rows: the grid whose runs begin with them, those of earlier calls too: any worker may take these.
        small: the scale, which has a lesson.
        asked: who computes.
        places: of the images, those of the lesson among them.
        folder: of the study.
        command: that asks for it.
        voice: shows what takes long.

    Raises:
        UserError: images are not there, a setting does not do, or the folder holds something else.
    """
    if small.lesson is None:
        raise UserError(f"{study.name} has nothing for its starts to learn at this scale: use --scale full.")
    shared = {**places.shared, "data": places.lesson}
    for verb in VERBS:
        names = dict.fromkeys(arm.settings[START][1] for arm in rows.arms if arm.settings[START][0] == verb)
        where = str(folder / STARTS / verb)
        who = GridSettings(seeds=list(rows.seeds), output=where, jobs=asked.jobs, on=asked.on, slurm=asked.slurm)
        own = {name: start_settings(study, study.starts[name], small) for name in names}
        if names and verb == "train":
            _trained(own, small.lesson, shared, who, command, voice)
        elif names:
            _pretrained(own, shared, who, command, voice)


def _trained(
    own: Mapping[str, Mapping[str, Any]],
    lesson: Lesson,
    shared: Mapping[str, Any],
    who: GridSettings,
    command: str,
    voice: Voice,
) -> None:
    share = share_of(labelled_images(shared["data"], shared), lesson.images)
    few = {} if share is None else {"fraction": share}
    arms = [Arm(name, None, None, {**settings, **few}) for name, settings in own.items()]
    settle_grid(who, arms, shared, command, voice)


def _pretrained(
    own: Mapping[str, Mapping[str, Any]], shared: Mapping[str, Any], who: GridSettings, command: str, voice: Voice
) -> None:
    shared = {**shared, **pinned_data(shared["data"], shared)}
    images = unlabelled_images(shared["data"], shared)
    arms = [Arm(name, None, None, dict(settings)) for name, settings in own.items()]
    where = Path(who.output or "")
    new = new_grid(where, "pretrain", fingerprint(images), shared, arms, who.seeds or (), command)
    settle_own(new, who, lambda values: seconds_of_pretraining(values, voice), voice)
