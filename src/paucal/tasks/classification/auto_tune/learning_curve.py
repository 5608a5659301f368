"""Learning curve of the first model: accuracy against training images per class, and a forecast for twice as many.

Logistic regression on the winner's features is fitted to 1, 2, 5, ... images of each class, drawn from the other folds
of a cross-validation, and scored on the held-out fold. The network is frozen, so all fits read the same features.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from paucal.data.randomness import derive_seed
from paucal.evaluation.plots import BLUE, ORANGE, save_figure
from paucal.evaluation.protocols.classifier import can_fold_groups
from paucal.evaluation.protocols.few_labels import draw_few
from paucal.metrics.intervals import Score, cross_validated, independent_images, wilson_share
from paucal.runs import RunFolder
from paucal.tasks.classification.auto_tune.head_race import repeated_folds
from paucal.tasks.classification.auto_tune.probe import (
    ABSENT,
    MAX_COMPARED,
    fit_regression,
    standardise,
    stratified_sample,
)
from paucal.wording import percent

FILE = "learning_curve.json"
DRAWS = 1000
SLOPE_POINTS = 3  # last points of the curve, whose slope the forecast extends


@dataclass(frozen=True)
class CurvePoint:
    """Cross-validated accuracy of heads that are fitted to a number of images per class, on average."""

    per_class: float
    accuracy: Score


@dataclass(frozen=True)
class LearningCurve:
    """Accuracy against images per class, with a forecast.

    Attributes:
        points: Points in ascending order; for the last one, heads are fitted to all images outside the fold they score.
        per_class: Images per class that the model itself has, on average.
        forecast: Accuracy with twice as many images; None with fewer than three points.
        gain: Forecast minus the model's accuracy; None without a forecast. An upper estimate for curves that flatten.
    """

    points: tuple[CurvePoint, ...]
    per_class: float
    forecast: Score | None = None
    gain: float | None = None

    def __str__(self) -> str:
        last = f"{percent(self.points[-1].accuracy.value)} of held-out images at {self.points[-1].per_class:.3g} images"
        if self.forecast is None or self.gain is None:
            return f"learning curve of the first model: {last} per class; too few points for a forecast"
        low, high = self.forecast.ends
        return (
            f"learning curve of the first model: {last} per class; twice as many images would give at best about "
            f"{percent(self.forecast.value)} (95 % interval {percent(low)} to {percent(high)}), a gain of "
            f"{100 * self.gain:.1f} points"
        )


def learning_curve(
    features: Tensor, labels: Tensor, n_classes: int, strength: float, seed: int, groups: Tensor | None = None
) -> LearningCurve:
    """Measure the learning curve of a head on frozen (N, D) features, with labels in [0, K).

    At least two classes have two images or more. The L2 penalty is that of a fit to all images, and is reduced in
    proportion for fewer images. Folds keep (N,) groups whole.
    """
    own_size, subset = len(labels) / n_classes, stratified_sample(labels, MAX_COMPARED, seed)
    features, labels = features[subset], labels[subset]
    groups = groups[subset] if groups is not None and can_fold_groups(labels, groups[subset]) else None
    splits = repeated_folds(labels, seed, groups)
    folds, repeats = len(splits[0]), len(splits)
    counts = list(_round_counts(int(labels.bincount(minlength=n_classes).max() * (folds - 1) / folds)))
    hits = np.zeros((len(counts) + 1, repeats, len(labels)), dtype=bool)
    fit_sizes = np.zeros(len(counts) + 1)
    for repeat, split in enumerate(splits):
        for rows, held_out in split:
            subsets = [rows[draw_few(labels[rows], count, derive_seed(seed, repeat))] for count in counts]
            for index, fit_rows in enumerate([*subsets, rows]):
                standard, share = standardise(features[fit_rows]), len(fit_rows) / len(labels)
                fitted = fit_regression(standard.coordinates, labels[fit_rows], n_classes, strength * share)
                weight, bias = standard.carry_back(fitted.weight, fitted.bias.clamp(min=ABSENT))
                predicted = (features[held_out].double() @ weight.T + bias).argmax(1)
                hits[index, repeat, held_out.numpy()] = (predicted == labels[held_out]).numpy()
                fit_sizes[index] += len(fit_rows) / (n_classes * folds * repeats)
    numbers, sizes_and_hits = None if groups is None else groups.numpy(), zip(fit_sizes, hits, strict=True)
    points = tuple(
        CurvePoint(float(size), cross_validated(right, folds=folds, groups=numbers)) for size, right in sizes_and_hits
    )
    if len(points) < SLOPE_POINTS:
        return LearningCurve(points, own_size)
    count = round(independent_images(hits[-1], folds, groups=numbers))
    return LearningCurve(points, own_size, *_forecast(fit_sizes, hits.mean(1), own_size, count, seed))


def write_curve(run: RunFolder, curve: LearningCurve) -> None:
    """Store a learning curve in a run, with its picture and a sentence about it."""
    run.write_json(FILE, {**asdict(curve), "sentence": str(curve)})
    run.plots.mkdir(parents=True, exist_ok=True)
    save_figure(run.plots / "learning_curve.png", curve_figure(curve))


def curve_figure(curve: LearningCurve) -> Figure:
    """Draw the points with their band, and the forecast."""
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    sizes = [point.per_class for point in curve.points]
    low, high = zip(*(point.accuracy.ends for point in curve.points), strict=True)
    axes.fill_between(sizes, low, high, color=BLUE, alpha=0.15, lw=0)
    axes.plot(sizes, [point.accuracy.value for point in curve.points], color=BLUE, marker="o", label="cross-validated")
    if curve.forecast is not None:
        value, (low, high) = curve.forecast.value, curve.forecast.ends
        error = [[value - low], [high - value]]
        axes.errorbar([2 * curve.per_class], [value], error, color=ORANGE, fmt="s", capsize=3, label="forecast")
    axes.set(xscale="log", xlabel="training images per class", ylabel="accuracy", ylim=(0, 1))
    axes.xaxis.set_major_formatter("{x:.3g}")
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right", fontsize=8)
    return figure


def _round_counts(limit: int) -> Iterator[int]:
    """Yield 1, 2, 5, 10, 20, ... up to a limit, which is excluded."""
    for power in range(7):
        yield from (step * 10**power for step in (1, 2, 5) if step * 10**power < limit)


def _forecast(
    fit_sizes: NDArray[np.float64], shares: NDArray[np.float64], own_size: float, count: int, seed: int
) -> tuple[Score, float]:
    """Extend the errors as a power law to twice the model's images; return the accuracy and the gain there.

    The points have (P,) images per class, and a (P, N) share of the repeats in which each image was right. The interval
    comes from a bootstrap with the effective number of independent images, see `cross_validated`. A forecast below the
    present accuracy counts as no gain.
    """
    images = shares.shape[1]
    samples = np.random.default_rng(seed).integers(images, size=(DRAWS, max(1, count)))
    sizes, shares = fit_sizes[-SLOPE_POINTS:], shares[-SLOPE_POINTS:]
    errors, mean_errors = np.stack([1 - share[samples].mean(1) for share in shares]), 1 - shares.mean(1)
    values = [_extrapolate(sizes, mean_errors[:, None], size)[0] for size in (own_size, 2 * own_size)]
    low, high = np.quantile(_extrapolate(sizes, errors, 2 * own_size), [0.025, 0.975])
    if not mean_errors[-1]:  # samples of images that are all right do not vary
        low = wilson_share(1.0, samples.shape[1]).ends[0]
    return Score(float(values[1]), float(low), float(high)), float(values[1] - values[0])


def _extrapolate(sizes: NDArray[np.float64], errors: NDArray[np.float64], size: float) -> NDArray[np.float64]:
    """Extrapolate (P, D) errors to a size by a power law through the last error, and return the (D,) accuracies.

    The exponent is the least-squares slope of the logarithms, limited to curves whose error falls.
    """
    x, y = np.log(sizes), np.log(np.maximum(errors, 1e-3))
    centred = (x - x.mean())[:, None]
    slope = np.minimum(0.0, (centred * y).sum(0) / (centred**2).sum())
    return 1 - errors[-1] * (size / sizes[-1]) ** slope
