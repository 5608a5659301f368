"""The grids of a study. A grid contains the runs for all rows and seeds on one data set.

In code, one set of initial weights of the rows is called a "start". At full scale, initial weights are published
weights or the weights of `--init`. At a smaller scale, the initial weights are trained first, in separate grids of
runs, and never on the test images of a row.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from paucal.backbones import BackboneSpec
from paucal.models.named import random_backbone
from paucal.recipes.segmentation import SCALES
from paucal.rules.resolve import device_or_best, model_arguments
from paucal.runner.console import Console
from paucal.studies.call import Call, DataLocations, with_starts
from paucal.studies.descriptions import describe_run, describe_settings
from paucal.studies.plan import PlannedRun, initial_weights_settings
from paucal.studies.scenes import DRAWN_FOLDER, OTHER_DIGITS, SCENES, START_DIGITS, draw_data_sets
from paucal.studies.settings import StudySettings
from paucal.studies.study import Architecture, Scale
from paucal.types import UserError
from paucal.verbs.compare.grid import (
    EVAL,
    EVALUATION,
    MODEL,
    START,
    STARTS,
    Grid,
    cells_of,
    state_of,
    verb_settings,
)
from paucal.verbs.compare.jobs import GridImages, open_images
from paucal.verbs.compare.preparation import prepare_grid
from paucal.verbs.compare.running import are_all_cells_final, run_workers
from paucal.verbs.compare.settings import Arm
from paucal.verbs.label.launch import label_set
from paucal.verbs.label.settings import LabelSettings
from paucal.wording import counted, format_duration

MAX_EVALUATED_IMAGES = 2000  # largest number of images per split when features are evaluated at a smaller scale
# Image sizes for the multi-scale evaluation of segmenters at a smaller scale of the study, as factors of the training
# size. Images are not mirrored, since a mirrored digit is not a digit.
SMALL_SCALES = (0.8, 1.0, 1.25)
MIN_ACCURACY = 0.3  # smallest accuracy with which a teacher may make label maps
SELECTION_SETTINGS = ("fraction", "classes")  # settings that select images; all rows have the same values
SPLIT_SETTINGS = ("fraction", "val_fraction", "test_fraction")  # settings that are replaced by the teacher's split
TIMED_IMAGES = 8  # number of images in the timed forward pass
# Estimated seconds for the parts of an evaluation other than computing features: opening images, regression, intervals
# and figures.
EVALUATION_SECONDS = 20.0
START_COMMANDS = ("train", "pretrain")  # commands that train initial weights
# All images of a data set are used if they are at most this many times the number of images that a scale asks for.
MAX_SIZE_RATIO = 1.05


def prepare_grids(call: Call) -> list[Grid]:
    """Check every run, estimate the duration of each run by timing a few steps, and store the grids.

    At a smaller scale, the initial weights may not be trained yet. The steps are then timed with random weights.
    """
    call = with_starts(call)
    study, small, kind, console = call.study, call.small, call.study.kind, call.console
    prepare_first = partial(prepare_initial_weights, call) if study.starts and small is not None else None
    grids = []
    for data in dict.fromkeys(run.data for run in call.runs):
        runs = [run for run in call.runs if run.data == data]
        shared = {**call.locations.shared, "data": call.locations.by_name[data]}
        images = None if kind == "train" else open_images(EVAL if kind == "frozen" else kind, shared, console)
        arms = []
        for run in runs:
            if images is None:
                settings = _training_settings(call, run, shared)
            elif kind == "pretrain":
                settings = _pretraining_settings(call, run, images)
            else:
                settings = _feature_settings(call, run) if kind == "frozen" else _transfer_settings(call, run, images)
            arms.append(Arm(run.name, None, None, settings, run.against))
        if small is not None and kind == "train" and any(row.maps for row in study.rows_at(small)):
            # All rows use the split of the teacher that made the label maps, even if only some rows are requested.
            arms = _add_label_maps(call, arms, [run.row.maps for run in runs], small, shared)
        feature_timer = None
        if kind == "frozen" and images is not None:
            feature_timer = _make_feature_timer(call, runs, len(images))
        timing = (images, feature_timer, prepare_first)
        grids.append(prepare_grid(call.grid_settings(call.folder / data), arms, shared, call.command, console, *timing))
    return grids


def _training_settings(call: Call, run: PlannedRun, shared: Mapping[str, Any]) -> dict[str, Any]:
    study, small, settings = call.study, call.small, call.settings
    if small is not None:
        fraction = _fraction_setting(shared, run.settings.get("classes"), small.images, call.console)
        return {**run.settings, **fraction, **_start_setting(call, run)}
    if run.row.maps and settings.labels is None:
        raise UserError(
            f"{run.row.name!r} is trained with label maps: make label maps with 'paucal label DATA --teacher RUN "
            "--output FOLDER' and give --labels FOLDER, or exclude the row with --rows."
        )
    # Rows with their own recipe, such as rows with label maps, keep their recipe.
    recipe = settings.recipe if run.settings.get("recipe") == study.recipe else None
    init = settings.init[0] if settings.init and not study.starts else None
    run_settings = {"recipe": recipe, "init": init, "labels": settings.labels if run.row.maps else None}
    return {**run.settings, **{name: value for name, value in run_settings.items() if value is not None}}


def _pretraining_settings(call: Call, run: PlannedRun, images: GridImages) -> dict[str, Any]:
    small, locations = call.small, call.locations
    # A k-NN accuracy that a column shows during training is monitored on the images of the final evaluation.
    is_watched = any(column.metric == "knn_curve" for column in run.columns)
    monitor = {"monitor": locations.by_name[run.evaluated]} if is_watched else {}
    if small is None:
        other_images = {} if run.evaluated == run.data else {"on": locations.by_name[run.evaluated]}
        # The published linear probe is trained on augmented views.
        return {**run.settings, EVALUATION: {"augment": True, **other_images}, **monitor}
    settings = _limit_epochs(run, small, len(images))
    if settings.get("region_after", 0) >= settings["epochs"]:
        del settings["region_after"]
    return {**settings, EVALUATION: {"max_images": MAX_EVALUATED_IMAGES, "no_cache": True}, **monitor}


def _transfer_settings(call: Call, run: PlannedRun, images: GridImages) -> dict[str, Any]:
    small, evaluation = call.small, {}
    if any(column.metric == "mean_iou_scales" for column in call.study.trained_columns):
        scales = {"scales": list(SCALES), "mirror": True} if small is None else {"scales": list(SMALL_SCALES)}
        evaluation = {EVALUATION: scales}
    if small is None:
        return {**run.settings, **evaluation}
    return {**_limit_epochs(run, small, images.n_training_images), **_start_setting(call, run), **evaluation}


def _feature_settings(call: Call, run: PlannedRun) -> dict[str, Any]:
    if call.small is not None:
        return {**run.settings, "max_images": MAX_EVALUATED_IMAGES, "no_cache": True, **_start_setting(call, run)}
    settings = {name: value for name, value in run.settings.items() if name != "init"}
    init = run.settings["init"]
    if init == "timm":
        return {**settings, "pretrained": True, MODEL: settings["model"]}
    return {**settings, MODEL: str(Path(init).expanduser().absolute())}


def _start_setting(call: Call, run: PlannedRun) -> dict[str, list[str]]:
    start = call.study.starts.get(run.row.start)
    return {} if start is None else {START: [start.verb, run.row.start]}


def _limit_epochs(run: PlannedRun, small: Scale, images: int) -> dict[str, Any]:
    """Return a run's settings, with fewer epochs if there are more than `small.images` images, in proportion."""
    epochs = max(1, round(run.epochs * min(1.0, small.images / images)))
    return {**run.settings, "batch_size": min(run.settings["batch_size"], images), "epochs": epochs}


