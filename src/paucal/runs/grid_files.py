"""Files of grids of runs (`paucal compare` and `paucal study`) that other modules read too."""

from collections.abc import Mapping
from pathlib import Path

from paucal.runs.folder import RunFolder
from paucal.types import UserError

GRID = "grid.json"
SCORES = "judged.json"  # file above a run's folder with scores of an additional evaluation


def is_grid(folder: Path) -> bool:
    """Return whether a folder holds a grid of runs."""
    return (folder / GRID).is_file()


def read_scores(folder: Path) -> Mapping[str, Mapping[str, float]]:
    """Return the scores of the additional evaluation of a run, by protocol."""
    content = RunFolder(folder).read_json(SCORES)
    try:
        return {
            str(protocol): {str(name): float(value) for name, value in scores_by_name.items()}
            for protocol, scores_by_name in content["scores"].items()
        }
    except (KeyError, TypeError, ValueError, AttributeError) as problem:
        raise UserError(f"{str(folder / SCORES)!r} is damaged ({problem}): remove it and run again.") from problem
