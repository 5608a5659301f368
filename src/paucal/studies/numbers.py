"""The published and measured numbers of a study, row by row.

A measured number comes from runs, from other columns of the table, from other studies, or from a count or a time.
"""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from paucal.evaluation.comparison import Difference
from paucal.reading import read_text
from paucal.studies.counting import counted_value
from paucal.studies.plan import PlannedRun
from paucal.studies.study import COUNTED_METRICS, DERIVED_METRICS, TIMED_METRICS, Column, Row, Study, Value
from paucal.studies.timing import ModelSpeeds, timed_value
from paucal.types import UserError
from paucal.verbs.compare.findings import ArmOutcome, GridResults, Outcome, read_grid_results, scores_of
from paucal.verbs.compare.grid import Grid, cells_of, state_of

RESULTS_FILE = "results.csv"
MAX_BYTES = 1 << 22  # largest size of a `results.csv` that is read
UNSCALED_METRICS = ("correspondence", "correspondence_distance")  # all other scores are in percent
WIN_DECIMALS = 1  # before wins are counted, percentages are rounded to this number of decimals, as in printed tables
ScoresBySeed = Mapping[int, float]  # scores by seed
Numbers = Mapping[tuple[str, str], "Measurement"]  # measurements by (row name, column name)
NOT_RUN = "not run at this scale"  # reason for a missing measurement


@dataclass(frozen=True)
class Measurement:
    """A measured number."""

    value: float  # mean over seeds, in the unit of the column
    deviation: float | None = None  # standard deviation over seeds; None if there is only one seed
    seeds: int = 0  # number of seeds, with one run each; 0 if the number is a count or a time
    gain: float | None = None  # gain over the row's baseline, in the unit of the column; None if there is no baseline
    difference: Difference | None = None  # the gain as a fraction; None if predictions on test images are not stored
    random: float | None = None  # score of random weights; None if the study does not evaluate frozen features
    # Ends of the interval over test images if there is a single run, or quartiles of times; otherwise None.
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class TableNumber:
    """One number of a study's table: the published value and the value measured here."""

    row: Row
    column: Column
    published: Value
    deviation: float | None  # published standard deviation; None if it is not published
    gain: float | None  # published gain over the baseline of the row or the column; None if it is unknown
    measured: Measurement | None
    why: str = ""  # reason why nothing was measured; "" if there is a measured value


@dataclass(frozen=True)
class RunResults:
    """The stored results of a study's runs, by (data set name, run name)."""

    requested: Sequence[PlannedRun]
    all_runs: Sequence[PlannedRun]  # all runs of the scale, whether requested or not
    trained: Mapping[tuple[str, str], ArmOutcome]  # runs that are trained with labels
    scored: Mapping[tuple[str, str], Sequence[Mapping[str, Any]]]  # scores of all other runs for each seed
    failed: frozenset[tuple[str, str]]  # runs that failed with every seed
    timed: ModelSpeeds | None
    other_studies: Mapping[str, Numbers]  # full-scale numbers of other studies, by study name

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
    """Return (the measured number in a row and a column, ""), or (None, the reason why there is no number)."""
    if column.metric in COUNTED_METRICS:
        value = counted_value(study, row, column)
        return (None, "not built here") if value is None else (Measurement(value), "")
    if column.study:
        number = run_results.other_studies.get(column.study, {}).get((row.name, column.name))
        return number, "quoted" if number is None else ""
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
    """Return (a row's mean score or number of wins over all data sets, ""), or (None, why it is missing)."""
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


def mean_over_seeds(values: ScoresBySeed, base: ScoresBySeed | None = None) -> Measurement:
    """Return the mean and standard deviation over seeds, and the mean gain over a baseline for the seeds of both."""
    numbers = list(values.values())
    gains = [values[seed] - base[seed] for seed in values if seed in base] if base else []
    deviation = float(np.std(numbers, ddof=1)) if len(numbers) > 1 else None
    return Measurement(float(np.mean(numbers)), deviation, len(numbers), float(np.mean(gains)) if gains else None)


def measure_arm(column: Column, arm: ArmOutcome, baseline: ArmOutcome | None) -> Measurement:
    """Return the measurement of one column for an arm that was trained with labels, with the gain over `baseline`."""
    if column.metric == "top1":
        measured = mean_over_seeds({seed: 100 * outcome.scores["top1"] for seed, outcome in arm.outcomes.items()})
        return measured if arm.gain is None else replace(measured, gain=100 * arm.gain.value, difference=arm.gain)

    def read(outcome: Outcome) -> float:
        rows = outcome.rows
        if column.metric == "seconds_per_step":
            return rows[-1]["seconds"] / rows[-1]["step"]
        return 100 * rows[max(1, round(column.at * len(rows))) - 1]["val_top1"]

    values = {seed: read(outcome) for seed, outcome in arm.outcomes.items()}
    base = {seed: read(outcome) for seed, outcome in baseline.outcomes.items()} if baseline else {}
    return mean_over_seeds(values, base)


