"""All studies, by name."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from paucal.studies.parts import DataSet
from paucal.studies.reading import read_by_kind, read_data_sets, read_studies
from paucal.studies.study import Study
from paucal.types import UserError
from paucal.wording import did_you_mean

FOLDER = Path(__file__).parent / "published"
PAPERS = ("drloc", "token_labeling", "dhvt", "esvit", "networks")


@cache
def data_sets() -> Mapping[str, DataSet]:
    """Return the sets of images that studies name."""
    return read_data_sets(FOLDER / "data_sets.yaml")


@cache
def studies() -> Mapping[str, Study]:
    """Return all studies, paper after paper, in the order of their tables.

    Raises:
        UserError: a file is damaged.
    """
    found: dict[str, Study] = {}
    by_kind = read_by_kind(FOLDER / "by_kind.yaml")
    for paper in PAPERS:
        found.update(read_studies(FOLDER / f"{paper}.yaml", data_sets(), by_kind))
    return found


def find_study(name: str) -> Study:
    """Return a study by its name.

    Raises:
        UserError: there is none; the message has the nearest.
    """
    known = studies()
    if name not in known:
        raise UserError(f"there is no study {name!r}{did_you_mean(name, known)}; 'paucal study list' shows all.")
    return known[name]
