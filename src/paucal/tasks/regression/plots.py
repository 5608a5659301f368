"""The plot of predicted against true numbers."""

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray


def predicted_figure(truth: NDArray[np.float64], predicted: NDArray[np.float64], half_width: float) -> Figure:
    """Draw each image as a point, the line of perfect predictions, and the band of prediction intervals."""
    figure = Figure(figsize=(5.5, 5.0), layout="constrained")
    axes = figure.subplots()
    low, high = min(truth.min(), predicted.min()), max(truth.max(), predicted.max())
    margin = 0.05 * (high - low or 1.0)
    ends = np.array([low - margin, high + margin])
    if np.isfinite(half_width):
        axes.fill_between(
            ends, ends - half_width, ends + half_width, color="tab:blue", alpha=0.12, lw=0, label="90 % interval"
        )
    axes.plot(ends, ends, color="grey", lw=1, label="predicted = true")
    axes.scatter(truth, predicted, s=14, alpha=0.7, color="tab:blue", label="test image")
    axes.set(xlabel="true", ylabel="predicted", xlim=ends, ylim=ends)
    axes.legend(loc="upper left", frameon=False)
    return figure
