import io
import math

import pytest

from evaluation.courses import CHANCE, UNIFORM, D, K, course
from paucal.evaluation.collapse import find_collapse
from paucal.evaluation.curves import health_figure

pytestmark = pytest.mark.usefixtures("drawn_pictures")


def drawn(rows, verdict=None):
    figure = health_figure(rows, K, D, verdict)
    figure.savefig(io.BytesIO(), format="png", dpi=40)  # warnings (errors here) appear only then
    return figure, {axes.get_title(): axes for axes in figure.axes}


def test_health_figure__draws_each_kind_of_number_with_the_level_that_means_nothing():
    rows = course(6, agreement=lambda e: 0.1 * e, val_knn=lambda e: 0.3 + 0.05 * e)
    _, panels = drawn(rows)
    assert list(panels) == [
        "entropy of the outputs",
        "spread of the features",
        f"effective rank of {D} channels",
        "centre",
        "teacher and student agree",
        "nearest neighbours",
    ]
    entropy = panels["entropy of the outputs"]
    lines = {line.get_label(): line for line in entropy.lines}
    assert list(lines["teacher"].get_ydata()) == [row["teacher_entropy"] for row in rows]
    assert list(lines["batch"].get_ydata()) == [row["batch_entropy"] for row in rows]
    assert list(lines[f"uniform: ln 4096 = {CHANCE:.2f}"].get_ydata()) == [CHANCE, CHANCE]
    assert list(panels["nearest neighbours"].lines[0].get_xdata()) == [1, 2, 3, 4, 5, 6]
    assert panels["spread of the features"].get_ylim()[0] == 0


def test_health_figure__regions_are_dashed_and_gaps_left_out():
    rows = [
        {**row, "region_centre_norm": 2.0 * row["epoch"], "val_knn": 0.5 if row["epoch"] == 3 else math.nan}
        for row in course(4)
    ]
    _, panels = drawn(rows)
    assert [line.get_linestyle() for line in panels["centre"].lines] == ["-", "--"]
    assert list(panels["centre"].lines[1].get_ydata()) == [2.0, 4.0, 6.0, 8.0]
    assert list(panels["nearest neighbours"].lines[0].get_xdata()) == [3]
    assert "teacher and student agree" not in panels


def test_health_figure__the_title_is_the_verdict():
    sick = course(8, **UNIFORM)
    figure, _ = drawn(sick, find_collapse(sick, K, D, batch=64))
    assert figure._suptitle.get_text().replace("\n", " ").startswith("uniform output: the teacher's view head")
    assert drawn(course(1))[0]._suptitle.get_text() == "no sign of collapse"


def test_health_figure__refuses_rows_without_numbers():
    with pytest.raises(ValueError, match="got 1 rows without"):
        health_figure([{"epoch": 1.0, "train_loss": 2.0}], K, D, None)
