"""The numbers of a study: published beside measured, row by row."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from paucal.studies.counting import counted_value
from paucal.studies.derived import average, wins
from paucal.studies.numbers import Measured, measured_of, of_runs, of_scores, score_of
from paucal.studies.plan import Planned
from paucal.studies.study import COUNTED, DERIVED, TIMED, Column, Row, Study, Value
from paucal.studies.timing import Timed, timed_value
from paucal.verbs.compare.cells.cell import cells_of, state_of
from paucal.verbs.compare.cells.grid import Grid
from paucal.verbs.compare.cells.scores import scores_of
from paucal.verbs.compare.outcome.evidence import ArmOutcome, Findings, find

ELSEWHERE = "not run at this scale"  # why a number of ours is missing


@dataclass(frozen=True)
class Line:
    """One number of a table.

    Attributes:
        row: Row of the study.
        column: Column of the study.
        published: Published value.
        deviation: Published standard deviation.
        gain: Published gain over the row's baseline; None without a baseline.
        measured: Measured number; None without one.
        why: Reason for a missing measurement.
    """

    row: Row
    column: Column
    published: Value
    deviation: float | None
    gain: float | None
    measured: Measured | None
    why: str = ""


@dataclass(frozen=True)
class Evidence:
    """The stored results of a study's runs.

    Attributes:
        asked: Requested runs.
        whole: All runs of the scale.
        trained: Results of runs that learned from labels, by data set and name.
        scored: Scores of other runs with their seeds, by data set and name.
        failed: Data set and name of runs whose seeds have all failed.
        timed: Timed models on this device; None if no column is a time.
        elsewhere: Numbers of other studies, by study, then by the names of row and column.
    """

    asked: Sequence[Planned]
    whole: Sequence[Planned]
    trained: Mapping[tuple[str, str], ArmOutcome]
    scored: Mapping[tuple[str, str], Sequence[Mapping[str, Any]]]
    failed: frozenset[tuple[str, str]]
    timed: Timed | None = None
    elsewhere: Mapping[str, Mapping[tuple[str, str], Measured]] = field(default_factory=dict)


def find_lines(
    study: Study,
    runs: Sequence[Planned],
    grids: Sequence[Grid],
    whole: Sequence[Planned] = (),
    timed: Timed | None = None,
    elsewhere: Mapping[str, Mapping[tuple[str, str], Measured]] | None = None,
) -> tuple[list[Line], list[Findings]]:
    """Return every number of the table, and the results of its comparisons.

    Args:
        study: any.
        runs: that are wanted now; none of a study that trains nothing.
        grids: stored runs, those of earlier calls too.
        whole: all runs of the scale; by default those that are wanted.
        timed: models on this device, of a study with columns of times.
        elsewhere: Numbers of the studies that columns name, by study, then by the names of row and column.
    """
    findings = [find(grid) for grid in grids if grid.verb == "train"]
    trained = {(one.grid.folder.name, arm.arm.way): arm for one in findings for arm in one.arms}
    scored = {(grid.folder.name, way): found for grid in grids for way, found in _scored(grid).items()}
    evidence = Evidence(runs, whole or runs, trained, scored, _failed(grids), timed, elsewhere or {})
    lines = []
    for row in study.rows:
        for place, column in enumerate(study.columns):
            measured, why = _measured(study, row, column, evidence)
            deviation = row.deviations[place] if row.deviations else None
            lines.append(
                Line(row, column, row.values[place], deviation, _published_gain(study, row, place), measured, why)
            )
    return lines, findings


def _measured(study: Study, row: Row, column: Column, evidence: Evidence) -> tuple[Measured | None, str]:
    if column.metric in COUNTED:
        value = counted_value(study, row, column)
        return (None, "not built here") if value is None else (Measured(value), "")
    if column.study:
        found = evidence.elsewhere.get(column.study, {}).get((row.name, column.name))
        return found, "" if found is not None else "quoted"
    if column.metric in TIMED:
        return _timed(study, row, column, evidence.timed)
    if column.metric in DERIVED and row in study.trained_rows:
        return _derived(study, row, column, evidence)
    if column not in study.trained_columns or row not in study.trained_rows:
        return None, "quoted"
    run = _run_of(row, column, evidence)
    if run is None:
        return None, ELSEWHERE
    place = (run.data, run.name)
    against = (run.data, run.against)
    if study.kind != "train":
        if own := evidence.scored.get(place, ()):
            return of_scores(column, own, evidence.scored.get(against, ()))
    elif (arm := evidence.trained.get(place)) is not None and arm.outcomes:
        return of_runs(column, arm, evidence.trained.get(against)), ""
    return None, _missing(row, column, evidence, place)


def _timed(study: Study, row: Row, column: Column, timed: Timed | None) -> tuple[Measured | None, str]:
    found, why = (None, "not timed") if timed is None else timed_value(study, row, column, timed)
    if found is None or found.low == found.high:  # the row that sets the scale has no spread
        return None if found is None else Measured(found.median), why
    return Measured(found.median, low=found.low, high=found.high), why


def _run_of(row: Row, column: Column, evidence: Evidence) -> Planned | None:
    """Return the run that gives a row's number in a column; None if the scale has none."""
    return next((run for run in evidence.whole if run.row == row and column in run.columns), None)


