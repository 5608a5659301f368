"""The files that mark the folder of a comparison or study ("grid" of runs) and the folder of each of its runs."""

from collections.abc import Mapping
from pathlib import Path

from paucal.runs.folder import RunFolder
from paucal.types import UserError

GRID_FILE = "grid.json"  # in the folder of a comparison or study
SCORES_FILE = "judged.json"  # in the parent folder of a run; contains the run's scores by evaluation protocol


def is_grid_folder(folder: Path) -> bool:
    """Return whether a folder contains the runs of a comparison or study."""
    return (folder / GRID_FILE).is_file()


def read_scores(folder: Path) -> Mapping[str, Mapping[str, float]]:
    """Read `judged.json` beside a run of a comparison or study; return scores by evaluation protocol, then by name."""
    content = RunFolder(folder).read_json(SCORES_FILE)
    try:
        return {
            str(protocol): {str(name): float(value) for name, value in scores_by_name.items()}
            for protocol, scores_by_name in content["scores"].items()
        }
    except (KeyError, TypeError, ValueError, AttributeError) as problem:
        raise UserError(
            f"{str(folder / SCORES_FILE)!r} is damaged ({problem}): remove the file and run again."
        ) from problem
