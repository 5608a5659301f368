"""Heads on frozen features of few labelled images, against logistic regression on the last features.

    python benchmarks/few_shot.py CLOTHING CIFAR10 --work /tmp/few --joined CLOTHING

For every set, number of images per class and seed, labelled images are drawn from the training part, each head is
fitted to them and evaluated on all images that were not drawn; differences are paired by seed. Where a head has
something to choose, it is chosen by cross-validation within the labelled images. The race is the one of `paucal
train`. Features are computed once (`few_shot_features.py`); --joined names the sets for which a second network's are
joined.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from few_shot_features import NETWORKS, drawn_rows, features
from measuring import percent_right, store, surroundings
from paucal.backbones.stage_classifier import N_STAGES
from paucal.evaluation.protocols.classifier import LinearClassifier
from paucal.tasks.classification.auto_tune.heads import HEADS, compare_heads, fit_gaussian, fit_mixture
from paucal.tasks.classification.auto_tune.probe import FitHead, Head, fit_head, fit_logistic_regression, standardise

TODAY, RACE = "today", "race"


@dataclass(frozen=True)
class Draw:
    """Labelled images of one seed, and the images to evaluate on.

    Attributes:
        features: (N, D) features by name, of all images of the set.
        rows: Positions of the labelled images.
        others: Positions of all other images.
        probe: Head of today.
        seed: Seed.
    """

    features: dict[str, Tensor]
    rows: Tensor
    others: Tensor
    probe: Head
    seed: int

    @property
    def labels(self) -> Tensor:
        """(N,) classes of the labelled images."""
        return self.features["labels"][self.rows]

    @property
    def n_classes(self) -> int:
        """Number of classes."""
        return int(self.features["labels"].max()) + 1

    def blocks(self, name: str, mirrored: bool = False) -> list[Tensor]:
        """Return (N, D) features of each stage."""
        return list(self.features["mirrored_" * mirrored + name].split(self.features["widths"].tolist(), 1))

    def last(self, mirrored: bool = False) -> Tensor:
        """Return the (N, D) last features."""
        return self.features["mirrored_" * mirrored + "last"]

    def staged(self) -> Tensor:
        """Return the last features with mean and spread of the last stages, as `StageClassifier` reads them."""
        return torch.cat([self.last(), *self.blocks("mean")[-N_STAGES:], *self.blocks("std")[-N_STAGES:]], 1)


Scores = Callable[[Draw], Tensor]


def logistic(select: Callable[[Draw], Tensor]) -> Scores:
    """Return the test scores of logistic regression with its penalty chosen, as today's head has it."""

    def scores(draw: Draw) -> Tensor:
        values = select(draw)
        head = fit_head(values[draw.rows], draw.labels, draw.n_classes, draw.seed)
        return head.scores(values[draw.others])

    return scores


def own_deviations(draw: Draw) -> Tensor:
    """Return the (N, D) last features over their own deviations, which `standardise` then leaves as they are."""
    labelled = draw.last()[draw.rows]
    deviation = labelled.std(0)
    return (draw.last() - labelled.mean(0)) / torch.where(deviation > 1e-8, deviation, 1.0)


def weighted(select: Callable[[Draw], list[Tensor]], share: float) -> Scores:
    """Return the test scores of logistic regression with today's penalty on all stages, weighted, and the last."""

    def scores(draw: Draw) -> Tensor:
        stages, last = torch.cat(select(draw), 1), draw.last()
        parts = [(standardise(values[draw.rows]), values, w) for values, w in ((stages, share), (last, 1.0))]
        rows, others = (
            torch.cat([w * (values[which] - one.mean) / one.deviation for one, values, w in parts], 1)
            for which in (draw.rows, draw.others)
        )
        return fit_logistic_regression(rows, draw.labels, draw.n_classes, draw.probe.strength).scores(others)

    return scores


def mirrored(fit: FitHead, both_sides: bool) -> Scores:
    """Return the test scores of a head fitted to the images and their mirror images, scored on one view or on both."""

    def scores(draw: Draw) -> Tensor:
        views = torch.cat([draw.last()[draw.rows], draw.last(True)[draw.rows]])
        standard = standardise(views)
        fitted = fit(standard.coordinates, draw.labels.repeat(2), draw.n_classes)
        fitted = LinearClassifier(*standard.unstandardise(fitted.weight, fitted.bias))
        answers = fitted.scores(draw.last()[draw.others])
        return answers + fitted.scores(draw.last(True)[draw.others]) if both_sides else answers

    return scores


