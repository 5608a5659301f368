"""Scores of a classifier's predictions on images that it was not trained on."""

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from paucal.evaluation.calibration import calibration_error, reach_thresholds
from paucal.evaluation.predictions import Predictions, majority_classes, require_class_count, require_finite
from paucal.evaluation.results import ClassificationReport, ClassRow, Majority, MultiLabelReport, MultiLabelRow
from paucal.metrics.intervals import Bootstrap, Score, mirrored_percentile, percentile, proportion_score
from paucal.metrics.measures import (
    AveragePrecision,
    Mean,
    Measure,
    macro_f1,
    mean_over_classes,
    mean_per_class,
    multi_label_macro_f1,
    roc_auc,
    value_of,
)
from paucal.types import UserError

BIASED_SCORES = {"macro_f1", "calibration_error"}  # scores whose bootstrap distribution is biased


def classification_report(
    predictions: Predictions,
    classes: Sequence[str],
    train_labels: Tensor | None = None,
    *,
    seed: int = 0,
    n_bootstrap: int = 1000,
) -> ClassificationReport:
    """Score a classifier's predictions, with confidence intervals that reflect the choice of test images.

    Fractions of images (top-1, top-5, recall) have Wilson intervals, which remain valid if no image or every image is
    classified correctly. Balanced accuracy and loss have percentile intervals of a bootstrap over images. For macro-F1
    and calibration error, the interval is the union of the percentile interval and its mirror image, because resampling
    decreases macro-F1 and increases the calibration error. In simulations with 100 classes and ten images per class,
    the 95 % union intervals covered the true macro-F1 in 99 % of the cases, and percentile intervals covered it in 65 %
    of the cases. With three images per class, these numbers were 81 % and 19 %. If images belong to groups of
    similar images (`Predictions.groups`), whole groups are resampled, and `proportion_score` widens the intervals of
    fractions.

    The intervals do not include the randomness of training; train with several seeds to measure it. The calibration
    error is the expected calibration error of the top label over 15 bins of equal width (Guo et al. 2017). An error of
    0.1 means that confidence and accuracy differ by ten percentage points on average. With few images, the estimated
    error is too high, so its interval may exclude 0 even for a perfectly calibrated model.

    The majority class is the most frequent class of `train_labels`, or of the test images if `train_labels` is None.
    """
    if n_bootstrap < 2:
        raise ValueError(f"expected n_bootstrap >= 2, got {n_bootstrap}")
    if len(predictions) == 0:
        raise UserError("there are no images to evaluate: give a folder or a split that contains images.")
    require_class_count(predictions, classes)
    labels, n_classes = predictions.labels, len(classes)
    if labels.min() < 0 or labels.max() >= n_classes:
        n_unlabelled = int(((labels < 0) | (labels >= n_classes)).sum())
        raise UserError(
            f"{n_unlabelled} of {len(labels)} images have no label among the {n_classes} classes: add labels."
        )
    require_finite(predictions)
    confusion = (
        (n_classes * labels + predictions.predicted).bincount(minlength=n_classes**2).view(n_classes, -1).numpy()
    )
    most_frequent = majority_classes(labels if train_labels is None else train_labels)
    if most_frequent[-1] >= n_classes:
        raise ValueError(f"expected training labels in [0, {n_classes}), got {most_frequent[-1]}")
    class_fractions = labels.bincount(minlength=n_classes).double() / len(predictions)
    # Of several equally frequent classes, the one that gives the strongest baseline is chosen.
    majority = max(most_frequent, key=lambda label: float(class_fractions[label]))
    bootstrap = Bootstrap(seed, n_bootstrap, groups=predictions.groups)
    return ClassificationReport(
        len(predictions),
        bootstrap.level,
        _scores_with_intervals(predictions, bootstrap),
        Majority(classes[majority], float(class_fractions[majority]), train_labels is not None, len(most_frequent)),
        _class_rows(predictions, confusion, classes),
        confusion.tolist(),
        groups=predictions.n_groups,
    )


def quick_scores(predictions: Predictions) -> dict[str, float]:
    """Return scores without intervals, fast enough for every epoch.

    These are "loss" (nats), "top1" and "balanced_accuracy", or "loss" and "map" if images may have several labels.
    Non-finite logits raise no error. They give a non-finite loss, which the trainer checks, and a "map" of 0.
    """
    if predictions.is_multi_label:
        loss = float(np.mean(multi_label_losses(predictions)))
        measure = AveragePrecision(predictions.logits, predictions.labels, interpolated=False)
        return {"loss": loss, "map": value_of(measure, len(predictions)) if np.isfinite(loss) else 0.0}
    labels, is_correct = predictions.labels, predictions.predicted == predictions.labels
    n_classes = predictions.logits.shape[1]
    n_true = torch.bincount(labels, minlength=n_classes)
    recall = torch.bincount(labels, is_correct.double(), minlength=n_classes) / n_true.clamp(min=1)
    return {
        "loss": float(F.cross_entropy(predictions.logits, labels)),
        "top1": float(is_correct.double().mean()),
        "balanced_accuracy": float(recall.sum() / (n_true > 0).sum()),
    }


