"""Learning curve of the first model: accuracy against training images per class, and a forecast for twice as many.

Logistic regression on frozen features is fitted to 1, 2, 5, ... images per class from the training folds of a
cross-validation, and scored on the held-out fold.
"""

from dataclasses import asdict, dataclass

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from paucal.data.randomness import derive_seed
from paucal.evaluation.plots import BLUE, ORANGE, save_figure
from paucal.evaluation.protocols.classifier import can_fold_groups
from paucal.evaluation.protocols.few_labels import draw_few
from paucal.metrics.intervals import Score, cross_validated, effective_images, independent_images, wilson_share
from paucal.runs import RunFolder
from paucal.tasks.classification.auto_tune.heads import repeated_folds
from paucal.tasks.classification.auto_tune.probe import MAX_COMPARED, fit_raw_logistic_regression, stratified_sample
from paucal.wording import percent

CURVE_FILE = "learning_curve.json"
BOOTSTRAP_DRAWS = 1000
SLOPE_POINTS = 3  # the forecast's slope is fitted to the last SLOPE_POINTS points of the curve


@dataclass(frozen=True)
class CurvePoint:
    """The mean number of training images per class, and the cross-validated accuracy of heads fitted to these."""

    per_class: float
    accuracy: Score


@dataclass(frozen=True)
class LearningCurve:
    """Accuracy against images per class, with a forecast for twice as many images as the model has."""

    points: tuple[CurvePoint, ...]  # ascending; at the last point, heads are fitted to all images of the training folds
    per_class: float  # mean number of images per class to which the model itself is fitted
    # Accuracy expected for twice as many images; None for a curve of fewer than three points.
    forecast: Score | None = None
    # Forecast minus the accuracy that the same power law gives for the model's own number of images. The gain is too
    # optimistic if the curve flattens.
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


def measure_learning_curve(
    features: Tensor, labels: Tensor, n_classes: int, strength: float, seed: int, groups: Tensor | None = None
) -> LearningCurve:
    """Measure the learning curve of logistic regression on (N, D) frozen features with (N,) labels.

    At least two classes have two images or more. `strength` is the L2 penalty of a fit to all images; for fewer images,
    it is reduced in proportion. `groups` are (N,) groups whose images stay in one fold; None for independent images.
    """
    model_size, subset = len(labels) / n_classes, stratified_sample(labels, MAX_COMPARED, seed)
    features, labels = features[subset], labels[subset]
    groups = groups[subset] if groups is not None and can_fold_groups(labels, groups[subset]) else None
    splits = repeated_folds(labels, seed, groups)
    folds, repeats = len(splits[0]), len(splits)
    max_count = int(labels.bincount(minlength=n_classes).max() * (folds - 1) / folds)
    counts = [count for power in range(7) for step in (1, 2, 5) if (count := step * 10**power) < max_count]
    is_correct = np.zeros((len(counts) + 1, repeats, len(labels)), dtype=bool)
    fit_sizes = np.zeros(len(counts) + 1)
    for repeat, split in enumerate(splits):
        for rows, held_out in split:
            subsets = [rows[draw_few(labels[rows], count, derive_seed(seed, repeat))] for count in counts]
            for index, fit_rows in enumerate([*subsets, rows]):
                penalty = strength * (len(fit_rows) / len(labels))
                weight, bias = fit_raw_logistic_regression(features[fit_rows], labels[fit_rows], n_classes, penalty)
                predicted = (features[held_out].double() @ weight.T + bias).argmax(1)
                is_correct[index, repeat, held_out.numpy()] = (predicted == labels[held_out]).numpy()
                fit_sizes[index] += len(fit_rows) / (n_classes * folds * repeats)
    group_numbers = None if groups is None else groups.numpy()
    points = tuple(
        CurvePoint(float(size), cross_validated(is_point_correct, folds=folds, groups=group_numbers))
        for size, is_point_correct in zip(fit_sizes, is_correct, strict=True)
    )
    if len(points) < SLOPE_POINTS:
        return LearningCurve(points, model_size)
    count = round(independent_images(effective_images(is_correct[-1].mean(0), groups=group_numbers), folds))
    return LearningCurve(points, model_size, *_forecast(fit_sizes, is_correct.mean(1), model_size, count, seed))


def write_curve(run: RunFolder, curve: LearningCurve) -> None:
    """Store a learning curve and a sentence about it in the run folder, and draw its plot."""
    run.write_json(CURVE_FILE, {**asdict(curve), "sentence": str(curve)})
    run.plots.mkdir(parents=True, exist_ok=True)
    save_figure(run.plots / "learning_curve.png", draw_curve(curve))


def draw_curve(curve: LearningCurve) -> Figure:
    """Draw the points of the curve with their confidence band, and the forecast."""
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


def _forecast(
    fit_sizes: NDArray[np.float64], correct_fractions: NDArray[np.float64], model_size: float, count: int, seed: int
) -> tuple[Score, float]:
    """Return the accuracy at twice the model's number of images, and the gain over the model.

    The error is extrapolated by a power law, and the interval comes from a bootstrap over images. `fit_sizes` are the
    (P,) numbers of images per class at the points, and `correct_fractions` the (P, N) fractions of the repeats in which
    each image was classified correctly. `count` is the effective number of independent images (the size of a bootstrap
    draw), see `cross_validated`.
    """
    n_images = correct_fractions.shape[1]
    samples = np.random.default_rng(seed).integers(n_images, size=(BOOTSTRAP_DRAWS, max(1, count)))
    sizes, correct_fractions = fit_sizes[-SLOPE_POINTS:], correct_fractions[-SLOPE_POINTS:]
    errors = np.stack([1 - rates[samples].mean(1) for rates in correct_fractions])
    mean_errors = 1 - correct_fractions.mean(1)
    values = [_extrapolate(sizes, mean_errors[:, None], size)[0] for size in (model_size, 2 * model_size)]
    low, high = np.quantile(_extrapolate(sizes, errors, 2 * model_size), [0.025, 0.975])
    if not mean_errors[-1]:  # without errors, the bootstrap has no variance
        low = wilson_share(1.0, samples.shape[1]).ends[0]
    return Score(float(values[1]), float(low), float(high)), float(values[1] - values[0])


def _extrapolate(sizes: NDArray[np.float64], errors: NDArray[np.float64], size: float) -> NDArray[np.float64]:
    """Return (D,) accuracies at a size, by a power law through the last point of (P, D) errors at (P,) sizes."""
    x, y = np.log(sizes), np.log(np.maximum(errors, 1e-3))
    centred = (x - x.mean())[:, None]
    slope = np.minimum(0.0, (centred * y).sum(0) / (centred**2).sum())  # least-squares slope; 0 if the error grows
    return 1 - errors[-1] * (size / sizes[-1]) ** slope
