"""The report section on a run's frozen features, with the stored results of `paucal eval --protocol`."""

from collections.abc import Sequence
from typing import Any

from paucal.evaluation.protocols import table
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
        sets, descriptions, warnings = content["data"][:MAX_ROWS], [], []
        for data in sets:
            counts = ", ".join(f"{int(data[part]):,} {part}" for part in ("train", "val", "test"))
            descriptions.append(f"{data['name']}: {counts}; {data['how']}"[:MAX_TEXT])
            warnings += [
                str(text)[:MAX_TEXT] for texts in (data.get("seen_unlabelled") or {}).values() for text in texts
            ]
        level = float(content["level"])
        if not 0 < level < 1:
            raise ValueError(f"expected a level between 0 and 1, got {level}")
        models = list(rows[0].scores)[: table.MAX_MODELS] if rows else []
        return {
            "data": descriptions,
            "models": [name[:MAX_TEXT] for name in models],
            "lines": [_table_line(row, models, len(sets) > 1) for row in rows if row.line.headline],
            "remarks": [text[:MAX_TEXT] for text in table.remarks(rows)],
            "warnings": list(dict.fromkeys(warnings)),
            "level": level,
        }
    except (KeyError, TypeError, ValueError, AttributeError, UserError) as problem:
        text = f"{str(path)!r} is damaged ({problem})"
        raise UserError(f"{text}: remove the file, or evaluate the features again.") from problem


def _table_line(row: table.ProtocolRow, models: Sequence[str], has_several: bool) -> dict[str, Any]:
    """Return the title of a row, each model's score, and the first model's gain over each other model, as text."""
    line = row.line
    parts = [*([f"{row.data}:"] if has_several else []), line.protocol, line.setting, f"{line.score},", line.unit]
    scores = {name: table.format_score(score, line.unit) for name, score in row.scores.items()}
    gains = {name: table.format_score(gain, line.unit, sign=True) for name, gain in row.gains.items()}
    return {
        "title": " ".join(part for part in parts if part)[:MAX_TEXT],
        "scores": [scores.get(name, "-") for name in models],
        "gains": [gains.get(name, "-") for name in models[1:]],
    }
