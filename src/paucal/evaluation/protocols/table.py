"""The table of frozen features: the scores of all models, printed, drawn, and stored as CSV and JSON."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from matplotlib.figure import Figure
from rich.markup import escape
from rich.table import Table

from paucal.evaluation.curves import COLOURS
from paucal.evaluation.plots import GREY, plot_label
from paucal.evaluation.protocols.evaluate import PROTOCOLS, TOP_5, Outcome, ScoreKey
from paucal.evaluation.results import stored_score
from paucal.metrics.intervals import Bootstrap, Score
from paucal.models.named import RANDOM_NAME
from paucal.types import UserError
from paucal.wording import counted, percent
from paucal.writing import csv_text, write_text

Verdict = Literal["win", "tie", "loss"]
COLUMNS = (
    *("data", "protocol", "setting", "score", "unit", "images", "model", "value", "low", "high", "note"),
    *("gain_of_first", "gain_low", "gain_high", "verdict"),
)
CSV_NAME, JSON_NAME = "table.csv", "results.json"
FOLDER = "frozen-features"  # name of the results folder in a run's evaluation folder
MAX_MODELS = 16  # largest number of models, since each model has a column in the table
# Number of decimals to which scores are rounded before they are compared: to a tenth of a percentage point, as in
# papers, or to a hundredth of a pixel.
_DECIMALS = {"%": 3, "px": 2}  # scores in % are stored as fractions
MARKERS = "osD^v"  # matplotlib markers; models beyond the number of colours use the same colours with the next marker


@dataclass(frozen=True)
class ProtocolRow:
    """A row of the table: one score of all models on one data set."""

    data: str  # name of the data set
    line: ScoreKey  # protocol, setting and name of the score
    images: int  # number of test images
    scores: Mapping[str, Score]  # score of each model, a fraction in [0, 1] or a distance in pixels
    notes: Mapping[str, str]  # note on each model's score
    gains: Mapping[str, Score]  # first model's score minus that of each other model on the same images, by name

    def verdict(self, other: str) -> Verdict:
        """Return whether the first model wins, ties or loses against another model; scores are rounded as printed."""
        first, *_ = self.scores.values()
        digits = _DECIMALS[self.line.unit]
        gain = round(first.value, digits) - round(self.scores[other].value, digits)
        if abs(gain) < 10**-digits / 2:
            return "tie"
        return "win" if (gain > 0) == (self.line.unit == "%") else "loss"

    def is_clear_against(self, other: str) -> bool:
        """Return whether the interval of the paired difference excludes 0."""
        return self.gains[other].excludes_zero

    def to_dict(self) -> dict[str, Any]:
        """Return the row as values that can be stored as JSON."""
        return {
            "data": self.data,
            **asdict(self.line),
            "images": self.images,
            "scores": {name: asdict(score) for name, score in self.scores.items()},
            "notes": dict(self.notes),
            "gains": {
                name: {**asdict(gain), "verdict": self.verdict(name), "clear": self.is_clear_against(name)}
                for name, gain in self.gains.items()
            },
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> "ProtocolRow":
        """Rebuild a row from the result of `to_dict`."""
        try:
            protocol, unit = content["protocol"], content["unit"]
            if protocol not in PROTOCOLS or unit not in _DECIMALS:
                raise ValueError(f"unknown protocol {protocol!r} or unit {unit!r}")
            setting, score, headline = str(content["setting"]), str(content["score"]), bool(content["headline"])
            return cls(
                str(content["data"]),
                ScoreKey(protocol, setting, score, unit, headline),
                int(content["images"]),
                {str(name): stored_score(score) for name, score in content["scores"].items()},
                {str(name): str(note) for name, note in content["notes"].items()},
                {str(name): stored_score(gain) for name, gain in content["gains"].items()},
            )
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as problem:
            raise UserError(
                f"a row of the stored table of frozen features is damaged ({problem!r}): evaluate again."
            ) from problem


def compare(data: str, outcomes: Mapping[str, Sequence[Outcome]], bootstrap: Bootstrap) -> list[ProtocolRow]:
    """Return the table rows of a data set, given the outcomes of each model."""
    first, *other_names = outcomes
    rows = []
    for first_outcome in outcomes[first]:
        line, count = first_outcome.line, first_outcome.n_images
        by_model = {name: outcome for name, group in outcomes.items() for outcome in group if outcome.line == line}
        if any(outcome.n_images != count for outcome in by_model.values()):
            numbers = ", ".join(f"{name}: {outcome.n_images}" for name, outcome in by_model.items())
            raise UserError(f"models can only be compared on the same test images, but their numbers are {numbers}.")
        scores = {name: bootstrap.interval(outcome.measure, count) for name, outcome in by_model.items()}
        notes = {name: outcome.note for name, outcome in by_model.items()}
        gains = {
            name: bootstrap.difference(first_outcome.measure, by_model[name].measure, count)
            for name in other_names
            if name in by_model
        }
        rows.append(ProtocolRow(data, line, count, scores, notes, gains))
    return rows


def tally(rows: Sequence[ProtocolRow], other: str) -> dict[str, int]:
    """Count the first model's wins, ties and losses against another model over the printed rows.

    Clear wins and clear losses, whose interval of the difference excludes 0, are also counted. A data set counts once
    for each protocol and setting, as in papers, so top-5 accuracy is not counted.
    """
    counted_rows = [row for row in rows if row.line.headline and row.line.score != TOP_5 and other in row.gains]
    verdicts = [(row.verdict(other), row.is_clear_against(other)) for row in counted_rows]
    counts = {name: [verdict for verdict, _ in verdicts].count(name) for name in ("win", "tie", "loss")}
    return {**counts, "clear_wins": verdicts.count(("win", True)), "clear_losses": verdicts.count(("loss", True))}


def averages(rows: Sequence[ProtocolRow], protocol: str) -> dict[str, float]:
    """Return each model's mean, over all data sets, of the first printed score of a protocol.

    The last row of EsViT's Table 10 shows such means.
    """
    first_rows: dict[str, ProtocolRow] = {}
    for row in rows:
        if row.line.protocol == protocol and row.line.headline:
            first_rows.setdefault(row.data, row)
    names = [name for row in list(first_rows.values())[:1] for name in row.scores]
    return {
        name: sum(row.scores[name].value for row in first_rows.values()) / len(first_rows)
        for name in names
        if all(name in row.scores for row in first_rows.values())
    }


SCORES_PICTURE, MATCHES_PICTURE = "frozen_features.png", "correspondence.png"


def format_score(score: Score, unit: str, sign: bool = False) -> str:
    """Return a score with its interval as text.

    Example:
        >>> format_score(Score(0.912, 0.9, 0.925), "%"), format_score(Score(-2.5, -3.0, 1.0), "px", sign=True)
        ('91.2 [90.0, 92.5]', '-2.50 [-3.00, +1.00]')
    """
    factor, digits = (100, 1) if unit == "%" else (1, 2)
    pattern = f"{{:{'+' if sign else ''}.{digits}f}}"
    text = pattern.format(factor * score.value)
    if score.low is None or score.high is None:
        return text
    return f"{text} [{pattern.format(factor * score.low)}, {pattern.format(factor * score.high)}]"


def protocol_table(rows: Sequence[ProtocolRow], level: float) -> Table:
    """Return the main rows as a table, with columns for all models and for the first model's gains over the others."""
    sets = list(dict.fromkeys(row.data for row in rows))
    has_several = len(sets) > 1  # the name of a single set is in the title instead of a column
    set_name = "" if has_several else f" of {escape(''.join(sets))}"
    table = Table(title=f"frozen features{set_name}; {percent(level, 'g')} intervals in brackets", title_justify="left")
    names = list(rows[0].scores) if rows else []
    texts = (*(["data"] if has_several else []), "protocol", "score")
    for heading in (*texts, *names, *(f"gain over {name}" for name in names[1:])):
        table.add_column(escape(heading), justify="left" if heading in texts else "right", overflow="fold")
    for row in rows:
        if not row.line.headline:
            continue
        unit = row.line.unit
        table.add_row(
            *([escape(row.data)] if has_several else []),
            f"{row.line.protocol} {row.line.setting}".strip(),
            f"{row.line.score}, {unit}",
            *(format_score(row.scores[name], unit) if name in row.scores else "-" for name in names),
            *(format_score(row.gains[name], unit, sign=True) if name in row.gains else "-" for name in names[1:]),
        )
    return table


