"""The loop of a worker: lock a free cell, compute it, and repeat until every cell is done or has failed.

A cell is computed in two steps: its run is trained or, if another worker has stopped during its training, resumed; then
it is evaluated. Workers share only the folder of the grid. They read the grid again before each cell, so that the grid
can be extended while they work. A cell is locked by one worker at a time. The lock expires if the worker dies, and the
cell is marked as failed after several crashes.
"""

import os
import shutil
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback

from paucal.evaluation.protocols.evaluate import PROTOCOLS, Protocol
from paucal.rules.resolve import device_or_best
from paucal.runner.console import Console, SilentConsole
from paucal.runner.life import Stopped, begin, resume
from paucal.runner.progress import TrainingBar
from paucal.runner.resuming import typed_settings
from paucal.runs import RunFolder
from paucal.runs.folder import SCORES_FILE
from paucal.runs.lock import DEAD_AFTER_SECONDS, RENEWAL_SECONDS, is_locked, lock_folder, require_unlocked
from paucal.tasks.table import job_of
from paucal.types import UserError
from paucal.verbs.compare.grid import (
    EVAL,
    EVALUATION,
    EVALUATION_FOLDER,
    FAILURE_FILE,
    MODEL,
    Cell,
    Grid,
    cells_of,
    initial_weights_cell,
    initial_weights_settings,
    read_grid,
    state_of,
    verb_settings,
)
from paucal.verbs.eval.frozen import evaluate_frozen
from paucal.verbs.eval.images import open_image_set
from paucal.verbs.eval.segmentation import evaluate_segmenter
from paucal.verbs.eval.settings import EvalSettings, OpeningSettings
from paucal.wording import one_line_message

POLL_SECONDS = 2.0  # seconds between two checks of a grid while other workers are busy
TRIES_FILE = "tries.json"  # file in a cell's folder: number of starts of the cell since its last checkpoint
MAX_TRIES = 3  # a cell is marked as failed after this many crashes without a new checkpoint
# Function that computes a cell with a number of threads; False if a signal stopped the cell after saving a checkpoint.
Compute = Callable[[Cell, int], bool]
# Settings of an evaluation that do not change its scores.
MACHINE_SETTINGS = ("data", "data_root", "device", "workers", "download")
TEST_FRACTION = 0.2  # fraction of the images to test on, for data sets without test images


def work(
    folder: Path,
    compute: Compute,
    report: Callable[[Grid], object] | None = None,
    pause: float = POLL_SECONDS,
    end_with_parent: bool = False,
) -> bool:
    """Compute free cells until every cell of the grid is done or has failed; return False if this worker was stopped.

    With `end_with_parent`, the worker stops after the current cell if its parent process has ended. `report` is called
    with the grid before each cell, and every `pause` seconds while only other workers are busy.
    """
    parent = os.getppid()
    while not end_with_parent or os.getppid() == parent:
        grid = read_grid(folder)
        open_cells = [cell for cell in cells_of(grid) if not state_of(cell).is_final]
        if report is not None:
            report(grid)
        if not open_cells:
            return True
        outcome = compute_next(open_cells, compute, grid.threads)
        if outcome is False:
            return False
        if outcome is None:
            time.sleep(pause)
    return False


def compute_next(cells: Sequence[Cell], compute: Compute, threads: int) -> bool | None:
    """Compute the first free cell; return False after a stop signal, None if other workers have locked all cells."""
    for cell in cells:
        with lock_cell(cell) as is_mine:
            if is_mine:
                try:
                    finished = compute(cell, threads)
                except KeyboardInterrupt:
                    clear_tries(cell)
                    raise
                except Exception as problem:  # an error in one cell must not prevent the other cells
                    store_failure(cell, problem)
                    return True
                clear_tries(cell)
                return finished
    return None


