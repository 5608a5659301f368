"""The report section on a run's frozen features, with the stored results of `paucal eval --protocol`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from paucal.evaluation.protocols import table
from paucal.metrics.intervals import Score
from paucal.runs import RunFolder
from paucal.types import UserError

MAX_ROWS = 500  # largest number of rows that are read from the stored results
MAX_TEXT = 500  # largest number of characters of each text on the page


def read_frozen(run: RunFolder) -> dict[str, Any] | None:
    """Return the content of the section; None if the frozen features were not evaluated.

    The template shows "data" and "warnings" (on test images that were used without labels in training) as sentences,
    "models" as headings, "lines" as rows of scores and gains, and "remarks" on averages and hyperparameters.
    """
    path = run.evaluation(table.FOLDER) / table.JSON_NAME
    if not path.is_file():
        return None
    content = run.read_json(str(path.relative_to(run.path)))
    try:
        rows = [table.ProtocolRow.from_dict(row) for row in content["rows"][:MAX_ROWS]]
        sets = content["data"][:MAX_ROWS]
        seen_notes = [text for data in sets for texts in (data.get("seen_unlabelled") or {}).values() for text in texts]
        level = float(content["level"])
        if not 0 < level < 1:
            raise ValueError(f"expected a level between 0 and 1, got {level}")
        models = list(rows[0].scores)[: table.MAX_MODELS] if rows else []
        return {
            "data": [_describe_data(data) for data in sets],
            "models": [name[:MAX_TEXT] for name in models],
            "lines": [_table_line(row, models, len(sets) > 1) for row in rows if row.line.headline],
            "remarks": [text[:MAX_TEXT] for text in table.remarks(rows)],
            "warnings": list(dict.fromkeys(str(text)[:MAX_TEXT] for text in seen_notes)),
            "level": level,
        }
    except (KeyError, TypeError, ValueError, AttributeError, UserError) as problem:
        text = f"{str(path)!r} is damaged ({problem})"
        raise UserError(f"{text}: remove the file, or evaluate the features again.") from problem


def find_frozen_pictures(run: RunFolder) -> dict[str, Path]:
    """Return the paths of the existing figures of frozen features, by name."""
    paths = [run.evaluation(table.FOLDER) / name for name in (table.SCORES_PICTURE, table.MATCHES_PICTURE)]
    return {path.stem: path for path in paths if path.is_file()}


def _table_line(row: table.ProtocolRow, models: Sequence[str], has_several: bool) -> dict[str, Any]:
    """Return the title of a row, each model's score, and the first model's gain over each other model, as text."""
    line = row.line
    parts = [*([f"{row.data}:"] if has_several else []), line.protocol, line.setting, f"{line.score},", line.unit]
    return {
        "title": " ".join(part for part in parts if part)[:MAX_TEXT],
        "scores": [_format(row.scores, name, line.unit) for name in models],
        "gains": [_format(row.gains, name, line.unit, sign=True) for name in models[1:]],
    }


def _format(scores: Mapping[str, Score], name: str, unit: str, sign: bool = False) -> str:
    return table.format_score(scores[name], unit, sign=sign) if name in scores else "-"


def _describe_data(data: Mapping[str, Any]) -> str:
    counts = ", ".join(f"{int(data[part]):,} {part}" for part in ("train", "val", "test"))
    return f"{data['name']}: {counts}; {data['how']}"[:MAX_TEXT]
