"""The report of a pre-training run: signs of collapse, and the quality of the features."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paucal.report.explanations import cost_rows, model_rows
from paucal.report.inputs import MAX_TEXT, read_run, read_stored
from paucal.report.page import write_run_page
from paucal.wording import percent


@dataclass(frozen=True)
class PretrainingSummary:
    """Entries of `summary.json` that are only written by pre-training runs; each entry may be missing."""

    crops: str | None = None  # description of the crops of an image
    out_dim: int | None = None  # number of prototypes of a head
    monitor: str | None = None  # source of the labelled images on which the features were evaluated during training
    knn_start: float | None = None  # nearest-neighbour accuracy with the initial weights, before training
    # "kind", "sentence" and "advice" of a collapse at the end of training; None if there was no collapse.
    verdict: Mapping[str, str] | None = None
    verdicts: Sequence[Mapping[str, str]] = ()  # "epoch", "kind" and "sentence" of each change of the verdict
    rollbacks: int = 0  # number of times that the run was reset to an earlier state after a collapse
    start: str | None = None  # description of the initial weights
    remarks: Sequence[str] = ()


def write_pretraining_report(run: Path) -> Path:
    """Write `report.html` into the folder of a pre-training run, and return the path of the page."""
    files = read_run(run)
    advice = "restore the file, or pre-train again"
    summary = read_stored(files.run, "summary.json", _parse_summary, PretrainingSummary(), advice)
    knn_scores = []  # epoch and nearest-neighbour accuracy, of the epochs in which the accuracy was measured
    for number, row in enumerate(files.rows, start=1):
        if math.isfinite(row.get("val_knn", math.nan)):
            knn_scores.append((row.get("epoch", float(number)), row["val_knn"]))
    figures = [(percent(score), f"nearest neighbours, epoch {epoch:g}") for epoch, score in knn_scores[-1:]]
    if figures and summary.knn_start is not None:
        figures.append((percent(summary.knn_start), "before training"))
    return write_run_page(
        files,
        "pretraining.html",
        trained={
            **model_rows(files.summary),
            "crops of an image": summary.crops,
            "prototypes of a head": None if summary.out_dim is None else f"{summary.out_dim:,}",
            "initial weights": summary.start,
            "epochs": None if files.summary.epochs is None else f"{files.summary.epochs:g}",
            **cost_rows(files),
        },
        pretraining=summary,
        remarks=summary.remarks,
        headline=_headline_sentences(knn_scores, summary),
        warnings=_warning_sentences(knn_scores, summary),
        figures=figures,
    )


def _parse_summary(content: Mapping[str, Any]) -> PretrainingSummary:
    verdict, out_dim, knn_start = (content.get(name) for name in ("verdict", "out_dim", "knn_start"))
    if verdict is not None:
        verdict = {key: str(verdict[key])[:MAX_TEXT] for key in ("kind", "sentence", "advice")}
    return PretrainingSummary(
        crops=_short_text(content.get("crops")),
        out_dim=None if out_dim is None else int(out_dim),
        monitor=_short_text(content.get("monitor")),
        knn_start=None if knn_start is None else float(knn_start),
        verdict=verdict,
        verdicts=[
            {
                "epoch": f"{float(entry['epoch']):g}",
                "kind": "recovered" if entry["kind"] is None else str(entry["kind"])[:MAX_TEXT],
                "sentence": str(entry["sentence"])[:MAX_TEXT],
            }
            for entry in content.get("verdicts") or ()
        ],
        rollbacks=int(content.get("rollbacks") or 0),
        start=_short_text(content.get("start")),
        remarks=[str(remark)[:MAX_TEXT] for remark in content.get("remarks") or ()],
    )


def _headline_sentences(scores: Sequence[tuple[float, float]], summary: PretrainingSummary) -> list[str]:
    no_collapse = "The networks show no sign of collapse: their outputs still differ between images."
    sentences = [no_collapse] if summary.verdict is None else []
    if not scores:
        return [
            *sentences,
            "The features were not evaluated on labelled images during training (--monitor), so their quality is "
            "unknown: evaluate the features with paucal eval, or fine-tune the network.",
        ]
    epoch, last = scores[-1]
    start = "" if summary.knn_start is None else f" ({percent(summary.knn_start)} with the initial weights)"
    noun = "labelled images" if summary.monitor is None else f"labelled images of {summary.monitor}"
    sentences.append(
        f"After epoch {epoch:g}, nearest neighbours classify {percent(last)} of the {noun} correctly{start}."
    )
    top, best = max((accuracy, epoch) for epoch, accuracy in scores)
    if top > last:
        sentences.append(
            f"The highest accuracy was {percent(top)}, after epoch {best:g}. The last epoch is kept nevertheless, "
            "since pre-training does not use labels."
        )
    return sentences


def _warning_sentences(scores: Sequence[tuple[float, float]], summary: PretrainingSummary) -> list[str]:
    sentences = []
    if summary.verdict is not None:
        sentence = summary.verdict["sentence"]
        sentences.append(f"{sentence[:1].upper()}{sentence[1:]} {summary.verdict['advice']}")
    if scores and summary.knn_start is not None and scores[-1][1] <= summary.knn_start:
        sentences.append(
            "Nearest neighbours are no better than with the initial weights, so training has not improved the "
            "features. Train for longer, or see the advice on collapse."
        )
    if summary.rollbacks:
        times = "once" if summary.rollbacks == 1 else f"{summary.rollbacks} times"
        sentences.append(
            f"The run was reset {times} to its state before a collapse, and continued with changed settings."
        )
    return sentences


def _short_text(value: Any) -> str | None:
    return None if value is None else str(value)[:MAX_TEXT]
