"""Scores of many resampled image sets at once, from counts."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

CALIBRATION_BINS = 15
# Bounds the memory of one chunk of draws to some tens of megabytes, whatever the number of images.
CHUNK_IMAGES = 2_000_000


@dataclass(frozen=True)
class ImageTable:
    """What the scores need of each image, as arrays of N rows.

    Attributes:
        labels: true class.
        predicted: class of the highest logit.
        confidence: probability of the predicted class, float32.
        losses: negative log-likelihood of the true class, in nats.
        n_classes: K.
    """

    labels: np.ndarray
    predicted: np.ndarray
    confidence: np.ndarray
    losses: np.ndarray
    n_classes: int

    def __len__(self) -> int:
        return len(self.labels)


def calibration_bin(confidence: np.ndarray) -> np.ndarray:
    """Return each confidence's bin: 15 of equal width, and one more for exactly 1, as in torchmetrics."""
    edges = np.linspace(0, 1, CALIBRATION_BINS + 1, dtype=np.float32)
    return np.searchsorted(edges, confidence, side="right") - 1


def bootstrap(table: ImageTable, n_draws: int, seed: int) -> dict[str, np.ndarray]:
    """Resample the images with replacement and return (n_draws,) values of each score.

    Draws are the same for a seed, whatever the machine, and no global random state is touched.
    """
    chunks = [scores_of(table, rows) for rows in _resamples(len(table), n_draws, seed)]
    return {name: np.concatenate([chunk[name] for chunk in chunks]) for name in chunks[0]}


def scores_of(table: ImageTable, rows: np.ndarray) -> dict[str, np.ndarray]:
    """Balanced accuracy, macro-F1, calibration error and loss per row of image numbers, (D, n) to (D,).

    Balanced accuracy is the mean recall over the classes that occur among the labels; macro-F1 the mean over
    those that occur among labels or predictions (both as in scikit-learn).
    """
    labels, predicted = table.labels[rows], table.predicted[rows]
    correct = labels == predicted
    n_true = _counts(labels, table.n_classes)
    n_predicted = _counts(predicted, table.n_classes)
    n_correct = _counts(labels, table.n_classes, correct.astype(np.float64))
    recall = n_correct / np.maximum(n_true, 1)
    either = n_true + n_predicted
    f1 = 2 * n_correct / np.maximum(either, 1)
    surplus = table.confidence[rows].astype(np.float64) - correct
    bins = calibration_bin(table.confidence)[rows]
    return {
        "balanced_accuracy": recall.sum(1) / (n_true > 0).sum(1),
        "macro_f1": f1.sum(1) / (either > 0).sum(1),
        "calibration_error": np.abs(_counts(bins, CALIBRATION_BINS + 1, surplus)).sum(1) / rows.shape[1],
        "loss": table.losses[rows].mean(1),
    }


def _resamples(n_images: int, n_draws: int, seed: int) -> Iterator[np.ndarray]:
    generator = np.random.default_rng(seed)
    per_chunk = max(1, CHUNK_IMAGES // n_images)
    for start in range(0, n_draws, per_chunk):
        yield generator.integers(n_images, size=(min(per_chunk, n_draws - start), n_images))


def _counts(codes: np.ndarray, n_codes: int, weights: np.ndarray | None = None) -> np.ndarray:
    """Sum weights (or ones) per code within each row: (D, n) codes in [0, n_codes) -> (D, n_codes)."""
    offsets = np.arange(len(codes))[:, None] * n_codes
    flat = None if weights is None else weights.ravel()
    return np.bincount((codes + offsets).ravel(), flat, len(codes) * n_codes).reshape(len(codes), n_codes)
