"""Tables and sentences on a finished auto-tuning, for the summary and the report page of a run."""

from collections.abc import Sequence
from typing import Any

from paucal.evaluation.results import PrimaryMetric
from paucal.tasks.classification.auto_tune.record import TuneRecord
from paucal.tasks.classification.finishing import PostTrainingChanges
from paucal.training import Outcome
from paucal.wording import counted, format_duration


def step_rows(
    record: TuneRecord | None, outcome: Outcome, finish: PostTrainingChanges, measure: PrimaryMetric
) -> list[dict[str, Any]]:
    """Return a row per step, with the step's name, score and duration, and whether its model is the final model."""
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
    keeps_first_model = not outcome.best and not finish.epochs
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
        is_kept = bool(outcome.best) and not finish.epochs
        rows.append(_step_row(name, max(scores, default=None), outcome.seconds, kept=is_kept))
    if finish.epochs:
        rows.append(_step_row(_describe_final_weights(finish), finish.score, 0.0, kept=True))
    return rows


def _describe_final_weights(finish: PostTrainingChanges) -> str:
    epochs = ", ".join(map(str, finish.epochs))
    text = f"epoch {epochs}" if len(finish.epochs) == 1 else f"the mean of the weights of epochs {epochs}"
    return f"{text}, with a head fitted to its features ({finish.head})" if finish.head else text


def describe_kept_model(
    record: TuneRecord | None, outcome: Outcome, finish: PostTrainingChanges, selected: bool
) -> str:
    """Return a text on which weights are the run's final model, and why.

    `selected` says whether the epoch was selected on validation images.
    """
    if finish.by_loss:
        other_losses = "those of its tuned head and the first model" if finish.head else "the first model's"
        return (
            f"{_describe_final_weights(finish)}: its loss on the validation images is lower than {other_losses}, "
            "at nearly equal accuracy"
        )
    if finish.head:
        weights = _describe_final_weights(finish)
        return f"{weights}: better on the validation images than its tuned head and the first model"
    if finish.epochs:
        return f"{_describe_final_weights(finish)}, better on the validation images than each of them"
    if record is not None and record.probe is not None and not outcome.best:
        if not outcome.rows:
            return record.plan
        reason = "no epoch of tuning was better on the validation images"
        if record.first_model is not record.probe:
            return f"the probe that also learned from images without labels: {reason} than both probes"
        return f"the probe: {reason}"
    reason = "the best on the validation images"
    if not selected:
        reason = "the last: there were no validation images to select with"
    return f"epoch {outcome.best.get('epoch', 0):g}, {reason}"


def kept_model_score(
    record: TuneRecord | None, outcome: Outcome, finish: PostTrainingChanges, measure: PrimaryMetric
) -> float | None:
    """Return the validation score of the run's final model; None if there are no validation images."""
    if finish.epochs:
        return finish.score
    if not outcome.best and record is not None and record.first_model is not None:
        return record.first_model.score
    return outcome.best.get(measure.column)


def total_seconds(record: TuneRecord | None, outcome: Outcome) -> float:
    """Return the seconds of a run, from opening the images to the end of training."""
    return outcome.seconds + (0.0 if record is None else record.spent)


def _step_row(name: str, score: float | None, seconds: float, kept: bool = False) -> dict[str, Any]:
    return {"name": name, "score": score, "time": format_duration(seconds), "kept": kept}
