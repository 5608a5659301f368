"""The end of a classification run: evaluate its final model once on the test images, and write the results."""

import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from paucal.distributed import rank
from paucal.evaluation.calibration import MIN_IMAGES, Calibration, calibration
from paucal.evaluation.classification import classification_report, multi_label_report
from paucal.evaluation.curves import save_curves
from paucal.evaluation.predictions import Predictions
from paucal.evaluation.record import (
    record_classification,
    record_multi_label,
    report_table,
    score_lines,
    usual_metric_line,
)
from paucal.evaluation.results import MultiLabelReport, PrimaryMetric, Report, scored_part
from paucal.methods.training import method_of, unused_settings_of
from paucal.methods.training_settings import TrainSettings
from paucal.models.trained import load_trained, read_card
from paucal.report.page import write_report
from paucal.runner.console import Console
from paucal.runner.processes import wait_for_all
from paucal.runner.results import EvaluatedRun, publish_results
from paucal.runner.time_budget import parse_duration
from paucal.runs import RunFolder
from paucal.settings.options import flag_words, setting_fields
from paucal.tasks.classification.assembly import TrainingSetup
from paucal.tasks.classification.auto_tune.heads import HELD_OUT_FILE, read_held_out_logits
from paucal.tasks.classification.auto_tune.learning_curve import CURVE_FILE
from paucal.tasks.classification.auto_tune.record import TuneRecord
from paucal.tasks.classification.auto_tune.resumed_features import FROZEN_FILE
from paucal.tasks.classification.finishing import PostTrainingChanges, finish_model, predict_split
from paucal.tasks.classification.mistakes import draw_mistakes
from paucal.training import Outcome
from paucal.training.keeper import kept_epochs
from paucal.wording import counted, format_duration, images_text, percent


@dataclass(frozen=True)
class Result(EvaluatedRun):
    """The result of a finished training run.

    `metrics` has "top1", "loss" and further scores; "map" instead of "top1" if images have several labels.
    `report` has the test scores with confidence intervals, overall and per class, and also the confusion matrix if each
    image has a single label.
    """

    report: Report


@dataclass(frozen=True)
class FinalEvaluation:
    """The evaluation of a run's final model."""

    report: Report
    changes: PostTrainingChanges
    calibrated: Calibration | None  # effect of temperature scaling; None if no temperature was fitted


def conclude(run: RunFolder, setup: TrainingSetup, outcome: Outcome, console: Console) -> Result:
    """Evaluate the final model on the test images, which were not used before, and write the results.

    If there are no test images, the cross-validated scores of the first model are reported. The test images are divided
    among all processes. Every process returns the result; only rank 0 writes files.
    """
    changes = finish_model(run, setup, outcome, console)
    images, train, classes = setup.data.images, setup.data.split_indices("train"), setup.card.classes
    folder, train_labels = run.evaluation("test"), torch.from_numpy(images.labels[train]).long()
    if not len(setup.data.split_indices("test")) and (run.path / HELD_OUT_FILE).is_file():
        # The accuracy is the mean over all repeats of the cross-validation; tables and plots show the first repeat.
        held_out = read_held_out_logits(run)
        first_repeat = Predictions(torch.from_numpy(train)[held_out.rows], held_out.logits[0].float(), held_out.labels)
        repeated = held_out.is_correct.numpy(), held_out.folds
        report = record_classification(folder, run.plots, first_repeat, images, classes, train_labels, repeated)
        return _write_and_print(run, setup, outcome, FinalEvaluation(report, changes, None), console)
    wait_for_all()  # until rank 0 has written the model file
    # Load the stored model, so that exactly the deployed model is evaluated.
    uncalibrated = predict_split(load_trained(run, setup.settings.device), setup, "test", console, "testing")
    uncalibrated = uncalibrated.in_groups(setup.data.split.groups)
    predictions = uncalibrated.at_temperature(changes.temperature)
    if rank() != 0:
        if setup.card.is_multi_label:
            report = multi_label_report(predictions, classes, changes.thresholds or setup.card.thresholds or ())
        else:
            report = classification_report(predictions, classes, train_labels)
        return Result(run.path, report, outcome.seconds)
    chance = {f"train_{name}": value for name, value in setup.objective.chance_levels().items()}
    save_curves(run, outcome.rows, len(train), chance=chance, best=setup.best_epoch(outcome))
    if setup.card.is_multi_label:
        report = record_multi_label(folder, run.plots, predictions, images, read_card(run))
    else:
        report = record_classification(folder, run.plots, predictions, images, classes, train_labels)
    calibrated = calibration(uncalibrated, changes.temperature, changes.images) if changes.images else None
    if not setup.card.is_multi_label:
        draw_mistakes(run.plots, predictions, images, load_trained(run), console.say)
    return _write_and_print(run, setup, outcome, FinalEvaluation(report, changes, calibrated), console)