def _make_feature_timer(call: Call, runs: Sequence[PlannedRun], images: int) -> Callable[[Mapping[str, Any]], float]:
    """Return a function that times a forward pass to estimate the seconds of an evaluation on a number of images."""
    models, small = dict[str, tuple[Architecture, int]](), call.small
    for model in (call.study.models[run.row.model] for run in runs):
        architecture, side = model.full, model.side
        if small is not None and model.standin is not None and small.start_training is not None:
            architecture, side = model.standin, small.start_training.side
        models[architecture.name] = architecture, side
    images = images if call.small is None else min(images, 2 * MAX_EVALUATED_IMAGES)

    def estimate_seconds(values: Mapping[str, Any]) -> float:
        model, side = models[values["model"]]
        spec = BackboneSpec(model.name, 0, image_size=(side, side), arguments=model_arguments(model.args))
        device = torch.device(device_or_best(values.get("device")))
        backbone, batch = random_backbone(spec, 0).to(device), torch.zeros(TIMED_IMAGES, 3, side, side, device=device)
        with torch.inference_mode():
            backbone(batch).pooled.sum().item()  # warm-up
            start = time.perf_counter()
            backbone(batch).pooled.sum().item()
        # The factor is 2, since a backbone with random weights is evaluated too.
        return EVALUATION_SECONDS + 2 * images * (time.perf_counter() - start) / TIMED_IMAGES

    return estimate_seconds


