"""The grids of a study whose rows are trained with labels: one for each set of images, computed as a comparison is."""

from collections.abc import Mapping
from typing import Any

from paucal.studies.call import Call
from paucal.studies.grids.label_maps import with_maps
from paucal.studies.grids.starts import settling, with_starts
from paucal.studies.images import labelled_images, share_of
from paucal.studies.plan import Planned
from paucal.studies.scale import Scale
from paucal.studies.study import Study
from paucal.types import UserError
from paucal.verbs.compare.arms import Arm
from paucal.verbs.compare.cells.cell import START
from paucal.verbs.compare.cells.grid import Grid
from paucal.verbs.compare.preparation import prepare_grid


def settle_training(call: Call) -> list[Grid]:
    """Check every run, measure how long it takes, and store the grids.

    What the runs of a smaller scale begin with need not be there yet: random weights take its place in the measuring.

    Raises:
        UserError: images are not there, a setting does not do, or the folder holds something else.
    """
    call, before = with_starts(call), settling(call)
    grids, absent = [], {"init": "none"} if call.study.starts else {}
    for data, here in call.by_images():
        shared = {**call.places.shared, "data": call.places.by_name[data]}
        arms = [Arm(run.name, None, None, _settings(call, run, shared), run.against) for run in here]
        who, needing = call.workers(call.folder / data), [run.row.maps for run in here]
        if call.small is not None and _has_maps(call.study, call.small):
            arms = with_maps(arms, needing, call.small, shared, who, call.folder, call.console)
        grids.append(prepare_grid(who, arms, shared, call.command, call.console, absent, before))
    return grids


def _has_maps(study: Study, small: Scale) -> bool:
    """Whether any row of a scale learns from label maps; then all have the teacher's parts, whichever are wanted."""
    return any(row.maps for row in study.trained_rows if not small.rows or row.name in small.rows)


def _settings(call: Call, run: Planned, shared: Mapping[str, Any]) -> dict[str, Any]:
    study, small, asked = call.study, call.small, call.asked
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
