"""What `paucal explain --method auto` takes follows from the stored scores."""

import json
from pathlib import Path

import pytest

from paucal.explain.attribution.choice import BEST

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "explaining"


@pytest.mark.parametrize(("file", "family"), [("dhvt", "dhvt"), ("swin", "staged"), ("eff", "convolutional")])
def test_auto__takes_the_best_mean_rank(file: str, family: str) -> None:
    rows = [row for row in json.loads((RESULTS / f"{file}.json").read_text())["scores"] if row["method"] != "random"]

    def rank(row: dict, measure: str) -> float:
        values = [round(other[measure], 2) for other in rows]
        own = round(row[measure], 2)
        return sum(value > own for value in values) + (values.count(own) - 1) / 2

    ordered = sorted(rows, key=lambda row: rank(row, "faithfulness") + rank(row, "mass"))
    assert BEST[family][0] == ordered[0]["method"]
    assert all(row["images"] == 200 for row in rows)