def mirrored_logistic(both_sides: bool) -> Scores:
    """Return the test scores of logistic regression on two views, with today's penalty for twice as many rows."""
    return lambda draw: mirrored(
        lambda rows, labels, n: fit_logistic_regression(rows, labels, n, 2 * draw.probe.strength), both_sides
    )(draw)


def mixture(shares: dict[str, float], select: Callable[[Draw], Tensor], table: Any = HEADS) -> Scores:
    """Return the test scores of heads of a table, added up with these weights."""

    def scores(draw: Draw) -> Tensor:
        values = select(draw)
        weight, bias = fit_mixture(values[draw.rows], draw.labels, draw.n_classes, shares, table)
        return Head(weight, bias, 0.0, None).scores(values[draw.others])

    return scores


def joined(draw: Draw) -> Tensor:
    """Return the (N, D) last features of both networks."""
    return torch.cat([draw.last(), draw.features["second_last"]], 1)


GAUSSIAN = {"gaussian": fit_gaussian}
ALONE: dict[str, Scores] = {
    "last: logistic, own deviations": logistic(own_deviations),
    "last: logistic, mirrored to fit": mirrored_logistic(False),
    "last: logistic, mirrored to fit and test": mirrored_logistic(True),
    "last: Gaussian": mixture({"gaussian": 1.0}, Draw.last, GAUSSIAN),
    "last: Gaussian, mirrored to fit and test": mirrored(fit_gaussian, True),
    "all stages: logistic": weighted(lambda draw: draw.blocks("mean"), 1.0),
    "all stages at half weight: logistic": weighted(lambda draw: draw.blocks("mean"), 0.5),
    "last stages with spread: logistic": mixture({name: 1.0 for name in list(HEADS)[:1]}, Draw.staged),
    "last stages with spread: Gaussian": mixture({name: 1.0 for name in list(HEADS)[1:]}, Draw.staged),
}
JOINED: dict[str, Scores] = {
    "two networks: logistic": logistic(joined),
    "two networks: Gaussian": mixture({"gaussian": 1.0}, joined, GAUSSIAN),
}


def drawn(found: dict[str, Tensor], per_class: int, seed: int) -> Draw:
    """Draw labelled images of every class from the training part, and fit today's head to them."""
    rows, others = drawn_rows(found, per_class, seed)
    head = fit_head(found["last"][rows], found["labels"][rows], int(found["labels"].max()) + 1, seed)
    return Draw(found, rows, others, head, seed)


def judged(draw: Draw, heads: dict[str, Scores]) -> dict[str, Any]:
    """Return the accuracy of every head in percent, and what the race chose in how many seconds."""
    accuracy = partial(percent_right, labels=draw.features["labels"][draw.others])
    today = accuracy(draw.probe.scores(draw.last()[draw.others]))
    start_time = time.perf_counter()
    race = compare_heads(
        draw.last()[draw.rows],
        draw.staged()[draw.rows],
        draw.labels,
        draw.n_classes,
        draw.probe.strength,
        draw.seed,
    )
    seconds = time.perf_counter() - start_time
    raced = today if race.head is None else accuracy(race.head.scores(draw.staged()[draw.others]))
    scores = {TODAY: today, RACE: raced} | {name: accuracy(head(draw)) for name, head in heads.items()}
    return {"accuracy": scores, "chosen": race.name, "lead": race.lead, "error": race.lead_error, "seconds": seconds}


