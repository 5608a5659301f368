"""Explanations of a classifier's scores in sentences, for readers who do not know the metrics."""

import math
from collections.abc import Sequence
from statistics import median

from paucal.evaluation.curves import SPEED_COLUMN, best_epoch, validation_score, with_speed
from paucal.evaluation.results import MultiLabelReport, Report
from paucal.metrics.intervals import Score, images_needed
from paucal.report.inputs import RunFiles, Summary
from paucal.wording import counted, format_duration, images_text, join_first_few, percent, was_or_were

MAX_INTERVAL_WIDTH = 0.1  # width of a score's confidence interval above which there is a warning
TARGET_HALF_WIDTH = 0.03  # half-width of a confidence interval that is narrow enough to compare models
FEW_TEST_IMAGES = 20  # number of test images below which there is a warning
FEW_IMAGES = 10  # number of test images of a class below which there is a warning
MAX_SCORE_GAP = 0.05  # excess of the validation score over the test score above which there is a warning
MAX_NAMES = 5  # largest number of class names in a sentence


def headline_sentences(files: RunFiles) -> list[str]:
    """Return the result in a few sentences: the test score with its interval, and the score of a trivial classifier."""
    report = files.evaluation
    if report is None:
        return [*_validation_sentence(files), "The model has not been evaluated on test images yet."]
    last_epoch = "No images were kept for validation, so the model of the last epoch was kept."
    selection_note = [] if files.summary.selected else [last_epoch]
    tested = images_text(report.images, report.groups, "test image")
    if isinstance(report, MultiLabelReport):
        score = report.scores["map"]
        return [
            f"The mean average precision (mAP) is {percent(score.value)} on {tested} that {was_or_were(report.images)} "
            "not used in training. The mAP measures how high the images of a class rank when all images are sorted by "
            "their predicted probability of the class, averaged over "
            f"{counted(len(report.scored), 'class', 'classes')}. At 100 %, the images of each class rank above all "
            "other images.",
            "With this many images, the mAP on further images of the same kind most likely lies "
            f"{_format_range(score)} ({percent(report.level, 'g')} interval). A random order would reach "
            f"{percent(report.chance)}.",
            *selection_note,
        ]
    top1 = report.scores["top1"]
    majority, rank = report.majority, report.majority.rank(len(report.per_class))
    split = "training" if report.repeats or majority.from_train else "test"
    baseline = (
        f"Always predicting {majority.name!r}, {rank} {split} images, would be right for {percent(majority.top1)}."
    )
    if report.repeats:
        return [
            f"In a cross-validation with {report.folds} folds, models fitted to the other folds predicted the right "
            f"class for {percent(top1.value)} of {report.images} images (mean of {report.repeats} repeats). There are "
            "too few images to keep a test set, so the final model was fitted to all images.",
            f"Its accuracy on further images of the same kind most likely lies {_format_range(top1)} "
            f"({percent(report.level, 'g')} interval, which accounts for the images shared between fits).",
            baseline,
        ]
    return [
        f"The model predicted the right class for {percent(top1.value)} of {tested} that {was_or_were(report.images)} "
        "not used in training.",
        "With this many images, the accuracy on further images of the same kind most likely lies "
        f"{_format_range(top1)} ({percent(report.level, 'g')} interval).",
        baseline,
        *selection_note,
    ]


def _format_range(score: Score) -> str:
    return f"between {percent(score.low or 0.0)} and {percent(1.0 if score.high is None else score.high)}"


def warning_sentences(files: RunFiles) -> list[str]:
    """Return warnings about the reliability of the result; the list may be empty."""
    report = files.evaluation
    if report is None:
        return []
    remedy = ""
    if isinstance(report, MultiLabelReport):
        score, baseline = report.scores["map"], report.chance
        subject, baseline_text = "mAP", "a random order"
    else:
        score, baseline = report.scores["top1"], report.majority.top1
        subject, baseline_text = "accuracy", f"always predicting {report.majority.name!r}"
        if report.groups is None:
            n_needed = images_needed(score.value, TARGET_HALF_WIDTH)
            precision = f"± {100 * TARGET_HALF_WIDTH:.0f} points"
            remedy = f"; about {n_needed} test images would give the accuracy to {precision}"
    sentences = []
    if (score.low or 0.0) <= baseline:
        sentences.append(
            f"The {subject} is not clearly above that of {baseline_text} ({percent(baseline)}): the model may have "
            "learned nothing useful. Check the curves and the labels."
        )
    width = (1.0 if score.high is None else score.high) - (score.low or 0.0)
    if width > MAX_INTERVAL_WIDTH:
        sentences.append(
            f"The interval is {100 * width:.0f} points wide because there are only "
            f"{images_text(report.images, report.groups)} to test on{remedy}. "
            "Do not choose between models whose scores differ by less than this width."
        )
    sentences += _class_warnings(report)
    validation = find_kept_validation_score(files)
    if validation is None or score.high is None:
        return sentences
    if validation > score.high and validation - score.value > MAX_SCORE_GAP:
        sentences.append(
            f"The score on validation images ({percent(validation)}) is much higher than on test images "
            f"({percent(score.value)}): the test images may differ from the training images, or the validation images "
            "may be too similar to the training images."
        )
    return sentences


