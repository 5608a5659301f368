"""The grids of a study whose rows are frozen backbones, evaluated on several data sets."""

import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from paucal.backbones import BackboneSpec
from paucal.evaluation.protocols.subjects import random_backbone
from paucal.rules.backbone import model_arguments
from paucal.rules.facts import best_device
from paucal.studies.call import Call
from paucal.studies.grids.pretraining import MOST_JUDGED, pinned_data
from paucal.studies.grids.starts import settling, with_starts
from paucal.studies.grids.storing import new_grid, settle_own
from paucal.studies.parts import Architecture
from paucal.studies.plan import Planned
from paucal.studies.scale import Scale
from paucal.studies.study import Study
from paucal.verbs.compare.arms import Arm
from paucal.verbs.compare.cells.cell import START, SUBJECT
from paucal.verbs.compare.cells.grid import EVAL, Grid
from paucal.verbs.compare.fingerprint import fingerprint
from paucal.verbs.eval.frozen_data import find_judged
from paucal.verbs.eval.settings import OpeningSettings

TIMM = "timm"  # the start that needs no file
TIMED_IMAGES = 8
BACKBONES = 2  # per image: that of the row, and one with random weights
OVERHEAD = 20.0  # seconds beside features: opening images, regression, intervals, pictures


def settle_frozen(call: Call) -> list[Grid]:
    """Check every row, measure how long its features take, and store the grids; see `settle_training`."""
    call, before = with_starts(call), settling(call)
    grids, places, small = [], call.places, call.small
    for data, here in call.by_images():
        shared = {**places.shared, **pinned_data(places.by_name[data], places.shared)}
        images = find_judged(shared["data"], _opening(shared))
        arms = [Arm(run.name, None, None, _settings(call.study, run, small), run.against) for run in here]
        who = call.workers(call.folder / data)
        new = new_grid(call.folder / data, EVAL, fingerprint(images), shared, arms, call.seeds, call.command)
        models = {one.name: (one, side) for run in here for one, side in [_architecture(call.study, run, small)]}
        count = len(images) if small is None else min(len(images), 2 * MOST_JUDGED)
        grids.append(settle_own(new, who, partial(_seconds, models, count), call.console, before=before))
    return grids


def _opening(shared: Mapping[str, Any]) -> OpeningSettings:
    names = ("data", "data_root", "download")
    return OpeningSettings(**{name: shared[name] for name in names if name in shared})


def _architecture(study: Study, run: Planned, small: Scale | None) -> tuple[Architecture, int]:
    """Return the model of a row and the side of its images."""
    model = study.models[run.row.model]
    if small is None or model.standin is None or small.lesson is None:
        return model.full, model.side
    return model.standin, small.lesson.side


def _settings(study: Study, run: Planned, small: Scale | None) -> dict[str, Any]:
    """Return the settings of `paucal eval`, with the model to evaluate."""
    if small is not None:
        start = study.starts[run.row.start]
        return {**run.settings, "max_images": MOST_JUDGED, "no_cache": True, START: [start.verb, run.row.start]}
    settings = {name: value for name, value in run.settings.items() if name != "init"}
    place = run.settings["init"]
    if place == TIMM:
        return {**settings, "pretrained": True, SUBJECT: settings["model"]}
    return {**settings, SUBJECT: str(Path(place).expanduser().absolute())}


def _seconds(models: Mapping[str, tuple[Architecture, int]], images: int, values: Mapping[str, Any]) -> float:
    """Return the seconds for the features of a row, by timing a few images on a backbone of its size."""
    one, side = models[values["model"]]
    spec = BackboneSpec(one.name, 0, image_size=(side, side), arguments=model_arguments(list(one.args)))
    device = torch.device(values.get("device") or best_device()[0])
    backbone, batch = random_backbone(spec, 0).to(device), torch.zeros(TIMED_IMAGES, 3, side, side, device=device)
    with torch.inference_mode():
        backbone(batch).pooled.sum().item()  # warm-up
        begin = time.perf_counter()
        backbone(batch).pooled.sum().item()
    return OVERHEAD + BACKBONES * images * (time.perf_counter() - begin) / TIMED_IMAGES
