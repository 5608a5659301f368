"""Measured numbers of a study, computed from runs, from other columns of the table, or from other studies."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from paucal.evaluation.comparison import Difference
from paucal.reading import read_text
from paucal.studies.study import Column, Study
from paucal.types import UserError
from paucal.verbs.compare.findings import ArmOutcome, Outcome

RESULTS_FILE = "results.csv"
MAX_BYTES = 1 << 22  # largest size of a `results.csv` that is read
UNSCALED_METRICS = ("correspondence", "correspondence_distance")  # all other scores are in percent
WIN_DECIMALS = 1  # before wins are counted, percentages are rounded to this number of decimals, as in printed tables
ScoresBySeed = Mapping[int, float]  # scores by seed
Numbers = Mapping[tuple[str, str], "Measurement"]  # measurements by (row name, column name)


@dataclass(frozen=True)
class Measurement:
    """A measured number.

    Attributes:
        value: Mean over seeds, in the unit of the column.
        deviation: Standard deviation over seeds; None if there is only one seed.
        seeds: Number of seeds, with one run each; 0 if the number is a count or a time.
        gain: Score minus the score of the row's baseline, in the unit of the column; None if the row has no baseline.
        difference: The gain as a fraction, with confidence intervals; None if predictions on test images are not
            stored.
        random: Score of the same backbone with random weights; None if the study does not evaluate frozen features.
        low: Lower end of the interval over test images if there is a single run, or the lower quartile of times;
            otherwise None.
        high: Upper end of the interval over test images or upper quartile of times, as for `low`.
    """

    value: float
    deviation: float | None = None
    seeds: int = 0
    gain: float | None = None
    difference: Difference | None = None
    random: float | None = None
    low: float | None = None
    high: float | None = None


def mean_over_seeds(values: ScoresBySeed, base: ScoresBySeed | None = None) -> Measurement:
    """Return the mean and standard deviation over seeds, and the mean gain over a baseline for the seeds of both."""
    numbers = list(values.values())
    gains = [values[seed] - base[seed] for seed in values if seed in base] if base else []
    deviation = float(np.std(numbers, ddof=1)) if len(numbers) > 1 else None
    return Measurement(float(np.mean(numbers)), deviation, len(numbers), float(np.mean(gains)) if gains else None)


def measure_arm(column: Column, arm: ArmOutcome, baseline: ArmOutcome | None) -> Measurement:
    """Return the measurement for a column and a row that is trained with labels, with the gain over the baseline."""
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
    """Return the measurement for a column and a row, given the stored scores of the row's and the baseline's runs.

    If there are no scores, the measurement is None, and the second value is the reason.
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
    """Return a run's score in the unit of a column; None if the run has no such score.

    The score is a dict with the key "trained" and, if stored, the keys "random", "low" and "high".
    """
    if column.metric == "knn_curve":
        curve = [row["val_knn"] for row in run["rows"] if np.isfinite(row.get("val_knn", np.nan))]
        return {"trained": 100 * curve[max(1, round(column.at * len(curve))) - 1]} if curve else None
    if column.metric not in run:
        return None
    unit = 1.0 if column.metric in UNSCALED_METRICS else 100.0
    return {name: unit * value for name, value in run[column.metric].items()}


def mean_over_data_sets(data_sets: Sequence[ScoresBySeed]) -> dict[int, float]:
    """Return the mean score over data sets for each seed that has a score on all data sets.

    `data_sets` contains the scores on each data set.

    Example:
        >>> mean_over_data_sets([{0: 80.0, 1: 70.0}, {0: 60.0}])
        {0: 70.0}
    """
    seeds = [seed for seed in data_sets[0] if all(seed in scores for scores in data_sets)]
    return {seed: sum(scores[seed] for scores in data_sets) / len(data_sets) for seed in seeds}


def count_wins(data_sets: Sequence[ScoresBySeed], baseline: Sequence[ScoresBySeed]) -> dict[int, float]:
    """Return for each seed the number of data sets on which a row's score is above the baseline's score.

    `data_sets` contains the row's scores in percent on each data set, and `baseline` contains the baseline's scores.
    Scores are rounded to one decimal before they are compared.

    Example:
        >>> count_wins([{0: 80.0}, {0: 60.04}], [{0: 79.0}, {0: 60.0}])
        {0: 1}
    """
    seeds = [seed for seed in data_sets[0] if all(seed in scores for scores in (*data_sets, *baseline))]
    pairs = list(zip(data_sets, baseline, strict=True))
    return {seed: sum(round(a[seed], WIN_DECIMALS) > round(b[seed], WIN_DECIMALS) for a, b in pairs) for seed in seeds}


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