def _write_and_print(
    run: RunFolder, setup: TrainingSetup, outcome: Outcome, evaluation: FinalEvaluation, console: Console
) -> Result:
    content, steps = summary(run, setup, outcome, evaluation), next_steps(run, setup)
    lines, files = result_lines(run, setup, outcome, evaluation), f"{'metrics.csv, ' if outcome.rows else ''}plots/"
    content["next_steps"] = steps
    publish_results(run, console, content, write_report, lines, files, steps, report_table(evaluation.report))
    # Remove intermediate files last, since a run that is killed before needs these files again.
    (run.path / FROZEN_FILE).unlink(missing_ok=True)
    validation = setup.validation()
    if validation is not None and (epoch_store := kept_epochs(run, validation)) is not None:
        epoch_store.clear()
    return Result(run.path, evaluation.report, outcome.seconds)


def summary(run: RunFolder, setup: TrainingSetup, outcome: Outcome, evaluation: FinalEvaluation) -> dict[str, Any]:
    """Return the content of `summary.json` without the next steps; the report page shows this content."""
    data, card, changes = setup.data, setup.card, evaluation.changes
    per_class = {
        part: dict(zip(card.classes, data.images.class_counts(data.split_indices(part)).tolist(), strict=True))
        for part in data.counts()
    }
    scored = scored_part(evaluation.report).replace("-", "_")
    keeps_one_epoch, measure = bool(outcome.best) and not changes.epochs, data.primary_metric
    first_model = None if setup.tune_record is None else setup.tune_record.first_model
    kept_score = outcome.best.get(measure.column)
    if changes.epochs:
        kept_score = changes.score
    elif not outcome.best and first_model is not None:
        kept_score = first_model.score
    return {
        **setup.summarise(outcome),
        "title": f"{card.backbone.name} on {data.images.name}",
        "method": setup.settings.method,
        "data": f"{data.images.name}: {counted(len(data.images), 'image')}, "
        f"{counted(len(card.classes), 'class', 'classes')}",
        "parts": per_class,
        "part_images": data.counts(),  # differs from the sums over classes if images may have several labels or none
        "grid": setup.grid_text if read_card(run).backbone.image_size == setup.card.backbone.image_size else None,
        "epochs": outcome.epochs_done(setup.settings.epochs),
        "rungs": step_rows(setup.tune_record, outcome, changes, measure),
        "kept": None if keeps_one_epoch else kept_model_text(run, setup, outcome, changes),
        f"kept_val_{measure.score}": kept_score,
        "averaged_epochs": list(changes.epochs),
        "calibration": None if evaluation.calibrated is None else asdict(evaluation.calibrated),
        "selected": setup.is_selected,
        "best_epoch": outcome.best.get("epoch"),
        f"best_val_{measure.score}": outcome.best.get(measure.column),
        "seconds": round(total_seconds(setup.tune_record, outcome), 1),
        f"{scored}_{measure.score}": evaluation.report.scores[measure.score].value,
        "learning_curve": read_curve_sentence(run),
        "remarks": [*setup.remarks, *outcome.remarks, *filter(None, [changes.mirrored])],
    }