def remarks(rows: Sequence[ProtocolRow]) -> list[str]:
    """Return sentences on averages, on wins, ties and losses, and on each model's selected hyperparameters."""
    lines = []
    sets = len({row.data for row in rows})
    for protocol in PROTOCOLS if sets > 1 else ():
        means = averages(rows, protocol)
        if means and protocol != "correspondence":
            text = ", ".join(f"{name} {100 * value:.1f}" for name, value in means.items())
            lines.append(f"{protocol}, mean of {sets} data sets: {text}")
    names = list(rows[0].scores) if rows else []
    for other in names[1:]:
        counts = tally(rows, other)
        wins, losses = counted(counts["win"], "win", "wins"), counted(counts["loss"], "loss", "losses")
        text = f"{names[0]} against {other}: {wins}, {counted(counts['tie'], 'tie', 'ties')}, {losses}"
        clear = [f"in {counts['clear_wins']} of {wins}"] if counts["win"] else []
        clear += [f"in {counts['clear_losses']} of {losses}"] if counts["loss"] else []
        if clear:
            text += f"; the interval of the difference excludes 0 {' and '.join(clear)}"
        lines.append(text)
    scores_by_note: dict[tuple[str, str, str], list[str]] = {}
    for row in rows:
        if row.line.headline and any(row.notes.values()):
            note = "; ".join(f"{name}: {note}" for name, note in row.notes.items() if note)
            if len(set(row.notes.values())) == 1:
                note = next(iter(row.notes.values()))
            score = " ".join(filter(None, (row.line.setting, row.line.score)))
            scores_by_note.setdefault((row.data, row.line.protocol, note), []).append(score)
    for (data, protocol, note), scores in scores_by_note.items():
        lines.append(f"{', '.join((data, protocol, *scores))}: {note}")
    return lines


