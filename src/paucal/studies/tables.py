"""The tables of a study: on the terminal, as CSV and on the page."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from paucal.runs import write_text
from paucal.studies.numbers import Measured
from paucal.studies.outcome import ELSEWHERE, Line
from paucal.studies.study import Column, Study
from paucal.studies.words import published
from paucal.verbs.compare.outcome.words import span

DIGITS = {
    "params": 2,
    "gmacs": 2,
    "gmacs_all": 2,
    "seconds_per_step": 4,
    "correspondence": 3,
    "correspondence_distance": 2,
    "throughput": 2,
    "average": 2,
    "wins": 0,
}
RESULTS = "results.csv"


def shown_rows(study: Study, lines: Sequence[Line], heading: str = "measured") -> list[dict[str, str]]:
    """Return a row for each number: published, measured, and the gains of both.

    Numbers that were not published and cannot be run at the scale are left out.

    Args:
        study: Study of the numbers.
        lines: Numbers.
        heading: Heading of the measured numbers.
    """
    rows = []
    for line in [line for line in lines if line.published is not None or line.why != ELSEWHERE]:
        row = {"row": line.row.name, "column": line.column.name}
        row["published"] = published(line.published, line.deviation)
        row[heading] = f"({line.why})" if line.measured is None else _measured(line.measured, line.column)
        row["gain published"] = "-" if line.gain is None else f"{line.gain:+.2f}"
        row["gain measured"] = "-" if line.measured is None else _gain(line.measured, line.column)
        row["random weights"] = "-" if line.measured is None else number(line.measured.random, line.column)
        rows.append(row)
    empty = [name for name in ("gain published", "gain measured", "random weights") if _idle(rows, name)]
    return [{name: text for name, text in row.items() if name not in empty} for row in rows]


def terminal_table(study: Study, rows: Sequence[dict[str, str]]) -> Table:
    """Return the rows as a table, without repeated row names."""
    title = f"{study.title} ({study.paper}, {study.where})"
    table = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0))
    for place, heading in enumerate(rows[0]):
        table.add_column(heading, justify="left" if place < 2 else "right")
    before = ""
    for row in rows:
        first, *others = row.values()
        table.add_row("" if first == before else first, *others)
        before = first
    return table


def write_results(folder: Path, lines: Sequence[Line]) -> None:
    """Write `results.csv`, with a line for each number."""
    text = io.StringIO()
    rows = [_numbers(line) for line in lines]
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(folder / RESULTS, text.getvalue())


def number(value: float | None, column: Column) -> str:
    """Return a measured value, rounded by its metric."""
    return "-" if value is None else f"{value:.{DIGITS.get(column.metric, 1)}f}"


def _measured(one: Measured, column: Column) -> str:
    text = number(one.value, column)
    if one.low is not None:
        return f"{text} ({number(one.low, column)} to {number(one.high, column)})"
    return text if one.deviation is None else f"{text} ± {number(one.deviation, column)}"


def _gain(one: Measured, column: Column) -> str:
    if one.gain is None:
        return "-"
    text = f"{one.gain:+.{DIGITS.get(column.metric, 1)}f}"
    if one.difference is None or one.difference.both.low is None:
        return text
    return f"{text} ({span(one.difference.both)})"


def _idle(rows: Sequence[dict[str, str]], name: str) -> bool:
    return all(row[name] == "-" for row in rows)


def _numbers(line: Line) -> dict[str, Any]:
    one = line.measured
    both = None if one is None or one.difference is None else one.difference.both
    return {
        "row": line.row.name,
        "column": line.column.name,
        "metric": line.column.metric,
        "published": line.published,
        "published_sd": line.deviation,
        "published_gain": line.gain,
        "measured": None if one is None else one.value,
        "measured_sd": None if one is None else one.deviation,
        "measured_low": None if one is None else one.low,
        "measured_high": None if one is None else one.high,
        "seeds": None if one is None else one.seeds,
        "measured_gain": None if one is None else one.gain,
        "gain_low": None if both is None or both.low is None else 100 * both.low,
        "gain_high": None if both is None or both.high is None else 100 * both.high,
        "random": None if one is None else one.random,
        "why": line.why,
    }
