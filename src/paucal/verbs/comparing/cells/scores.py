"""The scores of a finished cell whose run is not one of `paucal train`, read from its files."""

from collections.abc import Mapping
from typing import Any

from paucal.runs import RunFolder
from paucal.types import UserError
from paucal.verbs.comparing.cells.cell import JUDGED, JUDGING, Cell

FILES = {"detect": "evaluation/detection/metrics.json", "segment": "evaluation/test/segmentation.json"}
Scores = Mapping[str, Mapping[str, float]]


def scores_of(cell: Cell) -> Scores:
    """Return scores by name, of the run ("trained") and, where features are judged, of random weights ("random").

    They are those that the run's own evaluation has stored ("ap50", "mean_iou") and those of its judge ("knn",
    "mean_iou_scales").

    Raises:
        UserError: a file is missing or damaged.
    """
    own = _own(cell) if cell.verb in FILES else {}
    return {**own, **(_judged(cell) if JUDGING in cell.settings else {})}


def _own(cell: Cell) -> Scores:
    name = FILES[cell.verb]
    content = cell.run.read_json(name)
    values = content.get("scores") if cell.verb == "detect" else content
    if not isinstance(values, dict):
        raise UserError(f"{str(cell.run.path / name)!r} is damaged: remove the run's folder and go on.")
    return {key: {"trained": value} for key, one in values.items() if (value := _number(one)) is not None}


def _number(value: Any) -> float | None:
    """Return a score, which may stand beside its interval."""
    value = value.get("value") if isinstance(value, dict) else value
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _judged(cell: Cell) -> Scores:
    stored = RunFolder(cell.folder).read_json(JUDGED)
    try:
        return {
            str(protocol): {str(name): float(value) for name, value in by_name.items()}
            for protocol, by_name in stored["scores"].items()
        }
    except (KeyError, TypeError, ValueError, AttributeError) as problem:
        raise UserError(f"{str(cell.folder / JUDGED)!r} is damaged ({problem}): remove it and go on.") from problem
