"""The numbers of a study, published and measured, row by row."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from paucal.studies.counting import counted_value
from paucal.studies.numbers import (
    Measurement,
    Numbers,
    average,
    mean_over_seeds,
    measure_arm,
    measure_scores,
    score_of,
    wins,
)
from paucal.studies.plan import PlannedRun
from paucal.studies.study import COUNTED, DERIVED, TIMED, Column, Row, Study, Value
from paucal.studies.timing import ModelSpeeds, timed_value
from paucal.verbs.compare.findings import ArmOutcome, Findings, read_findings, scores_of
from paucal.verbs.compare.grid import Grid, cells_of, state_of

NOT_RUN = "not run at this scale"  # reason for a missing measurement


@dataclass(frozen=True)
class Line:
    """One published number of a study's table, and what was measured for it.

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
    measured: Measurement | None
    why: str = ""


@dataclass(frozen=True)
class Evidence:
    """The stored results of a study's runs.

    Attributes:
        requested: Runs that the user requested.
        whole: All runs of the scale, requested or not.
        trained: Results of runs that learned from labels, by data set and name.
        scored: Scores of other runs with their seeds, by data set and name.
        failed: Data set and name of runs whose seeds have all failed.
        timed: Timed models on this device; None if no column is a time.
        elsewhere: Numbers of other studies by name.
    """

    requested: Sequence[PlannedRun]
    whole: Sequence[PlannedRun]
    trained: Mapping[tuple[str, str], ArmOutcome]
    scored: Mapping[tuple[str, str], Sequence[Mapping[str, Any]]]
    failed: frozenset[tuple[str, str]]
    timed: ModelSpeeds | None = None
    elsewhere: Mapping[str, Numbers] = field(default_factory=dict)

    def run_of(self, row: Row, column: Column) -> PlannedRun | None:
        """Return the run for a row's number in a column; None if the scale has none."""
        return next((run for run in self.whole if run.row == row and column in run.columns), None)


def find_lines(
    study: Study,
    runs: Sequence[PlannedRun],
    grids: Sequence[Grid],
    whole: Sequence[PlannedRun] = (),
    timed: ModelSpeeds | None = None,
    elsewhere: Mapping[str, Numbers] | None = None,
) -> tuple[list[Line], list[Findings]]:
    """Return every number of the table, and the results of its comparisons.

    Args:
        study: Study of any kind.
        runs: Requested runs; none for a study that trains nothing.
        grids: Stored grids, including those of earlier calls.
        whole: All runs of the scale; by default the requested ones.
        timed: Timed models on this device, for a study with columns of times.
        elsewhere: Numbers of the studies that columns name.
    """
    findings = [read_findings(grid) for grid in grids if grid.verb == "train"]
    trained = {(result.grid.folder.name, arm.arm.way): arm for result in findings for arm in result.arms}
    scored: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    states: dict[tuple[str, str], set[str]] = {}
    for grid in grids:
        for cell in cells_of(grid):
            place, state = (grid.folder.name, cell.arm.way), state_of(cell).name
            states.setdefault(place, set()).add(state)
            if grid.verb != "train" and state == "done":
                rows = cell.run.read_rows() if grid.verb == "pretrain" else []
                scored.setdefault(place, []).append({"seed": cell.seed, "rows": rows, **scores_of(cell)})
    failed = frozenset(place for place, names in states.items() if names == {"failed"})
    evidence = Evidence(runs, whole or runs, trained, scored, failed, timed, elsewhere or {})
    lines = []
    for row in study.rows:
        for place, column in enumerate(study.columns):
            measured, reason = _measured_number(study, row, column, evidence)
            deviation = row.deviations[place] if row.deviations else None
            gain = _published_gain(study, row, place)
            lines.append(Line(row, column, row.values[place], deviation, gain, measured, reason))
    return lines, findings


def _published_gain(study: Study, row: Row, index: int) -> float | None:
    """Return the published gain over the baseline of the row, or of the column if the row has none."""
    column = study.columns[index]
    if column not in study.trained_columns and column.metric != "average":
        return None
    if row.against:
        other = next(other for other in study.rows if other.name == row.against).values[index]
    elif column.against:
        other = row.values[[other.name for other in study.columns].index(column.against)]
    else:
        return None
    value = row.values[index]
    return value - other if isinstance(value, float) and isinstance(other, float) else None


def _measured_number(study: Study, row: Row, column: Column, evidence: Evidence) -> tuple[Measurement | None, str]:
    """Return the measured number of a row and column, or the reason why there is none."""
    if column.metric in COUNTED:
        value = counted_value(study, row, column)
        return (None, "not built here") if value is None else (Measurement(value), "")
    if column.study:
        number = evidence.elsewhere.get(column.study, {}).get((row.name, column.name))
        return number, "" if number is not None else "quoted"
    if column.metric in TIMED:
        if evidence.timed is None:
            return None, "not timed"
        spread, reason = timed_value(study, row, column, evidence.timed)
        if spread is None:
            return None, reason
        # The reference row's own number is exact.
        low, high = (None, None) if spread.low == spread.high else (spread.low, spread.high)
        return Measurement(spread.median, low=low, high=high), reason
    if column.metric in DERIVED and row in study.trained_rows:
        return _derived_number(study, row, column, evidence)
    if column not in study.trained_columns or row not in study.trained_rows:
        return None, "quoted"
    return _measure_runs(study, row, column, evidence)


def _measure_runs(study: Study, row: Row, column: Column, evidence: Evidence) -> tuple[Measurement | None, str]:
    run = evidence.run_of(row, column)
    if run is None:
        return None, NOT_RUN
    place, against = (run.data, run.name), (run.data, run.against)
    if study.kind == "train":
        if (arm := evidence.trained.get(place)) is not None and arm.outcomes:
            return measure_arm(column, arm, evidence.trained.get(against)), ""
    elif scored := evidence.scored.get(place, ()):
        return measure_scores(column, scored, evidence.scored.get(against, ()))
    if place in evidence.failed:
        return None, "failed"
    requested = [run for run in evidence.requested if run.row == row]
    if any(column in run.columns for run in requested):
        return None, "not done"
    return None, "left out by --columns" if requested else "left out by --rows"


def _derived_number(study: Study, row: Row, column: Column, evidence: Evidence) -> tuple[Measurement | None, str]:
    """Return a number derived from a row's scores on all data sets, if all of them are measured."""
    sets = [_scores_by_seed(row, other, evidence) for other in study.trained_columns]
    if None in sets:
        return None, NOT_RUN
    row_scores = [scores or {} for scores in sets]
    base_scores = [
        _scores_by_seed(other, trained_column, evidence) or {}
        for other in study.rows
        if other.name == row.against
        for trained_column in study.trained_columns
    ]
    if column.metric == "average":
        values, base = average(row_scores), average(base_scores) if base_scores else {}
    elif base_scores:
        values, base = wins(row_scores, base_scores), {}
    else:
        return None, "no baseline"
    return (mean_over_seeds(values, base), "") if values else (None, "needs all data sets")


def _scores_by_seed(row: Row, column: Column, evidence: Evidence) -> dict[int, float] | None:
    """Return a row's scores in a column by seed; None if no run of the scale gives any."""
    run = evidence.run_of(row, column)
    if run is None:
        return None
    scored = evidence.scored.get((run.data, run.name), ())
    return {scores["seed"]: score["trained"] for scores in scored if (score := score_of(column, scores)) is not None}
