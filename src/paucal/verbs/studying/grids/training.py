"""The grids of a study whose rows are trained with labels: one for each set of images, computed as a comparison is."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from paucal.studies.plan import Planned
from paucal.studies.scale import Scale
from paucal.studies.study import Study
from paucal.types import UserError
from paucal.verbs.comparing.arms import Arm
from paucal.verbs.comparing.cells.cell import START
from paucal.verbs.comparing.cells.grid import Grid
from paucal.verbs.comparing.preparation import settle_grid
from paucal.verbs.comparing.settings import GridSettings
from paucal.verbs.run.voice import Voice
from paucal.verbs.studying.grids.label_maps import with_maps
from paucal.verbs.studying.grids.starts import settle_starts, with_starts
from paucal.verbs.studying.images import Places, labelled_images, share_of
from paucal.verbs.studying.settings import StudySettings


def settle_training(
    study: Study,
    runs: Sequence[Planned],
    small: Scale | None,
    asked: StudySettings,
    places: Places,
    folder: Path,
    command: str,
    voice: Voice,
) -> list[Grid]:
    """Check every run, measure how long it takes, and store the grids.

    What the runs of a smaller scale begin with need not be there yet: random weights take its place in the measuring.

    Args:
        study: that is run.
        runs: of it.
        small: the scale; None for the full one.
        asked: seeds and who computes.
        places: of the images.
        folder: of the study.
        command: that asks for it.
        voice: shows what takes long.

    Raises:
        UserError: images are not there, a setting does not do, or the folder holds something else.
    """
    runs = with_starts(study, runs, asked.init or []) if study.starts and small is None else runs

    def settle_before(rows: Grid) -> None:
        if study.starts and small is not None:
            settle_starts(study, rows, small, asked, places, folder, command, voice)

    grids, absent = [], {"init": "none"} if study.starts else {}
    for data in dict.fromkeys(run.data for run in runs):
        here = [run for run in runs if run.data == data]
        shared = {**places.shared, "data": places.by_name[data]}
        arms = [Arm(run.name, None, None, _settings(study, run, small, shared, asked), run.against) for run in here]
        seeds = list(asked.seeds or (study.seeds if small is None else small.seeds))
        grid = GridSettings(seeds=seeds, output=str(folder / data), jobs=asked.jobs, on=asked.on, slurm=asked.slurm)
        needing = [run.row.maps for run in here]
        if any(needing) and small is not None:
            arms = with_maps(arms, needing, small, shared, grid, folder, voice)
        grids.append(settle_grid(grid, arms, shared, command, voice, absent, settle_before))
    return grids


def _settings(
    study: Study, run: Planned, small: Scale | None, shared: Mapping[str, Any], asked: StudySettings
) -> dict[str, Any]:
    if small is not None:
        images = labelled_images(shared["data"], shared, run.settings.get("classes"))
        share, start = share_of(images, small.images), study.starts.get(run.row.start)
        begin = {} if start is None else {START: [start.verb, run.row.start]}
        return {**run.settings, **({} if share is None else {"fraction": share}), **begin}
    if run.row.maps and asked.labels is None:
        raise UserError(
            f"{run.row.name!r} learns from label maps: make them with 'paucal label DATA --teacher RUN --output "
            "FOLDER' and give --labels FOLDER, or leave the row out by --rows."
        )
    # Rows that have a recipe of their own, such as those with label maps, keep it.
    recipe = asked.recipe if run.settings.get("recipe") == study.recipe else None
    init = None if study.starts else (asked.init or [None])[0]
    more = {"recipe": recipe, "init": init, "labels": asked.labels if run.row.maps else None}
    return {**run.settings, **{name: value for name, value in more.items() if value is not None}}
