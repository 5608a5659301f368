"""Numbers that another study measured at full scale, read from its table."""

import csv
from collections.abc import Mapping
from pathlib import Path

from paucal.reading import read_text
from paucal.studies.numbers import Measured
from paucal.studies.study import Study
from paucal.studies.tables import RESULTS
from paucal.types import UserError

MOST_BYTES = 1 << 22
Numbers = Mapping[tuple[str, str], Measured]  # by the names of row and column


def measured_elsewhere(study: Study, folder: Path) -> dict[str, Numbers]:
    """Return the numbers of the studies that a study's columns name, by study; {} for one that has none.

    Args:
        study: Any.
        folder: Folder of the study, beside which those of the others lie under their usual names.

    Raises:
        UserError: A table there was not written by a study.
    """
    names = dict.fromkeys(column.study for column in study.columns if column.study)
    return {name: _numbers(full_folder(name, folder) / RESULTS) for name in names}


def full_folder(name: str, folder: Path) -> Path:
    """Return the default folder of a study at full scale, beside the folder of another one."""
    return folder.parent / f"study-{name}-full"


def _numbers(path: Path) -> Numbers:
    if not path.is_file():
        return {}
    try:
        lines = list(csv.DictReader(read_text(path, MOST_BYTES).splitlines()))
        return {(line["row"], line["column"]): _measured(line) for line in lines if line["measured"]}
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise UserError(f"{str(path)!r} is not the table of a study ({problem}): move it away.") from problem


def _measured(line: Mapping[str, str]) -> Measured:
    low, high, deviation = (
        float(line[name]) if line[name] else None for name in ("measured_low", "measured_high", "measured_sd")
    )
    return Measured(float(line["measured"]), deviation, int(line["seeds"]), low=low, high=high)
