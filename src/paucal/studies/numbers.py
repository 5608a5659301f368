"""A measured number of a study: mean, spread and gain over its runs, in the unit of its column."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from paucal.evaluation.comparison import Difference
from paucal.studies.study import Column
from paucal.verbs.compare.outcome.evidence import ArmOutcome, Outcome

PLAIN = ("correspondence", "correspondence_distance")  # metrics that are not in percent, as published


@dataclass(frozen=True)
class Measured:
    """A measured number.

    Attributes:
        value: Mean over seeds, in the unit of the column.
        deviation: Standard deviation over seeds; None for one seed.
        seeds: Number of runs; 0 for a count.
        gain: Gain over the row's baseline, in the unit of the column; None without a baseline.
        difference: Gain with its intervals, if predictions on test images are stored.
        random: Score of the same backbone with random weights, for frozen features.
        low: Lower end of the interval over test images of a single run; for times the lower quartile.
        high: Upper end of that interval.
    """

    value: float
    deviation: float | None = None
    seeds: int = 0
    gain: float | None = None
    difference: Difference | None = None
    random: float | None = None
    low: float | None = None
    high: float | None = None


def of_runs(column: Column, arm: ArmOutcome, other: ArmOutcome | None) -> Measured:
    """Return the number of a row that learned from labels; `other` is its baseline."""
    if column.metric == "top1":
        values = [100 * one.scores["top1"] for one in arm.outcomes.values()]
        gain = None if arm.gain is None else 100 * arm.gain.value
        return measured_of(values, gain, arm.gain)
    read = _seconds_per_step if column.metric == "seconds_per_step" else _curve_reader(column.at)
    values = {seed: read(one) for seed, one in arm.outcomes.items()}
    base = {} if other is None else {seed: read(one) for seed, one in other.outcomes.items()}
    pairs = [values[seed] - base[seed] for seed in values if seed in base]
    return measured_of(list(values.values()), float(np.mean(pairs)) if pairs else None)


def _curve_reader(share: float) -> Any:
    def read(one: Outcome) -> float:
        place = max(1, round(share * len(one.rows)))
        return 100 * one.rows[place - 1]["val_top1"]

    return read


def _seconds_per_step(one: Outcome) -> float:
    return one.rows[-1]["seconds"] / one.rows[-1]["step"]


def of_scores(
    column: Column, own: Sequence[Mapping[str, Any]], other: Sequence[Mapping[str, Any]]
) -> tuple[Measured | None, str]:
    """Return the number of a row whose scores are stored beside its runs, or why there is none."""
    found = {one["seed"]: score for one in own if (score := score_of(column, one)) is not None}
    if not found:
        return None, "no outlines" if column.metric.startswith("mask_") else "not measured"
    base = {one["seed"]: score["trained"] for one in other if (score := score_of(column, one)) is not None}
    pairs = [score["trained"] - base[seed] for seed, score in found.items() if seed in base]
    floor = [score["random"] for score in found.values() if "random" in score]
    made = measured_of([score["trained"] for score in found.values()], float(np.mean(pairs)) if pairs else None)
    random = float(np.mean(floor)) if floor else None
    first = next(iter(found.values()))
    ends = (first["low"], first["high"]) if len(found) == 1 and "low" in first else (None, None)
    return Measured(made.value, made.deviation, made.seeds, made.gain, None, random, *ends), ""


def score_of(column: Column, one: Mapping[str, Any]) -> dict[str, float] | None:
    """Return a run's score and the values beside it, in the unit of a column; None without a score."""
    if column.metric == "knn_curve":
        curve = [row["val_knn"] for row in one["rows"] if np.isfinite(row.get("val_knn", np.nan))]
        return {"trained": 100 * curve[max(1, round(column.at * len(curve))) - 1]} if curve else None
    if column.metric not in one:
        return None
    unit = 1.0 if column.metric in PLAIN else 100.0
    return {name: unit * value for name, value in one[column.metric].items()}


def measured_of(values: Sequence[float], gain: float | None, difference: Difference | None = None) -> Measured:
    """Return the mean over seeds with its standard deviation."""
    deviation = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return Measured(float(np.mean(values)), deviation, len(values), gain, difference)