def store_table(folder: Path, rows: Sequence[ProtocolRow], metadata: Mapping[str, Any]) -> None:
    """Write `table.csv` and `results.json`, with all rows at full precision."""
    folder.mkdir(parents=True, exist_ok=True)
    cells = []
    for row in rows:
        line = row.line
        for name, score in row.scores.items():
            gain = row.gains.get(name)
            first_cells = (row.data, line.protocol, line.setting, line.score, line.unit, row.images, name)
            compared = ("",) * 4 if gain is None else (gain.value, gain.low, gain.high, row.verdict(name))
            cells.append((*first_cells, score.value, score.low, score.high, row.notes.get(name, ""), *compared))
    write_text(folder / CSV_NAME, csv_text(COLUMNS, *cells))
    names = list(rows[0].scores) if rows else []
    tallies = {name: tally(rows, name) for name in names[1:]}
    content = {**metadata, "tallies": tallies, "rows": [row.to_dict() for row in rows]}
    write_text(folder / JSON_NAME, json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def shown_rows(rows: Sequence[ProtocolRow]) -> list[ProtocolRow]:
    """Return the rows that the figure shows, which are the first 60 printed rows whose unit is %."""
    return [row for row in rows if row.line.headline and row.line.unit == "%"][:60]


def protocols_figure(rows: Sequence[ProtocolRow], level: float) -> Figure:
    """Draw the scores of all models with intervals for each row, in percent, with the first model at the top."""
    names = list(rows[0].scores)
    row_height = max(0.42, 0.14 * len(names))  # inches per row
    figure = Figure(figsize=(5.4, 1.5 + row_height * max(len(rows), 2)), layout="constrained")
    axes = figure.subplots()
    has_several = len({row.data for row in rows}) > 1
    max_offset = 0.2 if len(names) < 4 else 0.34
    offsets = np.linspace(-max_offset, max_offset, len(names)) if len(names) > 1 else np.zeros(1)
    for number, (name, offset) in enumerate(zip(names, offsets, strict=True)):
        # Each model has its own combination of colour and marker; random weights are grey.
        marker = MARKERS[number // len(COLOURS)]
        colour = GREY if name == RANDOM_NAME else COLOURS[number % len(COLOURS)]
        model_scores = [(index, row.scores[name]) for index, row in enumerate(rows) if name in row.scores]
        x = np.array([index for index, _ in model_scores]) + offset
        values = np.array([100 * score.value for _, score in model_scores])
        error_bars = np.abs(100 * np.array([score.ends for _, score in model_scores]).reshape(-1, 2).T - values)
        label = plot_label(name, 34)
        axes.errorbar(values, x, xerr=error_bars, fmt=marker, color=colour, ms=4.5, lw=1.3, capsize=2, label=label)
    keys = [" ".join(filter(None, (row.line.protocol, row.line.setting, row.line.score))) for row in rows]
    titles = [f"{plot_label(row.data)}: {key}" if has_several else key for row, key in zip(rows, keys, strict=True)]
    axes.set_yticks(range(len(rows)), titles, fontsize=9)
    axes.set(xlim=(-2, 102), ylim=(len(rows) - 0.5, -0.5))
    axes.set_xlabel(f"% of the test images, {percent(level, 'g')} interval")
    axes.grid(axis="x", alpha=0.3)
    axes.hlines(np.arange(1, len(rows)) - 0.5, -2, 102, color=GREY, lw=0.3)
    figure.legend(loc="outside upper center", fontsize=9, frameon=False, ncols=min(len(names), 2))
    return figure
