"""The table as it is printed and as it is stored."""

import csv
import json

import numpy as np
import pytest
from rich.console import Console

from paucal.evaluation.protocols.evaluate import Outcome, ScoreKey
from paucal.evaluation.protocols.table import (
    ProtocolRow,
    compare,
    protocol_table,
    protocols_figure,
    remarks,
    shown_rows,
    store_table,
)
from paucal.metrics.intervals import Bootstrap
from paucal.metrics.measures import Mean
from paucal.types import UserError

SHOWN = ScoreKey("logistic", "", "accuracy")
HIDDEN = ScoreKey("knn", "k = 10", "top-1", headline=False)
DISTANCE = ScoreKey("correspondence", "mirror", "distance error", "px")


def rows_of(name="toy"):
    better, worse = np.arange(40) % 10 < 8, np.arange(40) % 10 < 5

    def outcomes(hit, distance, note):
        return [
            Outcome(SHOWN, Mean(hit), 40, note),
            Outcome(HIDDEN, Mean(hit), 40),
            Outcome(DISTANCE, Mean(np.linspace(0, distance, 40)), 40),
        ]

    models = {"mine": outcomes(better, 4, "lambda 0.1"), "random weights": outcomes(worse, 20, "lambda 10")}
    return compare(name, models, Bootstrap(draws=200))


def test_table__prints_headlines_with_intervals_and_gains():
    console = Console(width=200)
    with console.capture() as captured:
        console.print(protocol_table(rows_of(), 0.95))
    text = captured.get()
    assert "80.0 [" in text
    assert "+30.0 [+" in text
    assert "2.00 [" in text
    assert "-8.00 [-" in text
    assert "k = 10" not in text
    assert "gain over random weights" in text


def test_table__names_the_data_in_a_column_only_where_there_are_several_and_cuts_nothing_off():
    console = Console(width=60)
    with console.capture() as captured:
        console.print(protocol_table(rows_of("clothing"), 0.95))
    assert "frozen features of clothing" in captured.get()
    assert "\N{HORIZONTAL ELLIPSIS}" not in captured.get()
    several = protocol_table([*rows_of("one"), *rows_of("two")], 0.95)
    assert [str(column.header) for column in several.columns][:2] == ["data", "protocol"]


def test_remarks__count_and_say_what_was_chosen():
    lines = remarks([*rows_of("one"), *rows_of("two")])
    assert "logistic, mean of 2 data sets: mine 80.0, random weights 50.0" in lines
    leaves = "the interval of the difference excludes 0"
    assert f"mine against random weights: 4 wins, 0 ties, 0 losses; {leaves} in 4 of 4 wins" in lines
    assert "one, logistic, accuracy: mine: lambda 0.1; random weights: lambda 10" in lines


def against(first, second):
    """The sentence on two models, from pairs of (hits, hits) of the first and the second over 40 images."""
    made = {
        name: [
            Outcome(ScoreKey("knn", f"k = {number}", "top-1"), Mean(np.arange(40) < hits), 40)
            for number, hits in enumerate(scores)
        ]
        for name, scores in (("a", first), ("b", second))
    }
    return remarks(compare("toy", made, Bootstrap(draws=200)))[0]


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        ((20, 20), (20, 20), "0 wins, 2 ties, 0 losses"),
        ((30, 20), (20, 20), "1 win, 1 tie, 0 losses; the interval of the difference excludes 0 in 1 of 1 win"),
        (
            (30, 21, 20),
            (20, 20, 21),
            "2 wins, 0 ties, 1 loss; the interval of the difference excludes 0 in 1 of 2 wins and in 0 of 1 loss",
        ),
        (
            (5, 19),
            (20, 20),
            "0 wins, 0 ties, 2 losses; the interval of the difference excludes 0 in 1 of 2 losses",
        ),
    ],
)
def test_remarks__claim_clear_wins_only_of_the_wins_there_are(first, second, said):
    assert against(first, second) == f"a against b: {said}"


def test_remarks__say_once_what_models_and_scores_have_in_common():
    lines = [ScoreKey("correspondence", change, "accuracy") for change in ("mirror", "crop")]
    outcomes = [Outcome(line, Mean(np.arange(40) % 2), 40, "3x3 cells") for line in lines]
    told = remarks(compare("toy", {"mine": outcomes, "random weights": outcomes}, Bootstrap(draws=20)))
    assert told[1:] == ["toy, correspondence, mirror accuracy, crop accuracy: 3x3 cells"]