def measure_scores(
    column: Column, runs: Sequence[Mapping[str, Any]], baseline: Sequence[Mapping[str, Any]]
) -> tuple[Measurement | None, str]:
    """Return the measurement of a row and "", or None and the reason why the row was not measured.

    `runs` and `baseline` are the stored scores of the row and of its baseline, one entry per seed.
    """
    scores, base = (
        {run["seed"]: score for run in part if (score := score_of(column, run)) is not None}
        for part in (runs, baseline)
    )
    if not scores:
        return None, "no outlines" if column.metric.startswith("mask_") else "not measured"
    trained, base_trained = ({seed: score["trained"] for seed, score in part.items()} for part in (scores, base))
    random = [score["random"] for score in scores.values() if "random" in score]
    first = next(iter(scores.values()))
    ends = {"low": first["low"], "high": first["high"]} if len(scores) == 1 and "low" in first else {}
    measured = mean_over_seeds(trained, base_trained)
    return replace(measured, random=float(np.mean(random)) if random else None, **ends), ""


def score_of(column: Column, run: Mapping[str, Any]) -> dict[str, float] | None:
    """Return a run's score, and "random", "low" and "high" if stored, in a column's unit; None if it has no score."""
    if column.metric == "knn_curve":
        curve = [row["val_knn"] for row in run["rows"] if np.isfinite(row.get("val_knn", np.nan))]
        return {"trained": 100 * curve[max(1, round(column.at * len(curve))) - 1]} if curve else None
    if column.metric not in run:
        return None
    unit = 1.0 if column.metric in UNSCALED_METRICS else 100.0
    return {name: unit * value for name, value in run[column.metric].items()}


def mean_over_data_sets(data_sets: Sequence[ScoresBySeed]) -> dict[int, float]:
    """Return the mean score over data sets for each seed that has a score on all data sets.

    Example:
        >>> mean_over_data_sets([{0: 80.0, 1: 70.0}, {0: 60.0}])
        {0: 70.0}
    """
    seeds = [seed for seed in data_sets[0] if all(seed in scores for scores in data_sets)]
    return {seed: sum(scores[seed] for scores in data_sets) / len(data_sets) for seed in seeds}


def count_wins(data_sets: Sequence[ScoresBySeed], baseline: Sequence[ScoresBySeed]) -> dict[int, float]:
    """Return for each seed the number of data sets on which a row's score in percent is above the baseline's score.

    Scores are rounded to one decimal before they are compared.

    Example:
        >>> count_wins([{0: 80.0}, {0: 60.04}], [{0: 79.0}, {0: 60.0}])
        {0: 1}
    """
    seeds = [seed for seed in data_sets[0] if all(seed in scores for scores in (*data_sets, *baseline))]
    pairs = list(zip(data_sets, baseline, strict=True))
    return {
        seed: sum(round(scores[seed], WIN_DECIMALS) > round(base[seed], WIN_DECIMALS) for scores, base in pairs)
        for seed in seeds
    }


def measured_in_other_studies(study: Study, folder: Path) -> dict[str, Numbers]:
    """Return the full-scale results of the other studies to which the columns of a study refer, by study name."""
    names = dict.fromkeys(column.study for column in study.columns if column.study)
    return {name: _read_numbers(full_folder(name, folder) / RESULTS_FILE) for name in names}


def full_folder(name: str, folder: Path) -> Path:
    """Return the default folder of the study `name` at full scale, in the same parent folder as `folder`."""
    return folder.parent / f"study-{name}-full"


def _read_numbers(path: Path) -> Numbers:
    if not path.is_file():
        return {}
    numbers = {}
    try:
        for line in csv.DictReader(read_text(path, MAX_BYTES).splitlines()):
            if line["measured"]:
                texts = [line[name] for name in ("measured_low", "measured_high", "measured_sd")]
                low, high, deviation = (float(text) if text else None for text in texts)
                value, seeds = float(line["measured"]), int(line["seeds"])
                numbers[line["row"], line["column"]] = Measurement(value, deviation, seeds, low=low, high=high)
    except (OSError, ValueError, KeyError, TypeError) as problem:
        text = f"{str(path)!r} is not a table of study results ({problem})"
        raise UserError(f"{text}: move the file to another folder.") from problem
    return numbers
