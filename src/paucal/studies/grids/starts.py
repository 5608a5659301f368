"""What rows begin with: at a smaller scale trained first, in grids beside those of the rows; at full scale given.

At a smaller scale it learns images that no row is tested on: others, or the parts of theirs that they learn too.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from paucal.runner.console import Console
from paucal.studies.call import Call
from paucal.studies.grids.pretraining import pinned_data, seconds_of_pretraining
from paucal.studies.grids.scenes import DRAWN, LESSON, OTHERS, SCENES, draw_all
from paucal.studies.grids.storing import new_grid, settle_own
from paucal.studies.images import Places, labelled_images, share_of, unlabelled_images
from paucal.studies.plan import Planned, begun_elsewhere, start_settings
from paucal.studies.scale import Lesson, Scale
from paucal.studies.settings import StudySettings
from paucal.studies.study import Study
from paucal.types import UserError
from paucal.verbs.compare.arms import Arm
from paucal.verbs.compare.cells.cell import START
from paucal.verbs.compare.cells.grid import Grid, is_grid, read_grid
from paucal.verbs.compare.cells.start import STARTS
from paucal.verbs.compare.fingerprint import fingerprint
from paucal.verbs.compare.preparation import prepare_grid
from paucal.verbs.compare.settings import GridSettings

VERBS = ("train", "pretrain")  # that make starts


def with_starts(call: Call) -> Call:
    """Return a call of the full scale whose runs say what each begins with: as given, or what its start has by itself.

    Calls of the smaller scales, whose starts are trained first, and of studies without starts stay as they are.

    Raises:
        UserError: one is given that the study does not know, or one that a run needs is missing.
    """
    study, runs = call.study, call.runs
    if not study.starts or call.small is not None:
        return call
    given: dict[str, str] = {}
    for word in call.asked.init or []:
        name, _, place = word.partition("=")
        if name not in study.starts or not place:
            raise UserError(f"--init: expected NAME=RUN with NAME one of {', '.join(study.starts)}, got {word!r}.")
        if name in given:
            raise UserError(f"--init: {name!r} is given twice: leave one out.")
        given[name] = place
    _require_starts(study, runs, given)
    return call.with_runs(
        [begun_elsewhere(study, run, given[run.row.start]) if run.row.start in given else run for run in runs]
    )


def _require_starts(study: Study, runs: Sequence[Planned], given: Mapping[str, str]) -> None:
    needing = [run for run in runs if run.row.start not in given and not study.starts[run.row.start].init]
    missing = list(dict.fromkeys(run.row.start for run in needing))
    if not missing:
        return
    rows = list(dict.fromkeys(run.row.name for run in needing))
    needed = " and ".join(f"{name} ({study.starts[name].words})" for name in missing)
    flags = " ".join(f"{name}=RUN_OR_FILE" for name in missing)
    begin, them = "begins" if len(rows) == 1 else "begin", "it" if len(missing) == 1 else "them"
    some = any(run.row.name not in rows for run in runs)
    leave = f", or leave out by --rows what begins with {them}" if some else ""
    raise UserError(f"{', '.join(rows)} of {study.name} {begin} with {needed}: give {them} with --init {flags}{leave}.")


def with_lesson(places: Places, small: Scale, asked: StudySettings, folder: Path) -> Places:
    """Return where the images are, with those of the lesson; scenes are drawn into the folder where none are given.

    Raises:
        UserError: images are given that the lesson is of.
    """
    if small.lesson is None or not small.lesson.data:
        return places
    if asked.data and asked.data[0] == small.lesson.data:
        raise UserError(
            f"--data: {small.lesson.data} is what the rows' starts learn at {asked.scale}, and no row is tested on "
            "images that its start has seen: leave it out, or give other images."
        )
    if asked.data or small.data not in (SCENES, OTHERS):
        return replace(places, lesson=small.lesson.data)
    drawn = draw_all(folder / DRAWN, small.images, small.side).resolve()
    own = {small.data: str(drawn / small.data)}
    return replace(places, by_name={**places.by_name, **own}, lesson=str(drawn / LESSON))


def stored_starts(folder: Path) -> list[Grid]:
    """Return the grids of a study's starts, those of labels first."""
    return [read_grid(folder / STARTS / verb) for verb in VERBS if is_grid(folder / STARTS / verb)]


def settling(call: Call) -> Callable[[Grid], None] | None:
    """Return what settles the starts of a grid of rows before workers see it; None where nothing is trained first."""
    return partial(settle_starts, call) if call.study.starts and call.small is not None else None


def settle_starts(call: Call, rows: Grid) -> None:
    """Check the starts of all rows, measure how long they take, and store a grid for each verb that makes some.

    Args:
        call: of a smaller scale, which has a lesson.
        rows: the grid whose runs begin with them, those of earlier calls too: any worker may take these.

    Raises:
        UserError: images are not there, a setting does not do, or the folder holds something else.
    """
    study, small = call.study, call.small
    if small is None or small.lesson is None:
        raise UserError(f"{study.name} has nothing for its starts to learn at this scale: use --scale full.")
    shared = {**call.places.shared, "data": call.places.lesson or rows.shared["data"]}
    for verb in VERBS:
        names = dict.fromkeys(arm.settings[START][1] for arm in rows.arms if arm.settings[START][0] == verb)
        who = call.workers(call.folder / STARTS / verb, rows.seeds)
        same = {name: {} if small.lesson.data else _same_images(rows, name) for name in names}
        own = {name: {**start_settings(study, study.starts[name], small), **same[name]} for name in names}
        if names and verb == "train":
            _trained(own, small.lesson, shared, who, call.command, call.console)
        elif names:
            _pretrained(own, shared, who, call.command, call.console)


def _same_images(rows: Grid, name: str) -> dict[str, Any]:
    """Return the settings that let a start learn what its rows learn: parts of the images, and label maps."""
    settings = next(arm.settings for arm in rows.arms if arm.settings[START][1] == name)
    return {part: settings[part] for part in ("split", "labels") if part in settings}


def _few(lesson: Lesson, shared: Mapping[str, Any]) -> dict[str, float]:
    share = share_of(labelled_images(shared["data"], shared, lesson.set.get("classes")), lesson.images)
    return {} if share is None else {"fraction": share}


def _trained(
    own: Mapping[str, Mapping[str, Any]],
    lesson: Lesson,
    shared: Mapping[str, Any],
    who: GridSettings,
    command: str,
    console: Console,
) -> None:
    few = _few(lesson, shared) if lesson.data else {}
    arms = [Arm(name, None, None, {**settings, **few}) for name, settings in own.items()]
    prepare_grid(who, arms, shared, command, console)


def _pretrained(
    own: Mapping[str, Mapping[str, Any]], shared: Mapping[str, Any], who: GridSettings, command: str, console: Console
) -> None:
    shared = {**shared, **pinned_data(shared["data"], shared)}
    images = unlabelled_images(shared["data"], shared)
    arms = [Arm(name, None, None, dict(settings)) for name, settings in own.items()]
    where = Path(who.output or "")
    new = new_grid(where, "pretrain", fingerprint(images), shared, arms, who.seeds or (), command)
    settle_own(new, who, lambda values: seconds_of_pretraining(values, console), console)
