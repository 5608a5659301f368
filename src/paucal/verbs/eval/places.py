"""Where the results of `paucal eval` go, looked at before any work is done."""

import os
from collections.abc import Sequence
from pathlib import Path

from paucal.data.splits.split import PARTS
from paucal.evaluation.protocols.table import FOLDER
from paucal.models.tasks import SEGMENTATION, task_of
from paucal.reading import named_path
from paucal.runner.outputs import check_results
from paucal.runs import RunFolder, open_model
from paucal.verbs.eval.models import find_run
from paucal.verbs.eval.settings import EvalSettings

MASKS = "masks"  # folder of the masks that a segmenter has found


def check_places(model: str, data: Sequence[str], settings: EvalSettings, more: Sequence[str] = ()) -> None:
    """Refuse a place for results that will not do.

    Args:
        model: that is judged.
        data: images to judge it on; none for its own.
        settings: of the evaluation.
        more: names that are written to there, see `check_results`.

    Raises:
        UserError: one cannot be written, lies among the images or holds something else; or there is no such run.
    """
    frozen = any(name != "classification" for name in settings.protocols)
    places = [table_folder(model, settings)] if frozen else []
    images = {"DATA": None}
    if "classification" in settings.protocols:
        folder = open_model(model)
        places += [report_folder(folder, target, data, settings) for target in data or [None]]
        if not data and (stored := folder.settings):
            images = {"DATA": stored.get("data")}
    for target in data or [None]:
        for place in places:
            check_results(place, images if target is None else {"DATA": target}, settings.data_root, more)


def table_folder(model: str, settings: EvalSettings) -> Path:
    """Return the folder for the table of frozen features."""
    if settings.output is not None:
        return named_path(settings.output)
    folder = find_run(model)
    return folder.evaluation(FOLDER) if folder else Path("evaluation") / Path(model).stem


def report_folder(run: RunFolder, target: str | None, data: Sequence[str], settings: EvalSettings) -> Path:
    """Return the folder for the report on a data set; on the run's own images where the target is None."""
    part = settings.part or "test"
    name = part if target is None else _name(target, data) + (f"-{settings.part}" if settings.part else "")
    if settings.scales or (settings.mirror and task_of(str(run.path)) == SEGMENTATION):
        name = f"{name}-scales"  # beside what the run itself has found
    if settings.output is None:
        return run.evaluation(name)
    output = named_path(settings.output)
    return output / name if len(data) > 1 else output


def _name(target: str, targets: Sequence[str]) -> str:
    """Return a name for the results on a set: never that of a part of the run's own images, nor that of two sets."""
    path = Path(os.path.realpath(target))
    alike = sum(Path(os.path.realpath(other)).stem == path.stem for other in targets) > 1
    return f"{path.parent.name}-{path.stem}" if alike or path.stem in PARTS else path.stem
