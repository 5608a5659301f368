"""What `paucal explain --method auto` takes follows from the stored scores."""

import json
from pathlib import Path

import pytest

from paucal.explain.attribution.methods import BEST_METHODS

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "explaining"


FAMILIES = {
    "vit": "vit",
    "dhvt": "dhvt",
    "lvvit": "lvvit",
    "swin": "staged",
    "eff": "convolutional",
    "efficientnet": "convolutional",
}


@pytest.mark.parametrize(("file", "family"), list(FAMILIES.items()))
def test_auto__takes_the_best_mean_rank(file: str, family: str) -> None:
    stored = json.loads((RESULTS / f"{file}.json").read_text())
    rows = [row for row in stored["scores"] if row["method"] != "random"]

    def rank(row: dict, measure: str) -> float:
        values = [round(other[measure], 2) for other in rows]
        own = round(row[measure], 2)
        return sum(value > own for value in values) + (values.count(own) - 1) / 2

    def place(row: dict) -> tuple[float, float]:  # of equals the quicker
        return rank(row, "faithfulness") + rank(row, "mass"), stored["times_plain"][row["method"]]

    ordered = sorted(rows, key=place)
    assert BEST_METHODS[family][0] == ordered[0]["method"]
    assert all(row["images"] == 200 for row in rows)
    for row in rows:  # each of them had something pasted into it
        assert row["pointing"] * 200 == pytest.approx(round(row["pointing"] * 200), abs=1e-6)
