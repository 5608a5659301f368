"""The scores of a finished cell of another verb than `paucal train`, read from its files."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paucal.runs import RunFolder
from paucal.types import UserError
from paucal.verbs.compare.cells.cell import JUDGED, Cell

FILES = {"detect": "evaluation/detection/metrics.json", "segment": "evaluation/test/segmentation.json"}
Scores = Mapping[str, Mapping[str, float]]


def scores_of(cell: Cell) -> Scores:
    """Return scores by name, of the run ("trained") and, for frozen features, of random weights ("random").

    They come from the run's own evaluation ("ap50", "mean_iou"), with the ends of the interval over test images ("low",
    "high") if there is one, and from the evaluation beside it ("knn", "mean_iou_scales").

    Raises:
        UserError: A file is missing or damaged.
    """
    own = _own(cell) if cell.verb in FILES else {}
    return {**own, **(read_evaluation(cell.folder) if cell.judged else {})}


def _own(cell: Cell) -> Scores:
    name = FILES[cell.verb]
    content = cell.run.read_json(name)
    values = content
    if cell.verb == "detect":
        values, intervals = content.get("scores"), content.get("intervals", {})
        values = {**values, **intervals} if isinstance(values, dict) and isinstance(intervals, dict) else None
    if not isinstance(values, dict):
        raise UserError(f"{str(cell.run.path / name)!r} is damaged: remove the run folder and run again.")
    found = {key: _numbers(one if isinstance(one, dict) else {"value": one}) for key, one in values.items()}
    return {key: one for key, one in found.items() if "trained" in one}


def _numbers(one: Mapping[str, Any]) -> dict[str, float]:
    """Return a score, with its interval if both ends exist."""
    names = {"value": "trained", "low": "low", "high": "high"}
    plain = {names[key]: value for key, value in one.items() if key in names}
    found = {key: float(v) for key, v in plain.items() if isinstance(v, int | float) and not isinstance(v, bool)}
    return found if {"low", "high"} <= set(found) else {key: v for key, v in found.items() if key == "trained"}


def read_evaluation(folder: Path) -> Scores:
    """Return the stored scores of a cell's evaluation, by protocol.

    Raises:
        UserError: The file is missing or damaged.
    """
    stored = RunFolder(folder).read_json(JUDGED)
    try:
        return {
            str(protocol): {str(name): float(value) for name, value in by_name.items()}
            for protocol, by_name in stored["scores"].items()
        }
    except (KeyError, TypeError, ValueError, AttributeError) as problem:
        raise UserError(f"{str(folder / JUDGED)!r} is damaged ({problem}): remove it and run again.") from problem
