"""Compute a cell, which is one run of a grid and the evaluation of this run.

The run is trained or, if another worker has stopped during its training, resumed; then it is evaluated.
"""

import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback

from paucal.evaluation.protocols.evaluate import PROTOCOLS, Protocol
from paucal.rules.facts import device_or_best
from paucal.runner.console import Console, SilentConsole
from paucal.runner.life import Stopped, begin, resume
from paucal.runner.progress import TrainingBar
from paucal.runner.resuming import typed_settings
from paucal.runs import RunFolder
from paucal.runs.grid_files import SCORES_FILE
from paucal.runs.lock import DEAD_AFTER_SECONDS, RENEWAL_SECONDS, is_locked, require_unlocked
from paucal.verbs.compare._work import POLL_SECONDS, compute_next, work
from paucal.verbs.compare.grid import (
    EVAL,
    EVALUATION,
    EVALUATION_FOLDER,
    MODEL,
    Cell,
    initial_weights_cell,
    initial_weights_settings,
    state_of,
    verb_settings,
)
from paucal.verbs.compare.jobs import job_of
from paucal.verbs.eval.frozen import evaluate_frozen
from paucal.verbs.eval.images import open_image_set
from paucal.verbs.eval.segmentation import evaluate_segmenter
from paucal.verbs.eval.settings import EvalSettings, OpeningSettings

# Settings of an evaluation that do not change its scores.
MACHINE_SETTINGS = ("data", "data_root", "device", "workers", "download")
TEST_FRACTION = 0.2  # fraction of the images to test on, for data sets without test images


def work_silently(folder: str, end_with_parent: bool = False) -> bool:
    """Compute cells of a grid without console output, as worker processes, SLURM jobs and Ray tasks do; see `work`."""
    return work(Path(folder), train_cell, end_with_parent=end_with_parent)


class CellConsole(SilentConsole):
    """Shows only the progress bar of training; messages are only written to the log of the run."""

    def __init__(self, outer: Console) -> None:
        super().__init__()
        self._outer = outer

    def callbacks(self) -> Sequence[Callback]:
        """Return the callback that shows the progress bar of training on the outer console."""
        return [TrainingBar(self._outer.bar(transient=True))]


def train_cell(cell: Cell, threads: int, console: Console | None = None) -> bool:
    """Train and evaluate a cell; return False if a signal stopped the training.

    This function has the type `Compute`.
    """
    torch.set_num_threads(threads)
    cell_console = SilentConsole() if console is None else CellConsole(console)
    if not cell.run.finished:
        if not _finish_initial_weights(cell, threads):
            return False
        if cell.verb != EVAL and not _train(cell, cell_console):
            return False
    if cell.is_evaluated:
        _evaluate(cell, cell_console)
    return True


def _finish_initial_weights(cell: Cell, threads: int) -> bool:
    """Wait until the cell that trains the initial weights of `cell` ends, or compute it; return False after a signal.

    That cell has usually ended already, except if another call added a seed to the grid while this worker was busy.
    """
    start = initial_weights_cell(cell)
    while start is not None and not state_of(start).is_final:
        outcome = compute_next([start], train_cell, threads)
        if outcome is False:
            return False
        if outcome is None:
            time.sleep(POLL_SECONDS)
    return True


def _train(cell: Cell, console: Console) -> bool:
    """Train a run to its end; return False if a signal stopped it."""
    run, job = cell.run, job_of(cell.verb)
    end = time.monotonic() + DEAD_AFTER_SECONDS + 2 * RENEWAL_SECONDS
    while is_locked(run.path) and time.monotonic() < end:  # the lock of a dead worker expires before `end`
        time.sleep(1.0)
    if run.last.exists():
        return not isinstance(resume(job, run.path, console), Stopped)
    if run.path.exists():  # the worker died before saving a checkpoint, so the run starts again
        require_unlocked(run.path)
        shutil.rmtree(run.path)
    values = {
        **verb_settings(cell.settings),
        **initial_weights_settings(initial_weights_cell(cell)),
        "output": str(run.path),
    }
    settings = typed_settings(values, job.settings_type)
    return not isinstance(begin(job, settings, dict.fromkeys(values, "given"), console), Stopped)


def _evaluate(cell: Cell, console: Console) -> None:
    """Evaluate a cell's finished run, or the cell's model if the cell trains nothing; store the scores in its folder.

    `cell.settings[EVALUATION]` is a dict of settings of `paucal eval`. For frozen features, it may also have the key
    "on": the data set to evaluate on.
    """
    evaluation = dict(cell.settings.get(EVALUATION, {}))
    if cell.verb == "segment":
        output = {"output": str(cell.folder / EVALUATION_FOLDER)}
        settings = EvalSettings(**{**_machine_settings(cell), **evaluation, **output})
        (result,) = evaluate_segmenter(str(cell.run.path), [], settings, console)
        scores = {"mean_iou_scales": {"trained": result.metrics["mean_iou"]}}
    elif cell.verb == EVAL:
        model = initial_weights_settings(initial_weights_cell(cell)).get("init") or str(cell.settings[MODEL])
        evaluation = {n: value for n, value in verb_settings(cell.settings).items() if n not in MACHINE_SETTINGS}
        scores = _feature_scores(cell, model, evaluation, console)
    else:
        scores = _feature_scores(cell, str(cell.run.path), {"protocol": ["knn", "linear"], **evaluation}, console)
    RunFolder(cell.folder).write_json(SCORES_FILE, {"scores": scores})


def _machine_settings(cell: Cell) -> dict[str, Any]:
    workers = {"workers": cell.settings["workers"]} if "workers" in cell.settings else {}
    return {"device": device_or_best(cell.settings.get("device")), **workers}


def _feature_scores(
    cell: Cell, model: str, evaluation: Mapping[str, Any], console: Console
) -> dict[str, dict[str, float]]:
    """Return the main score of each evaluation protocol on frozen features, for trained and for random weights."""
    evaluation = dict(evaluation)
    data = evaluation.pop("on", None) or cell.settings.get("data", "digits")
    location = {name: cell.settings[name] for name in ("data_root", "download") if name in cell.settings}
    images = open_image_set(OpeningSettings(data=data, data_root=location.get("data_root")))
    # If no image is declared a test image, the images are split at random. No label can leak into the test, since the
    # backbone was trained without these labels.
    split = {"test_fraction": TEST_FRACTION} if set(images.declared_splits) <= {"", "train"} else {}
    settings = EvalSettings(**{**_machine_settings(cell), **location, **split, **evaluation, "seed": cell.seed})
    protocols: list[Protocol] = [name for name in PROTOCOLS if name in settings.protocols]
    scores: dict[str, dict[str, float]] = {}
    for row in evaluate_frozen(model, [data], protocols, settings, cell.folder / EVALUATION_FOLDER, console).rows:
        name = f"{row.line.protocol}_distance" if row.line.unit == "px" else row.line.protocol
        if row.line.headline and name not in scores:
            values = [score.value for score in row.scores.values()]
            scores[name] = dict(zip(("trained", "random"), values, strict=False))
    return scores
