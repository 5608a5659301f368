"""The one table: printed, and stored as CSV and JSON."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from paucal.evaluation.protocols.comparison import Row, averages, tally
from paucal.evaluation.protocols.judge import PROTOCOLS
from paucal.metrics.intervals import Score
from paucal.runs import csv_text, write_text
from paucal.wording import percent

COLUMNS = (
    *("data", "protocol", "setting", "score", "unit", "images", "model", "value", "low", "high", "note"),
    *("gain_of_first", "gain_low", "gain_high", "verdict"),
)
CSV_NAME, JSON_NAME = "table.csv", "results.json"
FOLDER = "frozen-features"  # in the evaluations of a run


def shown(score: Score, unit: str, sign: bool = False) -> str:
    """Return a score with its interval as text.

    Example:
        >>> shown(Score(0.912, 0.9, 0.925), "%"), shown(Score(-2.5, -3.0, 1.0), "px", sign=True)
        ('91.2 [90.0, 92.5]', '-2.50 [-3.00, +1.00]')
    """
    factor, digits = (100, 1) if unit == "%" else (1, 2)
    form = f"{{:{'+' if sign else ''}.{digits}f}}"
    text = form.format(factor * score.value)
    if score.low is None or score.high is None:
        return text
    return f"{text} [{form.format(factor * score.low)}, {form.format(factor * score.high)}]"


def protocol_table(rows: Sequence[Row], level: float) -> Table:
    """Return the printed lines as a table: a column per model, and the first model's gain over each of the others."""
    sets = list(dict.fromkeys(row.data for row in rows))
    several = len(sets) > 1  # narrow terminals need the room that a column with one and the same name would take
    what = "" if several else f" of {escape(''.join(sets))}"
    table = Table(title=f"frozen features{what}; in brackets {percent(level, 'g')} intervals", title_justify="left")
    names = list(rows[0].scores) if rows else []
    texts = (*(["data"] if several else []), "protocol", "score")
    for heading in (*texts, *names, *(f"gain over {name}" for name in names[1:])):
        table.add_column(escape(heading), justify="left" if heading in texts else "right", overflow="fold")
    for row in rows:
        if not row.line.headline:
            continue
        unit = row.line.unit
        table.add_row(
            *([escape(row.data)] if several else []),
            f"{row.line.protocol} {row.line.setting}".strip(),
            f"{row.line.score}, {unit}",
            *(shown(row.scores[name], unit) if name in row.scores else "-" for name in names),
            *(shown(row.gains[name], unit, sign=True) if name in row.gains else "-" for name in names[1:]),
        )
    return table


def remarks(rows: Sequence[Row]) -> list[str]:
    """Return sentences on averages, wins, ties and losses, and on what was chosen for each model."""
    lines = []
    sets = len({row.data for row in rows})
    for protocol in PROTOCOLS if sets > 1 else ():
        means = averages(rows, protocol)
        if means and protocol != "correspondence":
            text = ", ".join(f"{name} {100 * value:.1f}" for name, value in means.items())
            lines.append(f"{protocol}, mean of {sets} data sets: {text}")
    names = list(rows[0].scores) if rows else []
    for other in names[1:]:
        lines.append(f"{names[0]} against {other}: {_verdicts(tally(rows, other))}")
    return lines + _notes(rows)


def _verdicts(counts: Mapping[str, int]) -> str:
    """Return how often the first model wins, and in how much of that the interval of the difference agrees.

    Example:
        >>> _verdicts({"win": 3, "tie": 1, "loss": 1, "clear_wins": 2, "clear_losses": 0})
        '3 wins, 1 tie, 1 loss; the interval of the difference leaves out 0 in 2 of 3 wins and in 0 of 1 loss'
    """
    wins, losses = _counted(counts["win"], "win", "wins"), _counted(counts["loss"], "loss", "losses")
    text = f"{wins}, {_counted(counts['tie'], 'tie', 'ties')}, {losses}"
    parts = [
        f"in {counts[clear]} of {words}"
        for name, clear, words in (("win", "clear_wins", wins), ("loss", "clear_losses", losses))
        if counts[name]
    ]
    return f"{text}; the interval of the difference leaves out 0 {' and '.join(parts)}" if parts else text


def _counted(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"


def _notes(rows: Sequence[Row]) -> list[str]:
    """Return what was chosen for each model, once for all scores and models of a protocol that have it in common."""
    about: dict[tuple[str, str, str], list[str]] = {}
    for row in rows:
        if not row.line.headline or not any(row.notes.values()):
            continue
        texts = [f"{name}: {note}" for name, note in row.notes.items() if note]
        alike = len(set(row.notes.values())) == 1
        key = (row.data, row.line.protocol, next(iter(row.notes.values())) if alike else "; ".join(texts))
        about.setdefault(key, []).append(" ".join(word for word in (row.line.setting, row.line.score) if word))
    return [f"{', '.join((data, protocol, *lines))}: {text}" for (data, protocol, text), lines in about.items()]


def store_table(folder: Path, rows: Sequence[Row], about: Mapping[str, Any]) -> None:
    """Write `table.csv` and `results.json`, every line with full precision.

    Args:
        folder: made where it is missing.
        rows: all lines.
        about: models, data sets and settings, of JSON types.
    """
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / CSV_NAME, _as_csv(rows))
    names = list(rows[0].scores) if rows else []
    content = {
        **about,
        "tallies": {name: tally(rows, name) for name in names[1:]},
        "rows": [row.to_dict() for row in rows],
    }
    write_text(folder / JSON_NAME, json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def _as_csv(rows: Sequence[Row]) -> str:
    cells = []
    for row in rows:
        line = row.line
        for name, score in row.scores.items():
            gain = row.gains.get(name)
            about = (row.data, line.protocol, line.setting, line.score, line.unit, row.images, name)
            compared = ("",) * 4 if gain is None else (gain.value, gain.low, gain.high, row.verdict(name))
            cells.append((*about, score.value, score.low, score.high, row.notes.get(name, ""), *compared))
    return csv_text(COLUMNS, *cells)
