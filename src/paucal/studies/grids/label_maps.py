"""Label maps for the rows of a smaller scale, from a teacher that is trained on the same images."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from paucal.runner.clock import duration
from paucal.runner.console import Console
from paucal.studies.scale import Scale, Teacher
from paucal.types import UserError
from paucal.verbs.compare.arms import Arm
from paucal.verbs.compare.cells.cell import cells_of, state_of
from paucal.verbs.compare.preparation import prepare_grid
from paucal.verbs.compare.run_workers import run_workers
from paucal.verbs.compare.settings import GridSettings
from paucal.verbs.label.launch import label_set
from paucal.verbs.label.settings import LabelSettings

MIN_ACCURACY = 0.3  # of the teacher
CHOOSING = ("fraction", "classes")  # settings that select images; the same for all rows
CUT = ("fraction", "val_fraction", "test_fraction")  # settings that the teacher's split replaces


def with_maps(
    arms: Sequence[Arm],
    needing: Sequence[bool],
    small: Scale,
    shared: Mapping[str, Any],
    asked: GridSettings,
    folder: Path,
    console: Console,
) -> list[Arm]:
    """Return arms that have label maps, all of them on the teacher's parts of the images.

    A teacher knows the labels that it was trained on, so what it has seen must be in nobody's test part.

    Args:
        arms: of a grid.
        needing: whether each of them learns from maps.
        small: the scale, which has a teacher.
        shared: settings of all runs.
        asked: who computes.
        folder: of the study, in which the teacher and its maps are kept.
        console: says what is done.

    Raises:
        UserError: the teacher could not be trained, or gets too few images right.
    """
    chosen = {name: arms[0].settings[name] for name in CHOOSING if name in arms[0].settings}
    run = _teacher(chosen, small, shared, replace(asked, output=str(folder / "teacher"), seeds=[0]), console)
    maps = folder / "maps"
    label_set(
        LabelSettings(
            teacher=str(run),
            output=str(maps),
            min_accuracy=MIN_ACCURACY,
            **{name: value for name, value in shared.items() if name in ("data", "data_root", "device", "workers")},
        ),
        console,
    )
    split = {"split": str(run / "split.csv")}
    made = []
    for arm, wants in zip(arms, needing, strict=True):
        kept = {name: value for name, value in arm.settings.items() if name not in CUT}
        made.append(replace(arm, settings={**kept, **split, **({"labels": str(maps)} if wants else {})}))
    return made


def _teacher(
    chosen: Mapping[str, Any], small: Scale, shared: Mapping[str, Any], asked: GridSettings, console: Console
) -> Path:
    teacher = small.teacher
    if teacher is None:
        raise UserError("this scale has no teacher for label maps: use --scale full with --labels.")
    console.say(
        f"label maps: {teacher.name} is trained on these images first, for {teacher.epochs} epochs, as the teacher"
    )
    one = Arm("teacher", None, None, {**_settings(small, teacher), **chosen})
    grid = prepare_grid(asked, [one], shared, "the teacher of a study", console)
    if not asked.jobs and not all(state_of(cell).settled for cell in cells_of(grid)):
        raise UserError(
            "--jobs 0: the rows' label maps come from a teacher, which has to be trained before they can be measured "
            f"(about {duration(grid.forecast[one.name])}): leave --jobs out."
        )
    if not run_workers(grid, asked, "the same command", console):
        raise UserError("the teacher is not trained yet: the same command resumes its training.")
    cell = cells_of(grid)[0]
    state = state_of(cell)
    if state.name == "failed":
        why = state.error.rstrip(".")
        raise UserError(f"the teacher could not be trained ({why}): once that is fixed, --retry tries it again.")
    return cell.run.path.resolve()


def _settings(small: Scale, teacher: Teacher) -> dict[str, Any]:
    """Return the settings of the teacher, which do not depend on the rows."""
    side = small.side if small.lesson is None else small.lesson.side
    model = {"model": teacher.name, "model_args": list(teacher.args)}
    own = {"img_size": [side], "epochs": teacher.epochs, "lr": teacher.lr, "method": "supervised"}
    shared = {name: value for name, value in small.set.items() if name not in CHOOSING}
    return {"init": "none", **shared, **model, **own}