def _class_warnings(report: Report) -> list[str]:
    few_images = f"fewer than {FEW_IMAGES} test images, too few for a reliable score"
    if isinstance(report, MultiLabelReport):
        absent = [f"{row.name} ({row.images})" for row in report.per_class if row.ap is None]
        small = [f"{row.name} ({row.images})" for row in report.scored if row.images < FEW_IMAGES]
        unlearned = [f"{row.name} ({row.images})" for row in report.scored if row.ap and row.ap.value <= row.share]
        warnings = [
            (absent, "class has", "classes have", "no test image and no score"),
            (small, "class has", "classes have", few_images),
            (unlearned, "class is", "classes are", "recognised no better than by chance"),
        ]
    else:
        small = [f"{row.name} ({row.images})" for row in report.per_class if row.images < FEW_IMAGES]
        missed = [row.name for row in report.per_class if row.recall is not None and row.recall.value == 0]
        warnings = [
            ([] if report.repeats else small, "class has", "classes have", few_images),
            (missed, "class was", "classes were", "never recognised"),
        ]
    sentences = []
    for names, singular, plural, text in warnings:
        if names:
            more = "" if len(names) <= MAX_NAMES else f" and {len(names) - MAX_NAMES} more"
            sentences.append(f"{counted(len(names), singular, plural)} {text}: {', '.join(names[:MAX_NAMES])}{more}.")
    return sentences


def reliability_warnings(images: int, unseen: Sequence[str], noun: str, consequence: str) -> list[str]:
    """Return warnings about the scores of a detector or segmenter on `images` test images; 0 means not evaluated yet.

    `unseen` are the names of the classes that no test `noun` ("image" or "mask") shows.
    """
    sentences = []
    if 0 < images < FEW_TEST_IMAGES:
        sentences.append(f"With only {counted(images, 'test image')}, the score and its interval are both unreliable.")
    if unseen:
        sentences.append(f"No test {noun} shows {join_first_few(unseen, 8)}: {consequence} is unknown.")
    return sentences


def _validation_sentence(files: RunFiles) -> list[str]:
    value = find_kept_validation_score(files)
    if value is None:
        return []
    if any("val_map" in row for row in files.rows):
        result = f"The mean average precision on the validation images is {percent(value)}"
    else:
        result = f"The model predicted the right class for {percent(value)} of the validation images"
    return [f"{result}. The epoch was selected on these images, so this score is slightly optimistic."]


def find_kept_validation_score(files: RunFiles) -> float | None:
    """Return the validation accuracy or mAP of the model that was kept; None if the score is unknown."""
    if files.summary.kept_val_score is not None:
        return files.summary.kept_val_score
    epoch = find_kept_epoch(files)
    for number, row in enumerate(files.rows, start=1):
        if row.get("epoch", number) == epoch and math.isfinite(validation_score(row)):
            return validation_score(row)
    return None


def find_kept_epoch(files: RunFiles) -> float | None:
    """Return the epoch whose weights were kept; None if unknown, or if weights of several epochs were averaged."""
    if files.summary.kept is not None:
        return None
    return best_epoch(files.rows) if files.summary.best_epoch is None else files.summary.best_epoch


def trained_model_rows(files: RunFiles) -> dict[str, str | None]:
    """Return a dict from row name to text that describes the trained model; unknown values are None."""
    summary, epoch = files.summary, find_kept_epoch(files)
    return {
        **model_rows(summary),
        "epochs": None if summary.epochs is None else f"{summary.epochs:g}",
        "epoch kept": None if epoch is None else f"{epoch:g}{'' if summary.selected else ', the last'}",
        "kept": summary.kept,
        **cost_rows(files),
    }


def model_rows(summary: Summary) -> dict[str, str | None]:
    """Return a dict from row name to text that describes the model and the method; unknown values are None."""
    return {
        "model": summary.model,
        "parameters": None if summary.parameters is None else f"{summary.parameters:,}",
        "token grid": summary.grid,
        "method": summary.method,
    }


def cost_rows(files: RunFiles) -> dict[str, str | None]:
    """Return a dict from row name to text with the time, speed and memory of a run; unknown values are None."""
    summary, images = files.summary, count_training_images(files.summary)
    rows = [] if images is None else with_speed(files.rows, images)
    speed = None
    if speeds := [row[SPEED_COLUMN] for row in rows if SPEED_COLUMN in row]:
        speed = f"{median(speeds):.3g} training images per second, including the validation of each epoch"
    return {
        "training time": None if summary.seconds is None else format_duration(summary.seconds),
        "speed": speed,
        "peak memory": None if summary.peak_memory is None else f"{summary.peak_memory / 2**30:.2f} GiB",
    }


def count_training_images(summary: Summary) -> int | None:
    """Return the number of training images per epoch; None if the number is not recorded."""
    if summary.epoch_images is not None:
        return summary.epoch_images
    return next((part.images for part in summary.parts if part.name == "train"), None)


def describe_confidence(files: RunFiles) -> str | None:
    """Return a sentence on how temperature scaling changed the probabilities; None if no temperature was fitted."""
    confidence = files.summary.confidence
    if confidence is None or confidence.temperature == 1.0:
        return None
    verb = "reduces" if confidence.after < confidence.before else "changes"
    return (
        f"Confidence and accuracy differed by {percent(confidence.before)} on average. A temperature of "
        f"{confidence.temperature:.2f}, fitted to {counted(confidence.images, 'validation image')}, {verb} this "
        f"difference to {percent(confidence.after)}. The scores on this page are computed with this temperature, which "
        "does not change the predicted classes."
    )
