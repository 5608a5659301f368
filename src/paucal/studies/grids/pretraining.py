"""The grids of a study whose rows learn without labels, each with an evaluation of its features."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from paucal.methods.pretraining_settings import PretrainSettings
from paucal.runner.console import Console
from paucal.runner.images import pin_data
from paucal.runner.time_budget import seconds_per_step, trial_steps
from paucal.studies.call import Call
from paucal.studies.grids.storing import new_grid, settle_own
from paucal.studies.images import Places, unlabelled_images
from paucal.studies.plan import Planned
from paucal.studies.scale import Scale
from paucal.tasks.pretraining.job import PretrainingJob
from paucal.verbs.compare.arms import Arm
from paucal.verbs.compare.cells.cell import JUDGING
from paucal.verbs.compare.cells.grid import Grid
from paucal.verbs.compare.fingerprint import fingerprint

MOST_JUDGED = 2000  # images of each part for the evaluation of features at a smaller scale
CURVE = "knn_curve"  # the metric of columns that read the monitor
TIMED_PASSES = 2  # after one that is not timed
RUN_OVERHEAD = 20.0  # seconds of a run beside training: opening images, evaluation, pictures


def settle_pretraining(call: Call) -> list[Grid]:
    """Check every run, measure how long it takes, and store the grids; see `settle_training`."""
    grids, places, console = [], call.places, call.console
    for data, here in call.by_images():
        shared = {**places.shared, **pinned_data(places.by_name[data], places.shared)}
        images = unlabelled_images(shared["data"], shared)
        own = [{**_settings(run, call.small, places, len(images)), **_watched(run, places)} for run in here]
        arms = [Arm(run.name, None, None, one, run.against) for run, one in zip(here, own, strict=True)]
        who = call.workers(call.folder / data)
        new = new_grid(call.folder / data, "pretrain", fingerprint(images), shared, arms, call.seeds, call.command)
        grids.append(settle_own(new, who, lambda values: seconds_of_pretraining(values, console), console))
    return grids


def _settings(run: Planned, small: Scale | None, places: Places, images: int) -> dict[str, Any]:
    if small is None:
        elsewhere = {} if run.judged == run.data else {"on": places.by_name[run.judged]}
        return {**run.settings, JUDGING: {"augment": True, **elsewhere}}  # the published linear probe sees new views
    settings = dict(run.settings)
    settings["batch_size"] = min(settings["batch_size"], images)
    # The scale fixes the number of images shown, so larger data sets get fewer epochs.
    settings["epochs"] = max(1, round(run.epochs * min(1.0, small.images / images)))
    if settings.get("region_after", 0) >= settings["epochs"]:
        del settings["region_after"]
    return {**settings, JUDGING: {"max_images": MOST_JUDGED, "no_cache": True}}


def _watched(run: Planned, places: Places) -> dict[str, Any]:
    """Return the settings of a monitor, if a column needs its curve."""
    if all(column.metric != CURVE for column in run.columns):
        return {}
    return {"monitor": pinned_data(places.by_name[run.judged], places.shared)["data"]}


def pinned_data(data: str, shared: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of images with absolute paths."""
    made = pin_data(PretrainSettings(data=data, data_root=shared.get("data_root")))
    return {"data": made.data, **({} if made.data_root is None else {"data_root": made.data_root})}


def seconds_of_pretraining(values: Mapping[str, Any], console: Console) -> float:
    """Assemble a run, and return its expected seconds by timing a few steps.

    Raises:
        UserError: A setting is invalid.
    """
    job = PretrainingJob()
    settings, origin = job.check(PretrainSettings(**values), dict.fromkeys(values, "given"))
    made = job.assemble(job.pin(settings), origin, console.progress)
    settings, images = made.settings, len(made.data.part("train"))
    alone = replace(made, settings=replace(settings, workers=0), plan=replace(made.plan, total_steps=TIMED_PASSES + 1))
    device = torch.device(settings.device or "cpu")
    with trial_steps(made.objective.train(), device):
        each = seconds_per_step(made.objective, job.loader(alone, 0), device, settings.precision)
    batches = made.plan.steps_per_epoch * settings.accumulate * (settings.epochs or 0)
    return RUN_OVERHEAD + each * max(1, batches) if images else RUN_OVERHEAD