def _add_label_maps(
    call: Call, arms: Sequence[Arm], need_maps: Sequence[bool], small: Scale, shared: Mapping[str, Any]
) -> list[Arm]:
    """Train the teacher, make label maps, and add the maps to the settings of the arms whose `need_maps` is True.

    All arms get the teacher's split, because the label maps contain the labels of the teacher's training images, and
    these images must not be test images of any arm.
    """
    selection = {name: arms[0].settings[name] for name in SELECTION_SETTINGS if name in arms[0].settings}
    teacher, maps = _train_teacher(call, selection, small, shared), str(call.folder / "maps")
    location = {name: value for name, value in shared.items() if name in ("data", "data_root", "device", "workers")}
    label_set(LabelSettings(teacher=str(teacher), output=maps, min_accuracy=MIN_ACCURACY, **location), call.console)
    with_maps = []
    for arm, needs_maps in zip(arms, need_maps, strict=True):
        settings = {name: value for name, value in arm.settings.items() if name not in SPLIT_SETTINGS}
        settings |= {"split": str(teacher / "split.csv"), **({"labels": maps} if needs_maps else {})}
        with_maps.append(replace(arm, settings=settings))
    return with_maps


def _train_teacher(call: Call, selection: Mapping[str, Any], small: Scale, shared: Mapping[str, Any]) -> Path:
    """Train the teacher of label maps on the images of the rows, or find a trained teacher; return its run folder."""
    teacher, console = small.teacher, call.console
    if teacher is None:
        raise UserError(f"--scale {call.settings.scale} has no teacher for label maps: use --scale full with --labels.")
    epochs = counted(teacher.epochs, "epoch")
    console.say(f"label maps: training the teacher {teacher.name} on these images for {epochs}")
    settings = {
        "init": "none",
        **{name: value for name, value in small.set.items() if name not in SELECTION_SETTINGS},
        "model": teacher.name,
        "model_args": list(teacher.args),
        "method": "supervised",
        "img_size": [small.side if small.start_training is None else small.start_training.side],
        "epochs": teacher.epochs,
        "lr": teacher.lr,
        **selection,
    }
    grid_settings, arms = call.grid_settings(call.folder / "teacher", [0]), [Arm("teacher", None, None, settings)]
    grid = prepare_grid(grid_settings, arms, shared, "the teacher of a study", console)
    if not grid_settings.jobs and not are_all_cells_final(grid):
        raise UserError(
            "--jobs 0 times each run, but some runs read the label maps of a teacher, which must be trained first "
            f"(about {format_duration(grid.forecast['teacher'])}): remove --jobs."
        )
    if not run_workers(grid, grid_settings, "the same command", console):
        raise UserError("the teacher is not trained yet: run the same command again to resume its training.")
    (cell,) = cells_of(grid)
    state = state_of(cell)
    if state.name == "failed":
        raise UserError(f"the teacher could not be trained ({state.error.rstrip('.')}): fix this, then use --retry.")
    return cell.run.path.resolve()