@contextmanager
def lock_cell(cell: Cell) -> Iterator[bool]:
    """Lock a cell until the block ends or this worker dies; yield whether this worker may compute the cell."""
    with ExitStack() as lock:
        try:
            lock.enter_context(lock_folder(cell.folder, "the cell"))
        except UserError:  # another worker holds the lock
            yield False
            return
        # Another worker may have finished the cell before this worker got the lock.
        yield not state_of(cell).is_final and _register_try(cell)


def _register_try(cell: Cell) -> bool:
    """Count this start of a cell; return whether the worker may compute the cell.

    After `MAX_TRIES` starts without a new checkpoint, the cell is marked as failed instead.
    """
    folder = RunFolder(cell.folder)
    try:
        state = str(cell.run.last.stat().st_mtime_ns)
    except FileNotFoundError:
        state = "none"
    record: dict[str, object] = {}
    with suppress(UserError):  # if the file is missing or damaged, the count starts at zero
        record = folder.read_json(TRIES_FILE)
    tries = record.get("tries") if record.get("state") == state else 0
    tries = tries if isinstance(tries, int) else 0
    if tries >= MAX_TRIES:
        text = f"{tries} of its workers crashed without making progress (perhaps killed for lack of memory): use a "
        store_failure(cell, UserError(f"{text}smaller --batch-size or fewer --jobs, then --retry."))
        return False
    folder.write_json(TRIES_FILE, {"tries": tries + 1, "state": state})
    return True


def store_failure(cell: Cell, problem: BaseException) -> None:
    """Store the reason why a cell failed; only the worker that has locked the cell may call this function."""
    expected = isinstance(problem, UserError)
    error = str(problem) if expected else one_line_message(f"{type(problem).__name__}: {problem}")
    trace = "" if expected else "".join(traceback.format_exception(problem))
    RunFolder(cell.folder).write_json(FAILURE_FILE, {"error": error, "traceback": trace[-20_000:]})


def clear_failure(cell: Cell) -> None:
    """Delete the record of a cell's failure, so that the cell is computed again."""
    (cell.folder / FAILURE_FILE).unlink(missing_ok=True)
    clear_tries(cell)


def clear_tries(cell: Cell) -> None:
    """Reset the number of starts of a cell whose worker ended without a crash, or that is computed again."""
    (cell.folder / TRIES_FILE).unlink(missing_ok=True)


def work_silently(folder: str, end_with_parent: bool = False) -> bool:
    """Compute cells of a grid without console output, as worker processes, SLURM jobs and Ray tasks do; see `work`."""
    return work(Path(folder), train_cell, end_with_parent=end_with_parent)


class CellConsole(SilentConsole):
    """Shows only the progress bar of training, on the console `outer`; messages are only written to the run's log."""

    def __init__(self, outer: Console) -> None:
        super().__init__()
        self._outer = outer

    def callbacks(self) -> Sequence[Callback]:
        """Return the callback that shows the progress bar of training on the outer console."""
        return [TrainingBar(self._outer.bar(transient=True))]


def train_cell(cell: Cell, threads: int, console: Console | None = None) -> bool:
    """Train and evaluate a cell, as a function of the type `Compute`."""
    torch.set_num_threads(threads)
    cell_console = SilentConsole() if console is None else CellConsole(console)
    if not cell.run.finished:
        # The cell that trains the initial weights has usually ended already, except if another call added a seed to the
        # grid while this worker was busy. It is then computed here, or by another worker.
        start = initial_weights_cell(cell)
        while start is not None and not state_of(start).is_final:
            outcome = compute_next([start], train_cell, threads)
            if outcome is False:
                return False
            if outcome is None:
                time.sleep(POLL_SECONDS)
        if cell.verb != EVAL and not _train(cell, cell_console):
            return False
    if cell.is_evaluated:
        _evaluate(cell, cell_console)
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
        evaluation = verb_settings(cell.settings)
        evaluation = {name: value for name, value in evaluation.items() if name not in MACHINE_SETTINGS}
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
