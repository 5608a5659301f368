"""The end of a training run: the kept model is evaluated once on the test images, drawn and reported."""

import shlex
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from paucal.distributed import rank
from paucal.evaluation.calibration import FEWEST, Calibration, calibration
from paucal.evaluation.classification import classification_report
from paucal.evaluation.curves import curves_figure, with_speed
from paucal.evaluation.deployed import load_deployed
from paucal.evaluation.figures import save_figure
from paucal.evaluation.multi_label import multi_label_report
from paucal.evaluation.multi_label_results import MultiLabelReport
from paucal.evaluation.predictions import Predictions, predict_all
from paucal.evaluation.record import record_classification, record_multi_label
from paucal.evaluation.reports import Report
from paucal.evaluation.tables import due_line, report_table, score_lines
from paucal.memory import peak_memory
from paucal.methods.training import method_of, unused_by
from paucal.methods.training_settings import TrainSettings
from paucal.report.page import write_report
from paucal.runs import RunFolder
from paucal.settings.options import flag_words, setting_fields
from paucal.training import Outcome
from paucal.verbs.explaining.mistakes import draw_mistakes
from paucal.verbs.run.console import Console
from paucal.verbs.run.finished import FinishedRun
from paucal.verbs.run.loaders import eval_loader
from paucal.verbs.run.processes import wait_for_all
from paucal.verbs.run.trainer_inputs import seconds_of
from paucal.verbs.training.assembly import AssembledTraining
from paucal.verbs.training.auto_tune.summary import describe_kept_model, kept_model_score, step_rows, total_seconds
from paucal.verbs.training.finishing import Finish, clear_epochs, finish_model
from paucal.wording import counted, percent


@dataclass(frozen=True)
class Result(FinishedRun):
    """The result of a finished training run.

    Attributes:
        folder: Run folder.
        report: Test scores with intervals, also per class, with the confusion matrix for single labels.
        seconds: Seconds of training.
    """

    report: Report
    seconds: float

    @property
    def metrics(self) -> dict[str, float]:
        """The test scores as plain numbers: "top1", "loss" and others; "map" for several labels."""
        return self.report.values

    @property
    def test_scores(self) -> dict[str, float]:
        """The same as `metrics`."""
        return self.metrics


@dataclass(frozen=True)
class FinalEvaluation:
    """The final evaluation of a run's model.

    Attributes:
        report: Report on the test images.
        finish: Changes of the model after its last step.
        calibrated: Calibration before and after temperature scaling; None without it.
    """

    report: Report
    finish: Finish
    calibrated: Calibration | None


def conclude(run: RunFolder, assembled: AssembledTraining, outcome: Outcome, console: Console) -> Result:
    """Evaluate the kept model on the test images, which were not used before, and write the results.

    All processes share the test images and get the result; the first one writes it.
    """
    finish = finish_model(run, assembled, outcome, console)
    plain = _predict_test(run, assembled, console)
    predictions = plain.at_temperature(finish.temperature)
    if rank() != 0:
        report = _score(assembled, predictions, finish)
        return Result(run.path, report, outcome.seconds)
    chance = {f"train_{name}": value for name, value in assembled.objective.chance_levels().items()}
    best = outcome.best.get("epoch") if _selected(assembled) else None
    if outcome.rows:
        rows = with_speed(outcome.rows, len(assembled.prepared.part("train")))
        save_figure(run.plots / "curves.png", curves_figure(rows, chance=chance, best=best))
    report = _record(run, assembled, predictions)
    calibrated = calibration(plain, finish.temperature, finish.images) if finish.images else None
    evaluation = FinalEvaluation(report, finish, calibrated)
    run.write_json("summary.json", summary(run, assembled, outcome, evaluation))
    clear_epochs(run, assembled)
    if not assembled.card.several:
        draw_mistakes(run.plots, predictions, assembled.prepared.images, load_deployed(run), console.say)
    page = write_report(run.path)
    console.show(report_table(report))
    for line in closing_lines(run, assembled, outcome, evaluation, page):
        console.say(line)
    return Result(run.path, report, outcome.seconds)


