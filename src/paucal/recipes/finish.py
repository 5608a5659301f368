"""The end of a run: the best model judged once on the test images, pictures, and the page."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from paucal.evaluation.curves import curves_figure
from paucal.evaluation.deployed import load_deployed
from paucal.evaluation.predictions import predict_all
from paucal.evaluation.record import record_classification, save_figure
from paucal.evaluation.results import ClassificationReport
from paucal.evaluation.tables import percent, report_table, score_lines
from paucal.recipes.loaders import eval_loader
from paucal.recipes.voice import Voice, describe_grid, describe_model
from paucal.report.page import write_report
from paucal.runs import RunFolder
from paucal.training import Outcome

if TYPE_CHECKING:
    from paucal.recipes.launch import Assembled


@dataclass(frozen=True)
class Result:
    """What a finished run leaves.

    Attributes:
        run: the run folder.
        report: scores on the test images.
        seconds: of training.
    """

    run: Path
    report: ClassificationReport
    seconds: float


def conclude(run: RunFolder, assembled: "Assembled", outcome: Outcome, voice: Voice) -> Result:
    """Judge the best model on the test images, which nothing has looked at before, and write everything down."""
    save_figure(run.plots / "curves.png", curves_figure(outcome.rows, best=outcome.best.get("epoch")))
    report = _test(run, assembled, voice)
    run.write_json("summary.json", summary(run, assembled, outcome, report))
    page = write_report(run.path)
    voice.show(report_table(report))
    for line in closing_lines(run, assembled, outcome, report, page):
        voice.say(line)
    return Result(run.path, report, outcome.seconds)


def _test(run: RunFolder, assembled: "Assembled", voice: Voice) -> ClassificationReport:
    settings, prepared = assembled.settings, assembled.prepared
    device = settings.device or "cpu"
    # The files are loaded back, so that what is judged is what will be deployed.
    model = load_deployed(run, device)
    indices = prepared.part("test")
    loader = eval_loader(prepared, indices, model.card.preprocessing, settings)
    with voice.progress("testing") as advance:
        predictions = predict_all(model.module, loader, device, progress=lambda done: advance(done, len(indices)))
    train_labels = torch.from_numpy(prepared.images.labels[prepared.part("train")])
    folder = run.evaluation("test")
    return record_classification(folder, run.plots, predictions, prepared.images, model.classes, train_labels)


def summary(run: RunFolder, assembled: "Assembled", outcome: Outcome, report: ClassificationReport) -> dict:
    """Return the facts of the run as plain values, for `summary.json` and the page."""
    prepared, card = assembled.prepared, assembled.card
    per_class = {
        part: dict(zip(card.classes, prepared.images.class_counts(prepared.part(part)).tolist(), strict=True))
        for part in prepared.counts()
    }
    objective = assembled.objective
    return {
        "title": f"{card.backbone.name} on {prepared.images.name}",
        "model": card.backbone.name,
        "method": assembled.settings.method,
        "data": f"{prepared.images.name}: {len(prepared.images)} images, {len(card.classes)} classes",
        "split": prepared.split.description,
        "parts": per_class,
        "parameters": sum(p.numel() for p in objective.deployable().parameters()),
        "grid": describe_grid(objective),
        "epochs": assembled.settings.epochs,
        "best_epoch": outcome.best.get("epoch"),
        "best_val_top1": outcome.best.get("val_top1"),
        "seconds": round(outcome.seconds, 1),
        "test_top1": report.scores["top1"].value,
        "remarks": list(assembled.remarks),
        "next_steps": next_steps(run, assembled),
    }


def closing_lines(
    run: RunFolder, assembled: "Assembled", outcome: Outcome, report: ClassificationReport, page: Path
) -> list[str]:
    """Return the last lines that a person reads: the score, what was trained, where it lies, what to try."""
    top1 = score_lines(report)[0]
    return [
        "",
        f"test accuracy: {top1.value} (95 % interval {top1.interval}, {report.images} images); "
        f"always answering {report.majority.name!r}: {percent(report.majority.top1)}",
        f"trained: {describe_model(assembled)}, {assembled.settings.method}, "
        f"{assembled.settings.epochs} epochs in {outcome.seconds:.0f} s; "
        f"kept: epoch {outcome.best.get('epoch', 0):g}, the best of the validation images",
        f"everything lies in {run.path}: {page.name} (open it in a browser), {run.weights.name}, metrics.csv, plots/",
        "try next:",
        *(f"  {step}" for step in next_steps(run, assembled)),
    ]


def next_steps(run: RunFolder, assembled: "Assembled") -> list[str]:
    """Return commands that make sense now."""
    settings = assembled.settings
    other = "supervised" if settings.method == "drloc" else "drloc"
    data = settings.data if settings.data != "digits" else ""
    own = " ".join(filter(None, ["paucal train", data, f"--method {other}", f"--seed {settings.seed}"]))
    steps = [
        f"paucal predict {run.path} new_images/     # classify images with this model",
        f"{own}     # the same without the extra loss, to see what it gives"
        if other == "supervised"
        else f"{own}     # add dense relative localization",
    ]
    if settings.data == "digits":
        steps.append("paucal train photos/     # your own images, one folder per class")
    else:
        steps.append(f"paucal train {data} --epochs {2 * (settings.epochs or 1)}     # train for longer")
    return steps