def summarised(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the paired differences of each head to today's, by set and number of images per class."""
    cells = []
    for data, per_class in dict.fromkeys((row["data"], row["per_class"]) for row in rows):
        own = [row for row in rows if (row["data"], row["per_class"]) == (data, per_class)]
        for head in own[0]["accuracy"]:
            gains = [row["accuracy"][head] - row["accuracy"][TODAY] for row in own]
            mean = statistics.mean(row["accuracy"][head] for row in own)
            spread = statistics.stdev(gains) if len(gains) > 1 else 0.0
            cell = {"data": data, "per_class": per_class, "head": head, "accuracy": mean}
            cells.append(cell | {"gain": statistics.mean(gains), "deviation": spread, "worst_seed": min(gains)})
    return cells


def over_cells(cells: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Return the mean gain over all cells and that of the worst cell, by head."""
    heads = dict.fromkeys(cell["head"] for cell in cells)
    gains = {head: [cell["gain"] for cell in cells if cell["head"] == head] for head in heads}
    return {head: {"mean": statistics.mean(own), "worst": min(own), "cells": len(own)} for head, own in gains.items()}


def tabled(cells: list[dict[str, Any]]) -> str:
    """Return Markdown: a row per head, a column per cell."""
    columns = list(dict.fromkeys((cell["data"], cell["per_class"]) for cell in cells))
    lines = [f"| head | {' | '.join(f'{data}, {count}' for data, count in columns)} | mean | worst |"]
    lines.append("|---" * (len(columns) + 3) + "|")
    for head, whole in over_cells(cells).items():
        by_cell = {(cell["data"], cell["per_class"]): cell for cell in cells if cell["head"] == head}
        shown = [
            ("-" if one is None else f"{one['accuracy']:.1f}" if head == TODAY else _gain(one))
            for one in map(by_cell.get, columns)
        ]
        lines.append(f"| {head} | {' | '.join(shown)} | {whole['mean']:+.1f} | {whole['worst']:+.1f} |")
    return "\n".join(lines)


def _gain(cell: dict[str, Any]) -> str:
    return f"{cell['gain']:+.1f} ± {cell['deviation']:.1f}"


def draw_figure(cells: list[dict[str, Any]]) -> Figure:
    """Draw the gain of each head in each cell, with its deviation over seeds."""
    sets = list(dict.fromkeys(cell["data"] for cell in cells))
    figure = Figure(figsize=(5.5 * len(sets), 5), layout="constrained")
    for axes, data in zip(np.atleast_1d(figure.subplots(1, len(sets), sharey=True)), sets, strict=True):
        own = [cell for cell in cells if cell["data"] == data and cell["head"] != TODAY]
        for head in dict.fromkeys(cell["head"] for cell in own):
            line = [cell for cell in own if cell["head"] == head]
            thick = {"linewidth": 3, "color": "black"} if head == RACE else {"linewidth": 1}
            axes.errorbar(
                [cell["per_class"] for cell in line],
                [cell["gain"] for cell in line],
                [cell["deviation"] for cell in line],
                marker="o",
                capsize=2,
                label=head,
                **thick,
            )
        axes.axhline(0, color="grey", linewidth=1)
        axes.set(xscale="log", xlabel="labelled images per class", title=data, ylabel="points over today's head")
        counts = sorted({cell["per_class"] for cell in own})
        axes.set_xticks(counts, map(str, counts))
        axes.set_xticks([], minor=True)
        axes.grid(alpha=0.3)
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize=7)
    return figure


def main() -> None:
    """Evaluate all heads on all draws, store and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", nargs="+", help="labelled images with a test part of their own")
    parser.add_argument("--work", type=Path, required=True, help="folder for the features")
    parser.add_argument("--per-class", type=int, nargs="+", default=[5, 20, 80])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--train", type=int, default=240, help="most images of a class to draw from")
    parser.add_argument("--test", type=int, default=300, help="most test images of a class")
    parser.add_argument("--joined", nargs="*", default=[], help="sources with features of a second network too")
    parser.add_argument("--name", default="few_shot", help="of the stored result and its picture")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    images = {}
    for source in options.sources:
        name, heads = Path(source).name, dict(ALONE)
        found = features(source, NETWORKS[0], options.work, options.train, options.test)
        if source in options.joined:
            second = features(source, NETWORKS[1], options.work, options.train, options.test)
            found, heads = found | {"second_last": second["last"]}, heads | JOINED
        images[name] = {"all": len(found["labels"]), "of_test_part": int(found["is_test"].sum())}
        for per_class in options.per_class:
            for seed in options.seeds:
                row = {"data": name, "per_class": per_class, "seed": seed}
                rows.append(row | judged(drawn(found, per_class, seed), heads))
                print(rows[-1], flush=True)
    cells = summarised(rows)
    settings = {key: value for key, value in vars(options).items() if key not in ("work", "sources", "joined")}
    facts = {"surroundings": surroundings("cpu"), "settings": settings, "images": images}
    store(options.name, facts | {"over_cells": over_cells(cells), "cells": cells, "runs": rows})
    draw_figure(cells).savefig(Path(__file__).parent / "results" / f"{options.name}.png", dpi=110)
    print(tabled(cells))


if __name__ == "__main__":
    main()
