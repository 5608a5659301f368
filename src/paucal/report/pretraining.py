"""The report of a pre-training run: no classes and no test, but whether the networks stayed well."""

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paucal.report.explanations import again, cost
from paucal.report.inputs import RunFiles, read_run
from paucal.report.page import NAME, template
from paucal.report.pictures import pictures
from paucal.runs import write_text
from paucal.types import UserError
from paucal.wording import percent

MONITORED = "val_knn"
MAX_TEXT = 2000


@dataclass(frozen=True)
class PretrainingSummary:
    """What `summary.json` knows of a pre-training run beside what all runs have; everything may be missing.

    Attributes:
        crops: which views of an image were compared, in words.
        out_dim: prototypes of each head.
        monitor: where the labelled images came from that were watched.
        knn_start: share that nearest neighbours found before training, with the weights the run began with.
        verdict: "kind", "sentence" and "advice" of what is wrong at the end.
        verdicts: "epoch", "kind" and "sentence" each time that changed.
        rollbacks: times the run went back to a healthy state.
        start: where the first weights came from.
        remarks: sentences.
    """

    crops: str | None = None
    out_dim: int | None = None
    monitor: str | None = None
    knn_start: float | None = None
    verdict: Mapping[str, str] | None = None
    verdicts: Sequence[Mapping[str, Any]] = ()
    rollbacks: int = 0
    start: str | None = None
    remarks: Sequence[str] = ()


def write_pretraining_report(run: Path) -> Path:
    """Write `report.html` into the folder of a pre-training run from what lies there, and return its path.

    From `summary.json` it reads what `report.inputs.Summary` names (title, model, method, data, split, parameters,
    grid, epochs, seconds, next_steps) and what `PretrainingSummary` names; from `metrics.csv` the curves and
    "val_knn"; from `plots/` the pictures health.png, curves.png and train_batch.png.

    Raises:
        UserError: the folder does not exist, or one of its files is too large or damaged.
    """
    files = read_run(run)
    known = read_summary(files)
    page = template("pretraining.html").render(
        title=files.summary.title or f"Run {run.resolve().name}",
        files=files,
        summary=files.summary,
        pretraining=known,
        headline=headline(files, known),
        warnings=warnings(files, known),
        figures=figures(files, known),
        table=table(files, known),
        frozen=files.frozen,
        pictures=pictures(files),
        shell_run=shlex.quote(str(run)),
        again=again(files),
    )
    path = run / NAME
    write_text(path, page)
    return path


def read_summary(files: RunFiles) -> PretrainingSummary:
    """Read what is known of a pre-training run from `summary.json`.

    Raises:
        UserError: they are not of the kinds that `PretrainingSummary` names.
    """
    path = files.run.path / "summary.json"
    content = files.run.read_json(path.name) if path.is_file() else {}
    try:
        verdict = content.get("verdict")
        return PretrainingSummary(
            crops=_text(content.get("crops")),
            out_dim=None if content.get("out_dim") is None else int(content["out_dim"]),
            monitor=_text(content.get("monitor")),
            knn_start=None if content.get("knn_start") is None else float(content["knn_start"]),
            verdict=None
            if verdict is None
            else {key: str(verdict[key])[:MAX_TEXT] for key in ("kind", "sentence", "advice")},
            verdicts=[_change(entry) for entry in content.get("verdicts") or ()],
            rollbacks=int(content.get("rollbacks") or 0),
            start=_text(content.get("start")),
            remarks=[str(remark)[:MAX_TEXT] for remark in content.get("remarks") or ()],
        )
    except (TypeError, ValueError, KeyError, AttributeError, OverflowError) as problem:
        raise UserError(f"{str(path)!r} is damaged ({problem!r}): restore it or pre-train again.") from problem


def knn(files: RunFiles) -> list[tuple[float, float]]:
    """Return (epoch, share found by nearest neighbours) of the epochs that know it."""
    rows = enumerate(files.rows, start=1)
    found = [(row.get("epoch", float(number)), row.get(MONITORED, math.nan)) for number, row in rows]
    return [(epoch, share) for epoch, share in found if math.isfinite(share)]


def headline(files: RunFiles, known: PretrainingSummary) -> list[str]:
    """Return the result in a few sentences: whether the networks are well, and what the features are worth."""
    found = []
    if known.verdict is None:
        found.append("The networks show no sign of collapse: images still differ in what they answer.")
    scores = knn(files)
    if not scores:
        found.append(
            "No labelled images were watched (--monitor), so nothing is known yet of what the features are worth: "
            "judge them with paucal eval, or fine-tune them."
        )
        return found
    epoch, last = scores[-1]
    start = "" if known.knn_start is None else f"; with the weights it began with, {percent(known.knn_start)}"
    where = "labelled images" if known.monitor is None else f"labelled images of {known.monitor}"
    found.append(
        f"After epoch {epoch:g} the nearest neighbours give {percent(last)} of the {where} the right class{start}."
    )
    top, best = max((share, epoch) for epoch, share in scores)
    if top > last:
        found.append(
            f"The highest such share was {percent(top)}, after epoch {best:g}. The last epoch is kept all the same: "
            "labels have no say in pre-training."
        )
    return found


def warnings(files: RunFiles, known: PretrainingSummary) -> list[str]:
    """Return what a careful reader should know before using the backbone; often empty."""
    found = []
    if known.verdict is not None:
        found.append(f"{_capital(known.verdict['sentence'])} {known.verdict['advice']}")
    scores = knn(files)
    if scores and known.knn_start is not None and scores[-1][1] <= known.knn_start:
        found.append(
            "Nearest neighbours find no more than with the weights the run began with: these features are not worth "
            "more than those. Train for longer, or look at the advice on collapse."
        )
    if known.rollbacks:
        times = "once" if known.rollbacks == 1 else f"{known.rollbacks} times"
        found.append(f"The run went back to a healthy state {times}, with other settings after it.")
    return found


def figures(files: RunFiles, known: PretrainingSummary) -> list[tuple[str, str]]:
    """Return the few numbers that stand first, with what they are."""
    found = [(percent(share), f"nearest neighbours, epoch {epoch:g}") for epoch, share in knn(files)[-1:]]
    if found and known.knn_start is not None:
        found.append((percent(known.knn_start), "before training"))
    return found


def table(files: RunFiles, known: PretrainingSummary) -> Mapping[str, str]:
    """Return what was trained as names and texts, without what is unknown."""
    summary = files.summary
    rows = {
        "model": summary.model,
        "parameters": None if summary.parameters is None else f"{summary.parameters:,}",
        "token grid": summary.grid,
        "method": summary.method,
        "crops of an image": known.crops,
        "prototypes of a head": None if known.out_dim is None else f"{known.out_dim:,}",
        "first weights": known.start,
        "epochs": None if summary.epochs is None else f"{summary.epochs:g}",
        **cost(files),
    }
    return {name: value for name, value in rows.items() if value is not None}


def _change(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    kind = entry["kind"]
    return {
        "epoch": f"{float(entry['epoch']):g}",
        "kind": "well again" if kind is None else str(kind)[:MAX_TEXT],
        "sentence": str(entry["sentence"])[:MAX_TEXT],
    }


def _text(value: Any) -> str | None:
    return None if value is None else str(value)[:MAX_TEXT]


def _capital(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]