def result_lines(run: RunFolder, setup: TrainingSetup, outcome: Outcome, evaluation: FinalEvaluation) -> list[str]:
    """Return lines with the test score and the trained model."""
    report, score = evaluation.report, score_lines(evaluation.report)[0]
    is_multi_label = isinstance(report, MultiLabelReport)
    baseline_score = percent(report.chance) if is_multi_label else percent(report.majority.top1)
    baseline = "a random order" if is_multi_label else f"always predicting {report.majority.name!r}"
    return [
        f"{scored_part(report)} {setup.data.primary_metric.title}: {score.value} (95 % interval {score.interval}, "
        f"{images_text(report.images, report.groups)}); {baseline}: {baseline_score}",
        *filter(None, [usual_metric_line(report, setup.data.images.name), read_curve_sentence(run)]),
        *([calibration_line(evaluation.calibrated)] if evaluation.calibrated else []),
        *filter(None, [evaluation.changes.mirrored]),
        f"trained: {setup.describe()}, {setup.settings.method}, "
        f"epochs: {outcome.epochs_done(setup.settings.epochs)}, "
        f"{total_seconds(setup.tune_record, outcome):.0f} s; "
        f"kept: {kept_model_text(run, setup, outcome, evaluation.changes)}",
    ]


def kept_model_text(run: RunFolder, setup: TrainingSetup, outcome: Outcome, changes: PostTrainingChanges) -> str:
    """Return which model was kept, and why, as text; with the model's image size if tuning used another size."""
    text = describe_kept_model(setup.tune_record, outcome, changes, setup.is_selected)
    height, width = read_card(run).backbone.image_size
    is_tuned_size = (height, width) == setup.card.backbone.image_size
    return text if is_tuned_size else f"{text}; the model takes images of {height}x{width} pixels"


def read_curve_sentence(run: RunFolder) -> str | None:
    """Return the stored sentence about a run's learning curve; None for a run without a curve."""
    return run.read_json(CURVE_FILE)["sentence"] if (run.path / CURVE_FILE).is_file() else None


def calibration_line(fit: Calibration) -> str:
    """Return a line on the calibration error before and after temperature scaling, or why there is no scaling."""
    (before, after), images = fit.error, counted(fit.images, "validation image")
    if fit.temperature == 1.0:
        too_few = f"{'is' if fit.images == 1 else 'are'} too few to fit a temperature"
        reason = too_few if fit.images < MIN_IMAGES else "show no need for a temperature"
        return f"confidence: off by {percent(before)} on average; {images} {reason}"
    return (
        f"confidence: off by {percent(before)} on average before, by {percent(after)} after a temperature of "
        f"{fit.temperature:.2f}, fitted to {images}"
    )


def next_steps(run: RunFolder, setup: TrainingSetup) -> list[str]:
    """Return suggested next commands, each with a shell comment."""
    settings = setup.settings
    path = shlex.quote(str(run.path))
    steps = [f"paucal predict {path} new_images/     # classify images with this model"]
    if not setup.is_selected and (run.path / HELD_OUT_FILE).is_file():
        # Do not suggest longer training, since without validation images no score shows whether that helps.
        return [*steps, f"paucal next {path} more_images/     # which images to label next"]
    contrast = method_of(settings).suggested_comparison
    if contrast is not None:
        steps.append(f"{command_with_changed_settings(setup, method=contrast[0])}     # {contrast[1]}")
    if settings.data == "digits":
        steps.append("paucal train photos/     # your own images, one folder per class")
    else:
        longer = command_with_changed_settings(setup, epochs=2 * settings.epochs_or_1)
        if settings.time is not None:
            longer = command_with_changed_settings(setup, time=f"{max(1, round(parse_duration(settings.time) / 30))}m")
        steps.append(f"{longer}     # train for longer")
    return steps


def command_with_changed_settings(setup: TrainingSetup, **changes: Any) -> str:
    """Return the `paucal train` command of this run with changed settings and without `--output`."""
    settings = {**vars(setup.settings), **changes}
    given_names = {name for name, origin in setup.origins.items() if origin in ("flag", "config", "given")}
    # Settings that depend on a changed method or on a changed number of epochs are chosen again.
    dropped = {"data", "output", "overwrite", "schedule_epochs" if "epochs" in changes else ""}
    if "method" in changes:
        dropped |= unused_settings_of(replace(setup.settings, method=changes["method"]))
    defaults = {name: field.default for name, field in setting_fields(TrainSettings).items()}
    arguments = ["paucal", "train", *([settings["data"]] if settings["data"] != "digits" else [])]
    if "init" in given_names and settings["init"] is None:
        arguments += ["--init", "none"]  # without the flag, pretrained weights would be chosen
    for name, value in settings.items():
        if name in changes or (name in given_names - dropped and value != defaults[name]):
            arguments += flag_words(name, value)
    return shlex.join(arguments)