def _predict_test(run: RunFolder, assembled: AssembledTraining, console: Console) -> Predictions:
    settings, prepared = assembled.settings, assembled.prepared
    device = settings.device or "cpu"
    wait_for_all()  # for the model file of the first process
    # Load the stored files, so that exactly the deployed model is evaluated.
    model = load_deployed(run, device)
    indices = prepared.part("test")
    loader = eval_loader(prepared, indices, model.card.preprocessing, settings)
    with console.progress("testing") as advance:
        return predict_all(model.module, loader, device, progress=lambda done: advance(done, len(indices)))


def _score(assembled: AssembledTraining, predictions: Predictions, finish: Finish) -> Report:
    """Return the report without writing anything."""
    classes = assembled.card.classes
    if assembled.card.several:
        return multi_label_report(predictions, classes, finish.thresholds or assembled.card.thresholds or ())
    return classification_report(predictions, classes, _train_labels(assembled))


def _record(run: RunFolder, assembled: AssembledTraining, predictions: Predictions) -> Report:
    images, classes = assembled.prepared.images, assembled.card.classes
    if assembled.card.several:
        card = load_deployed(run).card
        return record_multi_label(run.evaluation("test"), run.plots, predictions, images, card)
    labels = _train_labels(assembled)
    return record_classification(run.evaluation("test"), run.plots, predictions, images, classes, labels)


def _selected(assembled: AssembledTraining) -> bool:
    """Return whether the kept epoch was selected on validation images."""
    return len(assembled.prepared.part("val")) > 0


def _train_labels(assembled: AssembledTraining) -> torch.Tensor:
    prepared = assembled.prepared
    return torch.from_numpy(prepared.images.labels[prepared.part("train")])


def summary(run: RunFolder, assembled: AssembledTraining, outcome: Outcome, evaluation: FinalEvaluation) -> dict:
    """Return the content of `summary.json`, which the page shows."""
    prepared, card, finish = assembled.prepared, assembled.card, evaluation.finish
    per_class = {
        part: dict(zip(card.classes, prepared.images.class_counts(prepared.part(part)).tolist(), strict=True))
        for part in prepared.counts()
    }
    objective, one_epoch = assembled.objective, bool(outcome.best) and not finish.epochs
    measure = prepared.yardstick
    return {
        "title": f"{card.backbone.name} on {prepared.images.name}",
        "model": card.backbone.name,
        "method": assembled.settings.method,
        "data": f"{prepared.images.name}: {counted(len(prepared.images), 'image')}, "
        f"{counted(len(card.classes), 'class', 'classes')}",
        "split": prepared.split.description,
        "parts": per_class,
        "parameters": sum(p.numel() for p in objective.deployable().parameters()),
        "grid": assembled.grid_text,
        "epochs": outcome.passes(assembled.settings.epochs),
        "rungs": step_rows(assembled.tune_record, outcome, finish, measure),
        "kept": None
        if one_epoch
        else describe_kept_model(assembled.tune_record, outcome, finish, _selected(assembled)),
        f"kept_val_{measure.score}": kept_model_score(assembled.tune_record, outcome, finish, measure),
        "averaged_epochs": list(finish.epochs),
        "calibration": None if evaluation.calibrated is None else asdict(evaluation.calibrated),
        "selected": _selected(assembled),
        "best_epoch": outcome.best.get("epoch"),
        f"best_val_{measure.score}": outcome.best.get(measure.column),
        "seconds": round(total_seconds(assembled.tune_record, outcome), 1),
        "peak_memory": peak_memory(assembled.settings.device or "cpu"),
        f"test_{measure.score}": evaluation.report.scores[measure.score].value,
        "start": None if assembled.start is None else assembled.start.short(),
        "remarks": [*assembled.remarks, *outcome.remarks],
        "next_steps": next_steps(run, assembled),
    }


