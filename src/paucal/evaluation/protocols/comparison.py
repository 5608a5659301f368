"""The lines of the table: every model's score, and the first model against each of the others."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from paucal.evaluation.protocols.judge import PROTOCOLS, TOP_5, Line, Outcome
from paucal.evaluation.results import stored_score
from paucal.metrics.bootstrap import Bootstrap
from paucal.metrics.intervals import Score
from paucal.types import UserError

Verdict = Literal["win", "tie", "loss"]
MOST_MODELS = 16  # columns of a table
_DIGITS = {"%": 3, "px": 2}  # a tenth of a point, as papers print; a hundredth of a pixel


@dataclass(frozen=True)
class Row:
    """One line.

    Attributes:
        data: name of the data set.
        line: protocol, setting and score.
        images: test images it is taken over.
        scores: per model; shares in [0, 1], distances in pixels.
        notes: per model.
        gains: per other model the first one's score minus that one's, on the same images.
    """

    data: str
    line: Line
    images: int
    scores: Mapping[str, Score]
    notes: Mapping[str, str]
    gains: Mapping[str, Score]

    def verdict(self, other: str) -> Verdict:
        """Return whether the first model wins against another, at the digits that are printed, as papers count."""
        first, *_ = self.scores.values()
        digits = _DIGITS[self.line.unit]
        gain = round(first.value, digits) - round(self.scores[other].value, digits)
        if abs(gain) < 10**-digits / 2:
            return "tie"
        return "win" if (gain > 0) == (self.line.unit == "%") else "loss"

    def clear(self, other: str) -> bool:
        """Return whether the interval of the paired difference leaves out 0."""
        return self.gains[other].excludes_zero

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values."""
        return {
            "data": self.data,
            **asdict(self.line),
            "images": self.images,
            "scores": {name: asdict(score) for name, score in self.scores.items()},
            "notes": dict(self.notes),
            "gains": {
                name: {**asdict(gain), "verdict": self.verdict(name), "clear": self.clear(name)}
                for name, gain in self.gains.items()
            },
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> "Row":
        """Return a row from what `to_dict` gave.

        Raises:
            UserError: the value is something else.
        """
        try:
            return cls(
                str(content["data"]),
                _line(content),
                int(content["images"]),
                {str(name): stored_score(score) for name, score in content["scores"].items()},
                {str(name): str(note) for name, note in content["notes"].items()},
                {str(name): stored_score(gain) for name, gain in content["gains"].items()},
            )
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as problem:
            raise UserError(f"expected a line of a table of frozen features ({problem!r}): judge again.") from problem


def _line(content: Mapping[str, Any]) -> Line:
    if content["protocol"] not in PROTOCOLS or content["unit"] not in _DIGITS:
        raise ValueError(f"unknown protocol {content['protocol']!r} or unit {content['unit']!r}")
    setting, score = str(content["setting"]), str(content["score"])
    return Line(content["protocol"], setting, score, content["unit"], bool(content["headline"]))


def compare(data: str, outcomes: Mapping[str, Sequence[Outcome]], bootstrap: Bootstrap) -> list[Row]:
    """Return the lines of a data set.

    Args:
        data: its name.
        outcomes: per model, the one that others are compared with first.
        bootstrap: how intervals are made; all models share the resampled sets.

    Raises:
        UserError: a model was judged on other images than the first.
    """
    first, *others = outcomes
    found = {name: {outcome.line: outcome for outcome in listed} for name, listed in outcomes.items()}
    rows = []
    for outcome in outcomes[first]:
        line, count = outcome.line, outcome.n_images
        here = {name: lines[line] for name, lines in found.items() if line in lines}
        if any(one.n_images != count for one in here.values()):
            numbers = ", ".join(f"{name}: {one.n_images}" for name, one in here.items())
            raise UserError(f"models are compared on the same test images only, and these were scored on {numbers}.")
        rows.append(
            Row(
                data,
                line,
                count,
                {name: bootstrap.interval(one.measure, count) for name, one in here.items()},
                {name: one.note for name, one in here.items()},
                {
                    name: bootstrap.difference(outcome.measure, here[name].measure, count)
                    for name in others
                    if name in here
                },
            )
        )
    return rows


def tally(rows: Sequence[Row], other: str) -> dict[str, int]:
    """Count wins, ties and losses against another model over the printed lines, and how many of them are clear.

    A data set counts once for each protocol and setting, as in papers: top-5 stands beside an accuracy that counts.
    """
    counted = [row for row in rows if row.line.headline and row.line.score != TOP_5 and other in row.gains]
    verdicts = [row.verdict(other) for row in counted]
    names: tuple[Verdict, ...] = ("win", "tie", "loss")
    return {
        **{name: verdicts.count(name) for name in names},
        "clear_wins": sum(row.clear(other) and row.verdict(other) == "win" for row in counted),
        "clear_losses": sum(row.clear(other) and row.verdict(other) == "loss" for row in counted),
    }


def averages(rows: Sequence[Row], protocol: str) -> dict[str, float]:
    """Return each model's plain mean over data sets of a protocol's first printed score (Table 10's last line)."""
    firsts: dict[str, Row] = {}
    for row in rows:
        if row.line.protocol == protocol and row.line.headline:
            firsts.setdefault(row.data, row)
    names = [name for row in list(firsts.values())[:1] for name in row.scores]
    return {
        name: sum(row.scores[name].value for row in firsts.values()) / len(firsts)
        for name in names
        if all(name in row.scores for row in firsts.values())
    }
