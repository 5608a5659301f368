"""The grids of a study whose rows are detectors or segmenters, each begun with what has learned something before."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from paucal.recipes.segmentation import SCALES
from paucal.studies.plan import Planned
from paucal.studies.scale import Scale
from paucal.studies.study import Study
from paucal.verbs.comparing.arms import Arm
from paucal.verbs.comparing.cells.cell import JUDGING, START
from paucal.verbs.comparing.cells.grid import Grid
from paucal.verbs.comparing.cells.jobs import job_of
from paucal.verbs.comparing.cells.judging import MULTI_SCALE
from paucal.verbs.comparing.settings import GridSettings
from paucal.verbs.run.job import Job
from paucal.verbs.run.voice import Voice
from paucal.verbs.studying.grids.starts import settle_starts, with_starts
from paucal.verbs.studying.grids.storing import new_grid, settle_own
from paucal.verbs.studying.grids.transfer_images import Marked, open_marked, seconds_of
from paucal.verbs.studying.images import Places
from paucal.verbs.studying.settings import StudySettings

# Sizes in which a smaller scale looks again: as it trains with, and without mirror images, which digits have none of.
FEW_SCALES = (0.8, 1.0, 1.25)


def settle_transferring(
    study: Study,
    runs: Sequence[Planned],
    small: Scale | None,
    asked: StudySettings,
    places: Places,
    folder: Path,
    command: str,
    voice: Voice,
) -> list[Grid]:
    """Check every run, measure how long it takes, and store the grids; see `settle_training`.

    What the runs of a smaller scale begin with need not be there yet: random weights take its place in the measuring.
    """
    runs = with_starts(study, runs, asked.init or []) if small is None else runs

    def settle_before(rows: Grid) -> None:
        if small is not None:
            settle_starts(study, rows, small, asked, places, folder, command, voice)

    job, grids = job_of(study.kind), []
    for data in dict.fromkeys(run.data for run in runs):
        shared = {**places.shared, **_pinned(job, {"data": places.by_name[data]})}
        marked = open_marked(study.kind, shared["data"], voice)
        own = [(run, _settings(study, run, small, marked, job)) for run in runs if run.data == data]
        arms = [Arm(run.name, None, None, settings, run.against) for run, settings in own]
        seeds = asked.seeds or (study.seeds if small is None else small.seeds)
        who = GridSettings(jobs=asked.jobs, on=asked.on, slurm=asked.slurm)
        new = new_grid(folder / data, study.kind, marked.fingerprint, shared, arms, seeds, command)
        absent = {"init": "none"}
        grids.append(settle_own(new, who, lambda values: seconds_of(job, values, voice), voice, absent, settle_before))
    return grids


def _settings(study: Study, run: Planned, small: Scale | None, marked: Marked, job: Job[Any, Any]) -> dict[str, Any]:
    settings = dict(run.settings)
    if any(column.metric == MULTI_SCALE for column in study.trained_columns):
        settings[JUDGING] = {"scales": list(SCALES), "mirror": True} if small is None else {"scales": list(FEW_SCALES)}
    if small is None:
        return {**settings, **_pinned(job, {"init": settings["init"]})}
    settings["batch_size"] = min(settings["batch_size"], marked.training)
    # As many images are shown as the scale means to: of a larger set fewer epochs.
    settings["epochs"] = max(1, round(run.epochs * min(1.0, small.images / marked.training)))
    start = study.starts[run.row.start]
    return {**settings, START: [start.verb, run.row.start]}


def _pinned(job: Job[Any, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings that find the same files from any folder."""
    made = job.pin(job.kind(**values))
    return {name: getattr(made, name) for name in values}