def _derived(study: Study, row: Row, column: Column, evidence: Evidence) -> tuple[Measured | None, str]:
    """Return a number derived from a row's scores on all data sets, once all of them are measured."""
    sets = [_by_seed(row, one, evidence) for one in study.trained_columns]
    if None in sets:
        return None, ELSEWHERE
    base = next((one for one in study.rows if one.name == row.against), None)
    others = [] if base is None else [_by_seed(base, one, evidence) or {} for one in study.trained_columns]
    own = [one or {} for one in sets]
    if column.metric == "wins" and not others:
        return None, "compared with nothing"
    values = average(own) if column.metric == "average" else wins(own, others)
    if not values:
        return None, "wants all sets"
    known = average(others) if others and column.metric == "average" else {}
    pairs = [values[seed] - known[seed] for seed in values if seed in known]
    return measured_of(list(values.values()), float(np.mean(pairs)) if pairs else None), ""


def _by_seed(row: Row, column: Column, evidence: Evidence) -> dict[int, float] | None:
    """Return a row's scores in a column by seed; None if no run of the scale gives any."""
    run = _run_of(row, column, evidence)
    if run is None:
        return None
    scored = evidence.scored.get((run.data, run.name), ())
    return {one["seed"]: score["trained"] for one in scored if (score := score_of(column, one)) is not None}


def _missing(row: Row, column: Column, evidence: Evidence, place: tuple[str, str]) -> str:
    """Return why a run of the scale has no number."""
    if place in evidence.failed:
        return "failed"
    mine = [run for run in evidence.asked if run.row == row]
    if any(column in run.columns for run in mine):
        return "not done"
    return "left out by --columns" if mine else "left out by --rows"


def _scored(grid: Grid) -> dict[str, list[Mapping[str, Any]]]:
    """Return the scores of a grid's finished runs by their arms, each with its seed."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    if grid.verb != "train":
        for cell in cells_of(grid):
            if state_of(cell).name == "done":
                rows = cell.run.read_rows() if grid.verb == "pretrain" else []
                found.setdefault(cell.arm.way, []).append({"seed": cell.seed, "rows": rows, **scores_of(cell)})
    return found


def _published_gain(study: Study, row: Row, place: int) -> float | None:
    """Return the published gain over the baseline of a row or else of its column."""
    column = study.columns[place]
    if column not in study.trained_columns and column.metric != "average":
        return None
    if row.against:
        other = next(one for one in study.rows if one.name == row.against).values[place]
    elif column.against:
        other = row.values[[one.name for one in study.columns].index(column.against)]
    else:
        return None
    own = row.values[place]
    return own - other if isinstance(own, float) and isinstance(other, float) else None


def _failed(grids: Sequence[Grid]) -> frozenset[tuple[str, str]]:
    names: dict[tuple[str, str], list[str]] = {}
    for grid in grids:
        for cell in cells_of(grid):
            names.setdefault((grid.folder.name, cell.arm.way), []).append(state_of(cell).name)
    return frozenset(place for place, found in names.items() if set(found) == {"failed"})