def closing_lines(
    run: RunFolder, assembled: AssembledTraining, outcome: Outcome, evaluation: FinalEvaluation, page: Path
) -> list[str]:
    """Return the last lines to print: the test score, what was trained, where it is, and what to do next."""
    report, score = evaluation.report, score_lines(evaluation.report)[0]
    several = isinstance(report, MultiLabelReport)
    usual = percent(report.chance) if several else percent(report.majority.top1)
    baseline = "a random order" if several else f"always answering {report.majority.name!r}"
    kept = describe_kept_model(assembled.tune_record, outcome, evaluation.finish, _selected(assembled))
    due = due_line(report, assembled.prepared.images.name)
    return [
        "",
        f"test {assembled.prepared.yardstick.title}: {score.value} (95 % interval {score.interval}, "
        f"{counted(report.images, 'image')}); {baseline}: {usual}",
        *([due] if due else []),
        *([calibration_line(evaluation.calibrated)] if evaluation.calibrated else []),
        f"trained: {assembled.describe()}, {assembled.settings.method}, "
        f"epochs: {outcome.passes(assembled.settings.epochs)}, "
        f"{total_seconds(assembled.tune_record, outcome):.0f} s; kept: {kept}",
        f"results are in {run.path}: {page.name} (open it in a browser), {run.weights.name}, "
        f"{'metrics.csv, ' if outcome.rows else ''}plots/",
        "try next:",
        *(f"  {step}" for step in next_steps(run, assembled)),
    ]


def calibration_line(found: Calibration) -> str:
    """Return a line on the effect of temperature scaling."""
    (before, after), images = found.error, counted(found.images, "validation image")
    if found.temperature == 1.0:
        why = "are too few to correct it" if found.images < FEWEST else "show no need to correct it"
        return f"confidence: off by {percent(before)} on average; {images} {why}"
    return (
        f"confidence: off by {percent(before)} on average before, by {percent(after)} after a temperature of "
        f"{found.temperature:.2f}, fitted to {images}"
    )


def next_steps(run: RunFolder, assembled: AssembledTraining) -> list[str]:
    """Return commands to run next."""
    settings = assembled.settings
    steps = [f"paucal predict {run.path} new_images/     # classify images with this model"]
    contrast = method_of(settings).contrast
    if contrast is not None:
        steps.append(f"{command_again(assembled, method=contrast[0])}     # {contrast[1]}")
    if settings.data == "digits":
        steps.append("paucal train photos/     # your own images, one folder per class")
    else:
        longer = command_again(assembled, epochs=2 * (settings.epochs or 1))
        if settings.time is not None:
            longer = command_again(assembled, time=f"{max(1, round(seconds_of(settings.time) / 30))}m")
        steps.append(f"{longer}     # train for longer")
    return steps


def command_again(assembled: AssembledTraining, **changes: Any) -> str:
    """Return the command of this run with other settings and without its output folder."""
    settings = {**vars(assembled.settings), **changes}
    given = {name for name, origin in assembled.origin.items() if origin in ("flag", "config", "given")}
    # Settings of the method and of the length are chosen again if these change.
    dropped = {"data", "output", "overwrite", "schedule_epochs" if "epochs" in changes else ""}
    if "method" in changes:
        dropped |= unused_by(replace(assembled.settings, method=changes["method"]))
    defaults = {name: field.default for name, field in setting_fields(TrainSettings).items()}
    words = ["paucal", "train", *([settings["data"]] if settings["data"] != "digits" else [])]
    if "init" in given and settings["init"] is None:
        words += ["--init", "none"]  # otherwise the command would look for pretrained weights
    for name, value in settings.items():
        kept = name in changes or (name in given and name not in dropped)
        if not kept or value is False or (value == defaults[name] and name not in changes):
            continue
        words += flag_words(name, value)
    return shlex.join(words)
