"""The published and measured numbers of a study, row by row."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from paucal.studies.counting import counted_value
from paucal.studies.numbers import (
    Measurement,
    Numbers,
    count_wins,
    mean_over_data_sets,
    mean_over_seeds,
    measure_arm,
    measure_scores,
    score_of,
)
from paucal.studies.plan import PlannedRun
from paucal.studies.study import COUNTED_METRICS, DERIVED_METRICS, TIMED_METRICS, Column, Row, Study, Value
from paucal.studies.timing import ModelSpeeds, timed_value
from paucal.verbs.compare.findings import ArmOutcome, GridResults, read_grid_results, scores_of
from paucal.verbs.compare.grid import Grid, cells_of, state_of

NOT_RUN = "not run at this scale"  # reason for a missing measurement


@dataclass(frozen=True)
class TableNumber:
    """One number of a study's table: the published value and the value measured here.

    Attributes:
        deviation: Published standard deviation; None if no standard deviation is published.
        gain: Published gain over the row's baseline; None if the row has no baseline.
        why: Reason why nothing was measured; "" if there is a measured value.
    """

    row: Row
    column: Column
    published: Value
    deviation: float | None
    gain: float | None
    measured: Measurement | None
    why: str = ""


@dataclass(frozen=True)
class RunResults:
    """The stored results of a study's runs.

    Attributes:
        all_runs: All runs of the scale, whether requested or not.
        trained: Results of runs that are trained with labels, by (data set name, run name).
        scored: Scores of all other runs for each seed, by (data set name, run name).
        failed: (data set name, run name) of each run that failed with every seed.
        other_studies: Full-scale numbers of other studies, by study name.
    """

    requested: Sequence[PlannedRun]
    all_runs: Sequence[PlannedRun]
    trained: Mapping[tuple[str, str], ArmOutcome]
    scored: Mapping[tuple[str, str], Sequence[Mapping[str, Any]]]
    failed: frozenset[tuple[str, str]]
    timed: ModelSpeeds | None = None
    other_studies: Mapping[str, Numbers] = field(default_factory=dict)

    def run_for_cell(self, row: Row, column: Column) -> PlannedRun | None:
        """Return the run that gives the number of a table cell; None if the study has no such run at this scale."""
        return next((run for run in self.all_runs if run.row == row and column in run.columns), None)


def collect_numbers(
    study: Study,
    runs: Sequence[PlannedRun],
    grids: Sequence[Grid],
    all_runs: Sequence[PlannedRun] = (),
    timed: ModelSpeeds | None = None,
    other_studies: Mapping[str, Numbers] | None = None,
) -> tuple[list[TableNumber], list[GridResults]]:
    """Return a line for every number of the table, and the results of the grids whose runs are trained with labels.

    `grids` include the grids of earlier calls. `all_runs` are all runs of the scale, by default the requested `runs`.
    `timed` has the speeds of the models, for columns of times. `other_studies` has the full-scale numbers of the
    studies that columns refer to.
    """
    findings = [read_grid_results(grid) for grid in grids if grid.verb == "train"]
    trained = {(result.grid.folder.name, arm.arm.way): arm for result in findings for arm in result.arms}
    scored: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    states: dict[tuple[str, str], set[str]] = {}
    for grid in grids:
        for cell in cells_of(grid):
            run_key, state = (grid.folder.name, cell.arm.way), state_of(cell).name
            states.setdefault(run_key, set()).add(state)
            if grid.verb != "train" and state == "done":
                rows = cell.run.read_rows() if grid.verb == "pretrain" else []
                scored.setdefault(run_key, []).append({"seed": cell.seed, "rows": rows, **scores_of(cell)})
    failed = frozenset(run_key for run_key, names in states.items() if names == {"failed"})
    run_results = RunResults(runs, all_runs or runs, trained, scored, failed, timed, other_studies or {})
    lines = []
    for row in study.rows:
        for index, column in enumerate(study.columns):
            deviation, gain = row.deviations[index] if row.deviations else None, _published_gain(study, row, index)
            measurement = _measured_number(study, row, column, run_results)
            lines.append(TableNumber(row, column, row.values[index], deviation, gain, *measurement))
    return lines, findings


def _published_gain(study: Study, row: Row, index: int) -> float | None:
    """Return the published gain over the row's baseline, or over the column's baseline if the row has no baseline."""
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


def _measured_number(study: Study, row: Row, column: Column, run_results: RunResults) -> tuple[Measurement | None, str]:
    """Return the measured number in a row and a column, and ""; or None and the reason why there is no number."""
    if column.metric in COUNTED_METRICS:
        value = counted_value(study, row, column)
        return (None, "not built here") if value is None else (Measurement(value), "")
    if column.study:
        number = run_results.other_studies.get(column.study, {}).get((row.name, column.name))
        return number, "" if number is not None else "quoted"
    if column.metric in TIMED_METRICS:
        if run_results.timed is None:
            return None, "not timed"
        spread, reason = timed_value(study, row, column, run_results.timed)
        if spread is None:
            return None, reason
        # The number of the reference row is its published number, so it has no quartiles.
        low, high = (None, None) if spread.low == spread.high else (spread.low, spread.high)
        return Measurement(spread.median, low=low, high=high), reason
    if column.metric in DERIVED_METRICS and row in study.trained_rows:
        return _derived_number(study, row, column, run_results)
    if column not in study.trained_columns or row not in study.trained_rows:
        return None, "quoted"
    return _measure_runs(study, row, column, run_results)


def _measure_runs(study: Study, row: Row, column: Column, run_results: RunResults) -> tuple[Measurement | None, str]:
    run = run_results.run_for_cell(row, column)
    if run is None:
        return None, NOT_RUN
    run_key, baseline_key = (run.data, run.name), (run.data, run.against)
    if study.kind == "train":
        if (arm := run_results.trained.get(run_key)) is not None and arm.outcomes:
            return measure_arm(column, arm, run_results.trained.get(baseline_key)), ""
    elif scored := run_results.scored.get(run_key, ()):
        return measure_scores(column, scored, run_results.scored.get(baseline_key, ()))
    if run_key in run_results.failed:
        return None, "failed"
    requested = [run for run in run_results.requested if run.row == row]
    if any(column in run.columns for run in requested):
        return None, "not done"
    return None, "left out by --columns" if requested else "left out by --rows"


def _derived_number(study: Study, row: Row, column: Column, run_results: RunResults) -> tuple[Measurement | None, str]:
    """Return a row's mean score or number of wins over all data sets, and ""; or None and the reason for None."""
    sets = [_scores_by_seed(row, other, run_results) for other in study.trained_columns]
    if None in sets:
        return None, NOT_RUN
    row_scores = [scores or {} for scores in sets]
    baselines = product((other for other in study.rows if other.name == row.against), study.trained_columns)
    base_scores = [_scores_by_seed(other, trained, run_results) or {} for other, trained in baselines]
    if column.metric == "average":
        values = mean_over_data_sets(row_scores)
        base = mean_over_data_sets(base_scores) if base_scores else {}
    elif base_scores:
        values, base = count_wins(row_scores, base_scores), {}
    else:
        return None, "no baseline"
    return (mean_over_seeds(values, base), "") if values else (None, "needs all data sets")


def _scores_by_seed(row: Row, column: Column, run_results: RunResults) -> dict[int, float] | None:
    """Return the scores of a row and a column by seed; None if no run at the scale measures these scores."""
    run = run_results.run_for_cell(row, column)
    if run is None:
        return None
    scored = run_results.scored.get((run.data, run.name), ())
    return {scores["seed"]: score["trained"] for scores in scored if (score := score_of(column, scores)) is not None}