def test_store__holds_every_line_with_full_precision(tmp_path):
    store_table(tmp_path / "new", rows_of(), {"level": 0.95})
    rows = list(csv.DictReader((tmp_path / "new" / "table.csv").read_text().splitlines()))
    assert len(rows) == 6
    assert rows[1]["model"] == "random weights"
    assert float(rows[1]["gain_of_first"]) == pytest.approx(0.3)
    assert rows[1]["verdict"] == "win"
    assert rows[0]["verdict"] == ""
    stored = json.loads((tmp_path / "new" / "results.json").read_text())
    assert stored["level"] == 0.95
    assert [row["headline"] for row in stored["rows"]] == [True, False, True]
    assert stored["tallies"]["random weights"]["win"] == 2
    assert stored["rows"][2]["gains"]["random weights"]["clear"] is True


def test_rows__come_back_from_what_was_stored():
    rows = rows_of()
    assert [ProtocolRow.from_dict(json.loads(json.dumps(row.to_dict()))) for row in rows] == rows


@pytest.mark.parametrize(
    "damage",
    [
        {"protocol": "guessing"},
        {"unit": "m"},
        {"images": "many"},
        {"scores": [1]},
        {"scores": {"mine": {"value": float("nan"), "low": None, "high": None}}},
        {"scores": {"mine": {"value": None, "low": None, "high": None}}},
        {"gains": {"mine": {"value": 0.1}}},
    ],
)
def test_rows__refuse_what_is_no_line(damage):
    with pytest.raises(UserError, match="evaluate again"):
        ProtocolRow.from_dict({**rows_of()[0].to_dict(), **damage})


def test_figure__has_a_dot_with_its_interval_for_every_printed_share():
    rows = [*rows_of("one"), *rows_of("two")]
    drawn = shown_rows(rows)
    assert [row.line for row in drawn] == [SHOWN, SHOWN]  # neither hidden lines nor distances
    axes = protocols_figure(drawn, 0.95).axes[0]
    dots = [line for line in axes.lines if line.get_marker() == "o"]
    assert [line.get_xdata().tolist() for line in dots] == [[80, 80], [50, 50]]
    reach = axes.containers[0].lines[2][0].get_segments()[0][:, 0]
    score = drawn[0].scores["mine"]
    np.testing.assert_allclose(reach, [100 * score.low, 100 * score.high])
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        "one: logistic accuracy",
        "two: logistic accuracy",
    ]


def test_figure__tells_any_number_of_models_apart_and_lets_the_random_one_step_back():
    names = ["mine", *(f"other{number}" for number in range(14)), "random weights"]
    made = {name: [Outcome(SHOWN, Mean(np.arange(40) < 2 * place), 40)] for place, name in enumerate(names)}
    axes = protocols_figure(compare("toy", made, Bootstrap(draws=20)), 0.95).axes[0]
    dots = [container.lines[0] for container in axes.containers]
    looks = {(dot.get_color(), dot.get_marker()) for dot in dots}
    assert len(looks) == len(dots) == 16
    assert {dot.get_color() for dot in dots[:-1]}.isdisjoint({dots[-1].get_color()})
    np.testing.assert_allclose([dot.get_xdata()[0] for dot in dots], 5.0 * np.arange(16), atol=1e-9)
    assert len({dot.get_ydata()[0] for dot in dots}) == 16


def test_store__has_the_gain_over_each_of_several_models(tmp_path):
    hits = {"mine": 30, "a": 20, "b": 36}
    made = {name: [Outcome(SHOWN, Mean(np.arange(40) < count), 40)] for name, count in hits.items()}
    rows = compare("toy", made, Bootstrap(draws=50))
    store_table(tmp_path, rows, {})
    stored = json.loads((tmp_path / "results.json").read_text())
    assert {name: tally["win"] for name, tally in stored["tallies"].items()} == {"a": 1, "b": 0}
    gains = {name: gain["value"] for name, gain in stored["rows"][0]["gains"].items()}
    assert gains == {"a": pytest.approx(0.25), "b": pytest.approx(-0.15)}
    lines = list(csv.DictReader((tmp_path / "table.csv").read_text().splitlines()))
    assert [(line["model"], line["verdict"]) for line in lines] == [("mine", ""), ("a", "win"), ("b", "loss")]
    headings = [str(column.header) for column in protocol_table(rows, 0.95).columns]
    assert headings[-5:] == ["mine", "a", "b", "gain over a", "gain over b"]