def shown_settings(runs: Sequence[PlannedRun], starts: Sequence[Grid], grids: Sequence[Grid]) -> list[dict[str, str]]:
    """Return the rows of the page's table of settings: initial weights, shared settings, and each run."""
    rows, used_starts = [], {run.row.start for run in runs}
    used_arms = [(start, arm) for start in starts for arm in start.arms if arm.name in used_starts]
    for grid, arm in used_arms:
        flags = f"paucal {grid.verb} {describe_settings(verb_settings(arm.settings))}"
        images = Path(str(grid.shared["data"])).name
        rows.append({"run": f"{arm.name} (initial weights)", "images": images, "settings": flags})
    arms = {(grid.folder.name, arm.name): verb_settings(arm.settings) for grid in grids for arm in grid.arms}
    run_settings = [arms[run.data, run.name] for run in runs]
    shared = {
        name: value
        for name, value in (run_settings[0].items() if len(run_settings) > 1 else ())
        if all(name in settings and settings[name] == value for settings in run_settings)
    }
    if shared:
        images = ", ".join(dict.fromkeys(run.data for run in runs))
        rows.append({"run": "all runs below", "images": images, "settings": describe_settings(shared)})
    for run, settings in zip(runs, run_settings, strict=True):
        flags = describe_settings({name: value for name, value in settings.items() if name not in shared})
        rows.append({"run": describe_run(run), "images": run.data, "settings": flags or "no other settings"})
    return rows


def with_start_images(locations: DataLocations, small: Scale, settings: StudySettings, folder: Path) -> DataLocations:
    """Add the location of the images on which initial weights are trained; return the locations.

    If the scale uses drawn scenes or digits and DATA is not given, the images are drawn into the study's folder.
    """
    start_training = small.start_training
    if start_training is None or not start_training.data:
        return locations
    if settings.data and settings.data[0] == start_training.data:
        raise UserError(
            f"--data: the initial weights are trained on {start_training.data} at --scale {settings.scale}, so the "
            "models must be tested on other images: remove --data, or give other images."
        )
    if settings.data or small.data not in (SCENES, OTHER_DIGITS):
        return replace(locations, start_images=start_training.data)
    image_root = draw_data_sets(folder / DRAWN_FOLDER, small.images, small.side).resolve()
    location_of = {**locations.by_name, small.data: str(image_root / small.data)}
    return replace(locations, by_name=location_of, start_images=str(image_root / START_DIGITS))


def prepare_initial_weights(call: Call, rows: Grid) -> None:
    """Check the initial weights that the rows need, estimate the training time, and store the grids that train them.

    There is one grid for each command that trains initial weights. `rows` is the grid of the runs that need the
    weights, including unfinished runs of earlier calls, since any worker may compute these runs.
    """
    study, small, console = call.study, call.small, call.console
    if small is None or (start_training := small.start_training) is None:
        text = f"{study.name} has no images for training initial weights at --scale {call.settings.scale}"
        raise UserError(f"{text}: use --scale full.")
    shared = {**call.locations.shared, "data": call.locations.start_images or rows.shared["data"]}
    for verb in START_COMMANDS:
        settings = {}
        for arm in rows.arms:
            start_verb, name = arm.settings[START]
            if start_verb == verb and name not in settings:
                # Initial weights that are trained on the images of the rows use the split and label maps of the rows.
                copied_names = () if start_training.data else ("split", "labels")
                parts = {name: value for name, value in arm.settings.items() if name in copied_names}
                settings[name] = {**initial_weights_settings(study, study.starts[name], small), **parts}
        if not settings:
            continue
        fraction = {}
        if verb == "train" and start_training.data:
            fraction = _fraction_setting(shared, start_training.set.get("classes"), start_training.images, console)
        arms = [Arm(name, None, None, {**values, **fraction}) for name, values in settings.items()]
        grid_settings = call.grid_settings(call.folder / STARTS / verb, rows.seeds)
        images = None if verb == "train" else open_images(verb, shared, console)
        prepare_grid(grid_settings, arms, shared, call.command, console, images)


def _fraction_setting(shared: Mapping[str, Any], classes: str | None, count: int, console: Console) -> dict[str, float]:
    """Return the setting `fraction` that limits training to `count` labelled images; {} if all images are used."""
    location = {name: shared[name] for name in ("data", "data_root", "download") if name in shared}
    n_images = open_images("train", {**location, "classes": classes}, console).n_training_images
    return {} if n_images <= MAX_SIZE_RATIO * count else {"fraction": round(count / n_images, 6)}
