"""Shared by several benchmarks: a part of a set in Parquet files, a run's scores, and gains paired by seed."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

TRAIN, TEST = 5500, 2000


def make_subset(source: Path, folder: Path, train: int = TRAIN, test: int = TEST) -> Path:
    """Write stratified parts of the train and test files, the same at every call."""
    folder.mkdir(parents=True, exist_ok=True)
    for part, count in (("train", train), ("test", test)):
        target = folder / f"{part}.parquet"
        if target.exists():
            continue
        table = pq.read_table(source / f"{part}.parquet")
        labels = np.asarray(table["label"])
        order = np.random.default_rng(0).permutation(len(labels))
        each = count // len(np.unique(labels))
        rows = np.concatenate([order[labels[order] == label][:each] for label in np.unique(labels)])
        pq.write_table(table.take(np.sort(rows)), target)
    return folder


def outcome(output: Path) -> dict[str, Any]:
    """Return what a finished run has reached."""
    summary = json.loads((output / "summary.json").read_text())
    with (output / "metrics.csv").open() as file:
        curve = [float(row["val_top1"]) for row in csv.DictReader(file)]
    kept = ("best_val_top1", "test_top1", "best_epoch", "seconds", "parameters")
    return {name: summary[name] for name in kept} | {"val_top1": curve}


def compare(rows: list[dict[str, Any]], baseline: str = "supervised") -> list[dict[str, Any]]:
    """Return mean and standard deviation per arm, and the differences to the baseline paired by seed, in points."""
    lines = []
    for arm in dict.fromkeys(row["arm"] for row in rows):
        scores = {row["seed"]: 100 * row["test_top1"] for row in rows if row["arm"] == arm}
        base = {row["seed"]: 100 * row["test_top1"] for row in rows if row["arm"] == baseline}
        gains = [scores[seed] - base[seed] for seed in scores if seed in base]
        values = list(scores.values())
        lines.append(
            {"arm": arm, "seeds": len(values), "test_top1": _mean(values), "deviation": _deviation(values)}
            | ({"gain": _mean(gains), "gain_deviation": _deviation(gains)} if arm != baseline else {})
        )
    return lines


def _mean(values: list[float]) -> float:
    return round(float(np.mean(values)), 2)


def _deviation(values: list[float]) -> float:
    return round(float(np.std(values, ddof=1)), 2)
