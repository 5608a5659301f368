"""The measures of linear classifiers that have a name in settings."""

from typing import Literal

from torch import Tensor

from paucal.metrics.measures import Mean, MeanPerClass, Measure, hits
from paucal.metrics.ranking import AveragePrecision, RocAuc

MetricName = Literal["accuracy", "mean_per_class", "map", "map11", "roc_auc"]
TITLES = {
    "accuracy": "accuracy",
    "mean_per_class": "mean per class",
    "map": "mAP",
    "map11": "11-point mAP",
    "roc_auc": "ROC-AUC",
}


def measure_of(name: MetricName, scores: Tensor, labels: Tensor) -> Measure:
    """Return the measure of a metric.

    Args:
        name: "accuracy" and "mean_per_class" take (N,) labels; "roc_auc" takes (N,) labels of two classes; "map", the
            mean over classes of the average precision, and "map11", of the 11-point interpolated one (PASCAL VOC
            2007), take (N, K) labels 1, 0 or -1 (to be ignored for that class).
        scores: (N, K).
        labels: as above.

    Raises:
        ValueError: the labels are not of that kind.
    """
    if name in ("map", "map11"):
        return AveragePrecision(scores, labels, interpolated=name == "map11")
    if labels.ndim != 1:
        raise ValueError(f"{name} needs one label per image, got {tuple(labels.shape)}")
    if name == "roc_auc":
        if scores.shape[1] != 2:
            raise ValueError(f"roc_auc needs two classes, got {scores.shape[1]}")
        return RocAuc(scores[:, 1] - scores[:, 0], labels)
    each = hits(scores, labels)
    return Mean(each) if name == "accuracy" else MeanPerClass(each, labels.numpy(), scores.shape[1])
