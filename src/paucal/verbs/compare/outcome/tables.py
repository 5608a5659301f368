"""The tables of a comparison: on the terminal, and as CSV."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from paucal.evaluation.comparison import Repeated
from paucal.runs import write_text
from paucal.verbs.compare.cells.cell import Cell
from paucal.verbs.compare.outcome.evidence import ArmOutcome, Findings, Outcome
from paucal.verbs.compare.outcome.words import cost, points, span
from paucal.wording import counted, percent

PARTS = ("other seeds", "other images")  # of the interval for both


def arm_rows(found: Findings) -> list[dict[str, str]]:
    """Return a formatted row per arm."""
    return [_row(one, found) for one in found.arms]


def terminal_table(found: Findings) -> Table:
    """Return the arms as a table, with significant differences in bold.

    The separate intervals for seeds and for images are only on the page, since most terminals are too narrow.
    """
    rows = [{name: value for name, value in row.items() if name not in PARTS} for row in arm_rows(found)]
    title = f"test accuracy over {counted(len(found.grid.seeds), 'seed')}"
    table = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0))
    for number, heading in enumerate(rows[0]):
        table.add_column(heading, justify="left" if number == 0 else "right", no_wrap=number > 0)
    for row, one in zip(rows, found.arms, strict=True):
        table.add_row(*row.values(), style="bold" if one.gain is not None and one.gain.clear else None)
    return table


def write_tables(folder: Path, found: Findings) -> None:
    """Write `runs.csv` (a row per run), `arms.csv` (a row per arm) and `differences.csv`."""
    done = {one.cell.folder: one for arm in found.arms for one in arm.outcomes.values()}
    runs = [_run_row(cell, state.name, state.error, done.get(cell.folder)) for cell, state in found.states.items()]
    _write(folder / "runs.csv", runs)
    _write(folder / "arms.csv", [_arm_numbers(one) for one in found.arms])
    _write(folder / "differences.csv", [_difference_numbers(one) for one in found.differences])


def _row(one: ArmOutcome, found: Findings) -> dict[str, str]:
    top1, gain = one.top1, one.gain
    row = {
        "": one.name,
        "runs": f"{len(one.outcomes)} of {one.expected}{_failed(one, found)}",
        "mean": "-" if top1 is None else percent(top1.score.value),
        "sd": "-" if top1 is None or top1.deviation is None else f"{100 * top1.deviation:.1f}",
        "difference": "-" if gain is None else points(gain.value),
        "other seeds": "-" if gain is None else span(gain.by_seed.score),
        "other images": "-" if gain is None else span(gain.over_images),
        "95 % interval": "-" if gain is None else span(gain.both),
        "time": cost(one),
    }
    if found.grid.rates:
        row["rate"] = "-" if one.rate is None else f"{one.rate:g}"
    return row


def _failed(one: ArmOutcome, found: Findings) -> str:
    count = sum(state.name == "failed" and cell.arm == one.arm for cell, state in found.states.items())
    return f", {count} failed" if count else ""


def _run_row(cell: Cell, state: str, error: str, one: Outcome | None) -> dict[str, Any]:
    row = {
        "arm": cell.arm.name,
        "way": cell.arm.way,
        "model": cell.arm.model,
        "share": cell.arm.share,
        "seed": cell.seed,
        "lr": cell.rate,
        "tried": int(cell.tried),
        "state": state,
        "folder": f"{cell.folder.parent.name}/{cell.folder.name}/run",
        "error": error,
    }
    if one is None:
        return row
    numbers = {"epochs": one.epochs, "seconds": one.seconds, "parameters": one.parameters, "macs": one.macs}
    return {**row, **numbers, "val_top1": one.validation, **{f"test_{name}": v for name, v in one.scores.items()}}


def _arm_numbers(one: ArmOutcome) -> dict[str, Any]:
    row: dict[str, Any] = {"arm": one.arm.name, "seeds": len(one.outcomes), "lr": one.rate}
    for name, score in one.scores.items():
        row |= _repeated(f"test_{name}", score)
    wanted = ("validation", "epochs", "seconds", "epoch_seconds", "parameters", "macs")
    return {**row, **{name: one.mean(name) for name in wanted}}


def _repeated(name: str, found: Repeated) -> dict[str, Any]:
    return {
        name: found.score.value,
        f"{name}_sd": found.deviation,
        f"{name}_low": found.score.low,
        f"{name}_high": found.score.high,
    }


def _difference_numbers(one: ArmOutcome) -> dict[str, Any]:
    gain = one.gain
    if gain is None:
        raise ValueError("this arm is compared with no other")
    row: dict[str, Any] = {"arm": one.name, "against": one.baseline}
    row |= {
        "seeds": len(gain.by_seed.values),
        "images": gain.images,
        "difference": gain.value,
        "sd": gain.by_seed.deviation,
    }
    for name, score in (("seeds", gain.by_seed.score), ("images", gain.over_images), ("both", gain.both)):
        row |= {f"low_{name}": score.low, f"high_{name}": score.high}
    return {**row, "clear": int(gain.clear), "seeds_needed": gain.seeds_needed, "images_needed": gain.images_needed}


def _write(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    columns: Iterable[str] = dict.fromkeys(name for row in rows for name in row)
    text = io.StringIO()
    writer = csv.DictWriter(text, list(columns), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(path, text.getvalue())
