"""The two files that mark a grid of runs, as `paucal compare` and `paucal study` write it, and one of its runs."""

from collections.abc import Mapping
from pathlib import Path

from paucal.runs.folder import RunFolder
from paucal.types import UserError

GRID_FILE = "grid.json"
SCORES_FILE = "judged.json"  # in the parent of a run's folder: scores by evaluation protocol


def is_grid(folder: Path) -> bool:
    """Return whether a folder is the folder of a grid of runs."""
    return (folder / GRID_FILE).is_file()


def read_scores(folder: Path) -> Mapping[str, Mapping[str, float]]:
    """Read `judged.json` in the folder of a grid cell: its run's scores by name, for each evaluation protocol."""
    content = RunFolder(folder).read_json(SCORES_FILE)
    try:
        return {
            str(protocol): {str(name): float(value) for name, value in scores_by_name.items()}
            for protocol, scores_by_name in content["scores"].items()
        }
    except (KeyError, TypeError, ValueError, AttributeError) as problem:
        raise UserError(f"{str(folder / SCORES_FILE)!r} is damaged ({problem}): remove it and run again.") from problem
