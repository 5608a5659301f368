"""The results of a study as tables: on the terminal, in `results.csv` and on the page `study.html`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from paucal.studies.numbers import RESULTS_FILE, Measurement
from paucal.studies.outcome import NOT_RUN, TableNumber
from paucal.studies.study import Study
from paucal.studies.words import format_published
from paucal.verbs.compare.report import format_interval
from paucal.writing import csv_text, write_text

DECIMALS = {  # number of decimals in tables, by metric; other metrics have 1 decimal
    **dict.fromkeys(("params", "gmacs", "gmacs_all", "correspondence_distance", "throughput", "average"), 2),
    **{"wins": 0, "correspondence": 3, "seconds_per_step": 4},
}


def shown_rows(lines: Sequence[TableNumber], heading: str = "measured") -> list[dict[str, str]]:
    """Return the rows of the table on the page, one for each number; each row maps column headings to texts.

    `heading` is the heading of the measured numbers. Columns without values are omitted. Rows without a published
    number are omitted if they are not run at the scale.
    """
    rows = []
    for line in lines:
        if line.published is None and line.why == NOT_RUN:
            continue
        measured, digits = line.measured, DECIMALS.get(line.column.metric, 1)
        row = {"row": line.row.name, "column": line.column.name}
        row["published"] = format_published(line.published, line.deviation)
        row[heading] = f"({line.why})" if measured is None else _describe_measured(measured, digits)
        row["gain published"] = "-" if line.gain is None else f"{line.gain:+.2f}"
        row["gain measured"] = "-" if measured is None else _describe_gain(measured, digits)
        row["random weights"] = "-" if measured is None or measured.random is None else f"{measured.random:.{digits}f}"
        rows.append(row)
    optional = ("gain published", "gain measured", "random weights")
    empty = [name for name in optional if all(row[name] == "-" for row in rows)]
    return [{name: text for name, text in row.items() if name not in empty} for row in rows]


def _describe_measured(measured: Measurement, digits: int) -> str:
    text = f"{measured.value:.{digits}f}"
    if measured.low is not None and measured.high is not None:
        return f"{text} ({measured.low:.{digits}f} to {measured.high:.{digits}f})"
    return text if measured.deviation is None else f"{text} ± {measured.deviation:.{digits}f}"


def _describe_gain(measured: Measurement, digits: int) -> str:
    if measured.gain is None:
        return "-"
    text = f"{measured.gain:+.{digits}f}"
    if measured.difference is None or measured.difference.both.low is None:
        return text
    return f"{text} ({format_interval(measured.difference.both)})"


def terminal_table(study: Study, rows: Sequence[Mapping[str, str]]) -> Table:
    """Return the rows of `shown_rows` as a table for the terminal; repeated row names are left blank."""
    title = f"{study.title} ({study.paper}, {study.where})"
    table = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0))
    for index, heading in enumerate(rows[0]):
        table.add_column(heading, justify="left" if index < 2 else "right")
    previous = ""
    for row in rows:
        first, *other_cells = row.values()
        table.add_row("" if first == previous else first, *other_cells)
        previous = first
    return table


def write_results(folder: Path, lines: Sequence[TableNumber]) -> None:
    """Write `results.csv`, with one row for each number."""
    rows = [_line_numbers(line) for line in lines]
    write_text(folder / RESULTS_FILE, csv_text(rows[0], *(row.values() for row in rows)))


def _line_numbers(line: TableNumber) -> dict[str, Any]:
    measured = line.measured
    interval = None if measured is None or measured.difference is None else measured.difference.both
    names = {"measured": "value", "measured_sd": "deviation", "measured_low": "low", "measured_high": "high"}
    names |= {"seeds": "seeds", "measured_gain": "gain"}
    return {
        "row": line.row.name,
        "column": line.column.name,
        "metric": line.column.metric,
        "published": line.published,
        "published_sd": line.deviation,
        "published_gain": line.gain,
        **{column: getattr(measured, name, None) for column, name in names.items()},
        "gain_low": None if interval is None or interval.low is None else 100 * interval.low,
        "gain_high": None if interval is None or interval.high is None else 100 * interval.high,
        "random": getattr(measured, "random", None),
        "why": line.why,
    }
