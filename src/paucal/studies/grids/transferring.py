"""The grids of a study whose rows are detectors or segmenters, each begun with what has learned something before."""

from collections.abc import Mapping
from typing import Any

from paucal.recipes.segmentation import SCALES
from paucal.runner.job import AnyJob
from paucal.studies.call import Call
from paucal.studies.grids.starts import settling, with_starts
from paucal.studies.grids.storing import new_grid, settle_own
from paucal.studies.grids.transfer_images import Marked, open_marked, seconds_of
from paucal.studies.plan import Planned
from paucal.studies.scale import Scale
from paucal.studies.study import Study
from paucal.verbs.compare.arms import Arm
from paucal.verbs.compare.cells.cell import JUDGING, START
from paucal.verbs.compare.cells.evaluation import MULTI_SCALE
from paucal.verbs.compare.cells.grid import Grid
from paucal.verbs.compare.cells.jobs import job_of

# Sizes in which a smaller scale looks again: as it trains with, and without mirror images, which digits have none of.
FEW_SCALES = (0.8, 1.0, 1.25)


def settle_transferring(call: Call) -> list[Grid]:
    """Check every run, measure how long it takes, and store the grids; see `settle_training`.

    What the runs of a smaller scale begin with need not be there yet: random weights take its place in the measuring.
    """
    call, before = with_starts(call), settling(call)
    study, console = call.study, call.console
    job, grids = job_of(study.kind), []
    for data, here in call.by_images():
        shared = {**call.places.shared, **_pinned(job, {"data": call.places.by_name[data]})}
        marked = open_marked(study.kind, shared["data"], console)
        own = [(run, _settings(study, run, call.small, marked, job)) for run in here]
        arms = [Arm(run.name, None, None, settings, run.against) for run, settings in own]
        who = call.workers(call.folder / data)
        new = new_grid(call.folder / data, study.kind, marked.fingerprint, shared, arms, call.seeds, call.command)
        absent = {"init": "none"}
        grids.append(settle_own(new, who, lambda values: seconds_of(job, values, console), console, absent, before))
    return grids


def _settings(study: Study, run: Planned, small: Scale | None, marked: Marked, job: AnyJob) -> dict[str, Any]:
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


def _pinned(job: AnyJob, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings that find the same files from any folder."""
    made = job.pin(job.kind(**values))
    return {name: getattr(made, name) for name in values}