def _scores_with_intervals(predictions: Predictions, bootstrap: Bootstrap) -> dict[str, Score]:
    labels, is_correct = predictions.labels, predictions.predicted == predictions.labels
    n_images, n_classes = len(predictions), predictions.logits.shape[1]
    losses = F.cross_entropy(predictions.logits, labels, reduction="none")
    measures: dict[str, Measure] = {"balanced_accuracy": mean_per_class(is_correct.numpy(), labels.numpy(), n_classes)}
    if n_classes == 2 and len(labels.unique()) == 2:
        measures["roc_auc"] = roc_auc(predictions.logits[:, 1].double() - predictions.logits[:, 0].double(), labels)
    measures["macro_f1"] = macro_f1(labels.numpy(), predictions.predicted.numpy(), n_classes)
    measures["calibration_error"] = calibration_error(predictions)
    measures["loss"] = Mean(losses.double().numpy())
    scores = {"top1": proportion_score(is_correct.numpy(), groups=predictions.groups)}
    if n_classes > 5:
        is_in_top_5 = (predictions.logits.topk(5, dim=1).indices == labels[:, None]).any(1)
        scores["top5"] = proportion_score(is_in_top_5.numpy(), groups=predictions.groups)
    for name, draws in zip(measures, bootstrap.scores([*measures.values()], n_images), strict=True):
        with_interval = mirrored_percentile if name in BIASED_SCORES else percentile
        scores[name] = with_interval(value_of(measures[name], n_images), draws)
    return scores


def _class_rows(predictions: Predictions, confusion: np.ndarray, classes: Sequence[str]) -> list[ClassRow]:
    labels, groups = predictions.labels.numpy(), predictions.groups
    is_correct = predictions.predicted.numpy() == labels
    columns = confusion.diagonal().tolist(), confusion.sum(1).tolist(), confusion.sum(0).tolist()
    rows = []
    for label, (name, n_correct, images, predicted) in enumerate(zip(classes, *columns, strict=True)):
        precision, _, f1 = _precision_recall_f1(n_correct, images, predicted)
        is_class = labels == label
        class_groups = None if groups is None else groups[is_class]
        recall = proportion_score(is_correct[is_class], groups=class_groups) if images else None
        rows.append(ClassRow(name, images, predicted, precision, recall, f1))
    return rows


def _precision_recall_f1(n_correct: int, images: int, predicted: int) -> list[float | None]:
    ratios = (n_correct, predicted), (n_correct, images), (2 * n_correct, images + predicted)
    return [numerator / denominator if denominator else None for numerator, denominator in ratios]


MAX_DRAWS, MIN_DRAWS = 1000, 200  # largest and smallest number of resampled sets of images
MAX_WORK = 400_000_000  # largest product of images, classes and draws; computing it takes about ten seconds


def multi_label_report(
    predictions: Predictions, classes: Sequence[str], thresholds: Sequence[float]
) -> MultiLabelReport:
    """Score a multi-label classifier's predictions, with 95 % bootstrap intervals over the choice of test images.

    The average precision of a class is the area under the class's precision-recall curve (as in torchmetrics). The
    score "map" is the unweighted mean over the classes that have a positive test image. Resampling biases average
    precision and F1, so their intervals are the union of the percentile interval and its mirror image. The number of
    resampled sets is 1000 if there are at most 400,000 labels (images times classes). With more labels, the number of
    resampled sets is lower, but at least 200. F1 and the counts per class treat a class as predicted if its probability
    is at least its threshold.
    """
    require_class_count(predictions, classes)
    if not (predictions.labels == 1).any():
        raise UserError("none of the images to evaluate has a label: give labelled images.")
    require_finite(predictions)
    labels, n_images = predictions.labels, len(predictions)
    draws = int(min(MAX_DRAWS, max(MIN_DRAWS, MAX_WORK // max(1, labels.numel()))))
    measure = AveragePrecision(predictions.logits, labels, interpolated=False)
    is_predicted = reach_thresholds(predictions.probabilities, thresholds)
    f1 = multi_label_macro_f1(labels, is_predicted)
    losses, bootstrap = Mean(multi_label_losses(predictions)), Bootstrap(draws=draws, groups=predictions.groups)
    precisions, f1_draws, loss_draws = bootstrap.scores([measure.per_class, f1, losses], n_images)
    scores = {
        "map": mirrored_percentile(value_of(measure, n_images), mean_over_classes(precisions)),
        "macro_f1": mirrored_percentile(value_of(f1, n_images), f1_draws),
        "loss": percentile(value_of(losses, n_images), loss_draws),
    }
    is_known, is_positive = labels >= 0, labels == 1
    is_counted = is_predicted & is_known
    masks = is_known, is_counted & is_positive, is_positive, is_counted
    values = measure.per_class(np.ones((1, n_images)))[0].tolist()
    columns = thresholds, values, precisions.T, *(mask.sum(0).tolist() for mask in masks)
    rows = []
    for name, threshold, value, class_draws, n_known, n_correct, images, predicted in zip(
        classes, *columns, strict=True
    ):
        average_precision = None if np.isnan(value) else mirrored_percentile(value, class_draws)
        share = images / n_known if n_known else 0.0
        f1_parts = _precision_recall_f1(n_correct, images, predicted)
        rows.append(MultiLabelRow(name, images, share, average_precision, float(threshold), predicted, *f1_parts))
    return MultiLabelReport(n_images, bootstrap.level, scores, rows, predictions.n_groups)


def multi_label_losses(predictions: Predictions) -> NDArray[np.float64]:
    """Return each image's mean binary cross-entropy over the classes whose label is known, (N,) in nats."""
    is_known = (predictions.labels >= 0).double()
    targets = predictions.labels.clamp(min=0).double()
    losses = F.binary_cross_entropy_with_logits(predictions.logits.double(), targets, reduction="none")
    return ((losses * is_known).sum(1) / is_known.sum(1).clamp(min=1)).numpy()