def step_rows(
    record: TuneRecord | None, outcome: Outcome, changes: PostTrainingChanges, measure: PrimaryMetric
) -> list[dict[str, Any]]:
    """Return table rows for the candidates, the probe, the trials and the fine-tuning of an auto-tuned run.

    A row has the name, score and duration, and whether its model is the final model.
    """
    if record is None or record.probe is None:
        return []
    probe, images = record.probe, record.probe.details.get("images", 0)
    rows = [
        _step_row(f"candidate {step.name}, by cross-validation on some training images", step.score, step.seconds)
        for step in record.candidate_scores
    ]
    sides = probe.details.get("img_size")
    size = "x".join(map(str, sides)) if isinstance(sides, Sequence) else "?"
    text = f"probe: linear head on frozen features of {images} images, {size} pixels"
    if "head" in probe.details:  # missing in earlier runs
        text += f", {probe.details['head']}"
    keeps_first_model = not outcome.best and not changes.epochs
    rows.append(_step_row(text, probe.score, probe.seconds, kept=keeps_first_model and record.first_model is probe))
    if (unlabelled_step := record.unlabelled) is not None:
        details, is_kept = unlabelled_step.details, record.first_model is unlabelled_step
        decision = f", {details['head']}, preferred by cross-validation" if is_kept else ": not kept"
        title = f"probe with {counted(details['images'], 'image')} without labels{decision}"
        score = unlabelled_step.score if is_kept else None
        rows.append(_step_row(title, score, unlabelled_step.seconds, kept=keeps_first_model and is_kept))
    rows += [_step_row(f"trial: {step.name}", step.score, step.seconds) for step in record.trials]
    if outcome.rows:
        scores = [row[measure.column] for row in outcome.rows if measure.column in row]
        name = "tuned: the best epoch" if scores else "tuned: the last epoch"
        is_kept = bool(outcome.best) and not changes.epochs
        rows.append(_step_row(name, max(scores, default=None), outcome.seconds, kept=is_kept))
    if changes.epochs:
        rows.append(_step_row(_describe_final_weights(changes), changes.score, 0.0, kept=True))
    return rows


def _describe_final_weights(changes: PostTrainingChanges) -> str:
    epochs = ", ".join(map(str, changes.epochs))
    text = f"epoch {epochs}" if len(changes.epochs) == 1 else f"the mean of the weights of epochs {epochs}"
    return f"{text}, with a head fitted to its features ({changes.head})" if changes.head else text


def describe_kept_model(
    record: TuneRecord | None, outcome: Outcome, changes: PostTrainingChanges, selected: bool
) -> str:
    """Return which weights the final model has, and why, as text; `selected` says whether an epoch was selected."""
    if changes.by_loss:
        other_losses = "those of its tuned head and the first model" if changes.head else "the first model's"
        return (
            f"{_describe_final_weights(changes)}: its loss on the validation images is lower than {other_losses}, "
            "at nearly equal accuracy"
        )
    if changes.head:
        weights = _describe_final_weights(changes)
        return f"{weights}: better on the validation images than its tuned head and the first model"
    if changes.epochs:
        return f"{_describe_final_weights(changes)}, better on the validation images than each of them"
    if record is not None and record.probe is not None and not outcome.best:
        if not outcome.rows:
            return record.plan_text
        reason = "no epoch of tuning was better on the validation images"
        if record.first_model is not record.probe:
            return f"the probe that also learned from images without labels: {reason} than both probes"
        return f"the probe: {reason}"
    reason = "the best on the validation images"
    if not selected:
        reason = "the last: there were no validation images to select with"
    return f"epoch {outcome.best.get('epoch', 0):g}, {reason}"


def total_seconds(record: TuneRecord | None, outcome: Outcome) -> float:
    """Return the seconds of a run, from opening the images to the end of training."""
    return outcome.seconds + (0.0 if record is None else record.spent)


def _step_row(name: str, score: float | None, seconds: float, kept: bool = False) -> dict[str, Any]:
    return {"name": name, "score": score, "time": format_duration(seconds), "kept": kept}
