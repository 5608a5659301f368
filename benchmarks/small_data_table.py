"""The stored runs of `small_data.py` as a table and curves: mean and spread over seeds, differences paired by seed."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

BASELINE = "vit"
Row = Mapping[str, Any]


def table(rows: Sequence[Row]) -> str:
    """Return a Markdown table of all finished comparisons; tried learning rates are left out."""
    lines = [
        "| training images | same | arm | lr | epochs | s per epoch | parameters | test accuracy | minus plain ViT |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for group in groups(rows):
        lines += [_line(group, arm) for arm in dict.fromkeys(row["arm"] for row in group)]
    return "\n".join(lines)


def groups(rows: Sequence[Row]) -> list[list[Row]]:
    """Return the runs that are compared with each other: those of the same images, in the same mode."""
    found: dict[Any, list[Row]] = {}
    for row in rows:
        if not row["tried"]:
            found.setdefault((row["images"], row["side"], row["equal"]), []).append(row)
    return [found[key] for key in sorted(found)]


def scores(group: Sequence[Row], arm: str) -> dict[int, float]:
    """Return the test accuracy in percent by seed."""
    return {row["seed"]: 100 * row["test_top1"] for row in group if row["arm"] == arm}


def differences(group: Sequence[Row], arm: str, baseline: str) -> list[float]:
    """Return the differences in points, one for each seed that both arms have."""
    ours, theirs = scores(group, arm), scores(group, baseline)
    return [ours[seed] - theirs[seed] for seed in ours if seed in theirs]


def spread(values: Sequence[float], sign: str = "") -> str:
    """Return mean and standard deviation of a few values as text.

    Example:
        >>> spread([1.0, 2.0, 3.0]), spread([1.5], "+")
        ('2.0 ± 1.0', '+1.5')
    """
    if not values:
        return ""
    mean, deviation = float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else math.nan
    return f"{mean:{sign}.1f}" + ("" if math.isnan(deviation) else f" ± {deviation:.1f}")


def draw(group: Sequence[Row]) -> Figure:
    """Draw the validation accuracy over epochs: the mean over seeds of each arm, and its runs behind it."""
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.add_subplot(xlabel="epoch", ylabel="validation accuracy")
    for number, arm in enumerate(dict.fromkeys(row["arm"] for row in group)):
        curves = [row["val_top1"] for row in group if row["arm"] == arm]
        for curve in curves:
            axes.plot(range(1, len(curve) + 1), curve, color=f"C{number}", alpha=0.25, linewidth=1)
        length = min(map(len, curves))
        means = np.mean([curve[:length] for curve in curves], axis=0)
        axes.plot(range(1, length + 1), means, color=f"C{number}", linewidth=2, label=arm)
    axes.legend(fontsize=8)
    axes.grid(alpha=0.3)
    return figure


def _line(group: Sequence[Row], arm: str) -> str:
    own = [row for row in group if row["arm"] == arm]
    images = own[0]["images"] or "all"
    epochs = sorted({row["epochs"] for row in own})
    seconds = float(np.median([row["epoch_seconds"] for row in own]))
    less = "" if arm == BASELINE else spread(differences(group, arm, BASELINE), "+")
    score = spread(list(scores(group, arm).values()))
    cells = [images, own[0]["equal"], arm, f"{own[0]['lr']:g}", "/".join(map(str, epochs)), f"{seconds:.1f}"]
    return f"| {' | '.join(map(str, cells))} | {own[0]['parameters']:,} | {score} (n = {len(own)}) | {less} |"
