"""What unlabelled images add to a linear head on frozen features of few labelled ones, and to `paucal train`.

    python benchmarks/unlabelled.py CLOTHING --work W --train 10000 --test 10000 --name unlabelled_clothing
    python benchmarks/unlabelled.py CLOTHING --work W --held-out 0.3 --seeds 100 101 102   # to develop on
    python benchmarks/unlabelled.py CLOTHING --work W --whole 8m --per-class 10 --seeds 0 1 2

Labelled images are drawn from the training part; all others of that part are used without their labels. Gains are in
points, paired by seed.

On frozen features the head of the labelled images alone is the first model of `paucal train`, the winner of its race of
heads. "paucal train" is what its step makes of the unlabelled images, where cross-validation keeps the labels alone or
not; "always" is a head of its step that replaces the first whatever cross-validation says. The ways of `--ways` give
the images soft targets, and logistic regression on the last features is fitted to both.

With `--whole`, whole commands are compared instead: `paucal train --few-labels N --time T` with `--unlabelled` and
without, evaluated on the test part; the time is processor time of one thread. Finished runs stay in the work folder, so
that a stopped call can be resumed.
"""

import argparse
import json
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from few_shot_features import NETWORKS, features
from labelling import parts
from measuring import percent_right, store, surroundings
from paucal.backbones.stage_classifier import N_STAGES
from paucal.evaluation.familiarity import fit_familiarity
from paucal.tasks.classification.auto_tune.heads import compare_heads
from paucal.tasks.classification.auto_tune.probe import Head, fit_head
from paucal.tasks.classification.auto_tune.unlabelled_head import (
    GAUSSIAN_HEAD,
    LABELS_ALONE,
    compare_unlabelled_heads,
    compute_principal_axes,
    fit_heads,
    make_base_fit,
)
from processor_time import run_command

NEIGHBOURS, POWER, KEPT, STEPS = (
    15,
    3,
    0.9,
    40,
)  # of the graph: edges, exponent of similarities, share passed on, rounds
STEP = "paucal train"
Rows = NDArray[np.int64]
REAL_SHARE = 3.0  # most weight of the unlabelled images, as a multiple of the labelled ones'


@dataclass(frozen=True)
class Cell:
    """Labelled and unlabelled images of one seed.

    Attributes:
        rows: (N, D) float64 features of all images of the pool, standardised over them.
        labelled: (L,) positions of the labelled ones.
        labels: (L,) their classes.
        unlabelled: (U,) positions of all others.
        shares: (U, K) probabilities of the head of the labelled images.
    """

    rows: Tensor
    labelled: Tensor
    labels: Tensor
    unlabelled: Tensor
    shares: Tensor


def sharpened(cell: Cell) -> tuple[Tensor, Tensor]:
    """Return the head's own probabilities, squared, at half weight."""
    return _normalised(cell.shares**2), 0.5 * weights(cell)


def propagated(cell: Cell) -> tuple[Tensor, Tensor]:
    """Return labels spread over a graph of nearest neighbours (Zhou et al., NIPS 2003), balanced by class."""
    vectors = F.normalize(cell.rows, dim=1).float()
    similar = vectors @ vectors.T
    similar.fill_diagonal_(0)
    values, places = similar.topk(NEIGHBOURS, dim=1)
    edges = torch.zeros_like(similar).scatter_(1, places, values.clamp(min=0) ** POWER)
    edges = edges + edges.T
    scale = edges.sum(1).clamp(min=1e-9).rsqrt()
    edges = scale[:, None] * edges * scale
    known = torch.zeros(len(vectors), cell.shares.shape[1])
    known[cell.labelled, cell.labels] = 1
    spread = known.clone()
    for _ in range(STEPS):
        spread = KEPT * edges @ spread + (1 - KEPT) * known
    spread = _normalised((spread / spread.sum(0))[cell.unlabelled].double())
    return spread, weights(cell)


def agreed(cell: Cell) -> tuple[Tensor, Tensor]:
    """Return the product of the spread labels and the head's probabilities: high where both say the same."""
    return _normalised((propagated(cell)[0] + 1e-3) * cell.shares), weights(cell)


def weights(cell: Cell) -> Tensor:
    """Return the weight of each unlabelled image: together at most `REAL_SHARE` times the labelled ones."""
    count = len(cell.unlabelled)
    return torch.full((count,), min(1.0, REAL_SHARE * len(cell.labelled) / count), dtype=torch.float64)


WAYS: dict[str, Callable[[Cell], tuple[Tensor, Tensor]]] = {
    "own probabilities, sharpened": sharpened,
    "labels spread over a graph": propagated,
    "the two agreed": agreed,
}


def _normalised(shares: Tensor) -> Tensor:
    return shares / shares.sum(1, keepdim=True).clamp(min=1e-9)


def fit_soft(rows: Tensor, targets: Tensor, weight: Tensor, penalty: float) -> tuple[Tensor, Tensor]:
    """Fit logistic regression to (N, K) soft targets with (N,) weights; return (K, D) weights and (K,) biases."""
    slopes = torch.zeros(targets.shape[1], rows.shape[1], dtype=torch.float64, requires_grad=True)
    biases = torch.zeros(targets.shape[1], dtype=torch.float64, requires_grad=True)
    solver = torch.optim.LBFGS([slopes, biases], max_iter=60, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        solver.zero_grad()
        logs = torch.log_softmax(rows @ slopes.T + biases, dim=1)
        value = -(weight * (targets * logs).sum(1)).sum() + penalty / 2 * slopes.square().sum()
        value.backward()
        return value

    solver.step(loss)
    return slopes.detach(), biases.detach()


def measured(
    found: dict[str, Tensor], per_class: int, seed: int, options: argparse.Namespace, strangers: Any = None
) -> dict[str, Any]:
    """Return the accuracy of each way in percent, and the lead of the unlabelled images with its standard error."""
    pool, judged = parts(found, options.held_out, seed)
    labels, draw = found["labels"], np.random.default_rng(seed)
    classes = int(labels.max()) + 1
    own = labels[pool].numpy()
    drawn = np.concatenate([draw.permutation(np.flatnonzero(own == k))[:per_class] for k in range(classes)])
    others = torch.from_numpy(draw.permutation(np.setdiff1d(np.arange(len(pool)), drawn))[: options.others])
    labelled = torch.from_numpy(drawn)
    accuracy = partial(percent_right, labels=labels[judged])
    staged = staged_features(found)
    own_labels, last = labels[pool][labelled], found["last"][pool][labelled]
    head = fit_head(last, own_labels, classes, seed)
    race = compare_heads(last, staged[pool][labelled], own_labels, classes, head.strength, seed)
    step = compare_unlabelled_heads(
        *(staged[pool][labelled], own_labels, classes, staged[pool][others]), make_base_fit(race, head, classes), seed
    )
    scores = {"last features alone": accuracy(head.scores(found["last"][judged]))}
    scores[LABELS_ALONE] = (
        scores["last features alone"] if race.head is None else accuracy(race.head.scores(staged[judged]))
    )
    scores[STEP] = scores[LABELS_ALONE]
    if step.head is not None:
        scores[STEP] = accuracy(step.head.scores(staged[judged]))
    given, fit = (staged[pool][labelled], own_labels, classes), make_base_fit(race, head, classes)
    for name, (weight, bias) in fit_heads(*given, compute_principal_axes(staged[pool][others]), fit).items():
        if name != LABELS_ALONE:
            scores[f"{name}, always"] = accuracy(staged[judged] @ weight.T + bias)
    if strangers is not None:
        for name, more in planted(given[0], staged[pool][others], staged_features(strangers), last.shape[1]).items():
            weight, bias = fit_heads(*given, compute_principal_axes(more), fit)[GAUSSIAN_HEAD]
            scores[name] = accuracy(staged[judged] @ weight.T + bias)
    if options.ways:
        scores |= soft_targets(found["last"].double(), labels, pool, judged, labelled, others, head)
    return {"accuracy": scores, "brier_scores": dict(step.losses), "lead": step.lead, "error": step.lead_error}


def staged_features(found: dict[str, Tensor]) -> Tensor:
    """Return the last features with mean and spread of the last stages."""
    kept = found["widths"].tolist()
    return torch.cat(
        [found["last"], *found["mean"].split(kept, 1)[-N_STAGES:], *found["std"].split(kept, 1)[-N_STAGES:]], 1
    )


def planted(labelled: Tensor, others: Tensor, strangers: Tensor, width: int) -> dict[str, Tensor]:
    """Return unlabelled images, the same with strangers, and what the distance to labelled images leaves of these."""
    order = torch.randperm(len(labelled), generator=torch.Generator().manual_seed(0))
    shuffled, fifth = labelled[order][:, :width], torch.arange(len(labelled)) % 5 == 0
    known = fit_familiarity(shuffled[~fifth], shuffled[fifth])
    both = torch.cat([others, strangers])
    like = known.distances(both[:, :width]) <= known.limit
    print(f"like the labelled ones: {like[: len(others)].float().mean():.3f} of the others", end=", ")
    print(f"{like[len(others) :].float().mean():.3f} of the strangers")
    return {"Gaussian": others, "Gaussian, strangers planted": both, "Gaussian, unlike ones left out": both[like]}


def soft_targets(
    values: Tensor, labels: Tensor, pool: Rows, judged: Rows, labelled: Tensor, others: Tensor, head: Head
) -> dict[str, float]:
    """Return the accuracy of logistic regression on the last features with the soft targets of each way."""
    classes, scores = len(head.bias), {}
    mean, deviation = values[pool].mean(0), values[pool].std(0).clamp(min=1e-6)
    rows, seen = (values[pool] - mean) / deviation, (values[judged] - mean) / deviation
    hard, ones = F.one_hot(labels[pool][labelled], classes).double(), torch.ones(len(labelled), dtype=torch.float64)
    weight, bias = fit_soft(rows[labelled], hard, ones, head.strength)
    shares = (rows[others] @ weight.T + bias).softmax(1)
    cell = Cell(rows, labelled, labels[pool][labelled], others, shares)
    for name, way in WAYS.items():
        targets, more = way(cell)
        both = torch.cat([rows[labelled], rows[others]]), torch.cat([hard, targets]), torch.cat([ones, more])
        weight, bias = fit_soft(*both, head.strength)
        scores[name] = percent_right(seen @ weight.T + bias, labels[judged])
    return scores


def commanded(source: str, work: Path, per_class: int, minutes: str, seed: int) -> dict[str, float]:
    """Return the test accuracy of the whole command with and without the other images, in percent."""
    scores = {}
    for name, more in ((LABELS_ALONE, None), (STEP, source)):
        run = work / f"{Path(source).name}-{per_class}-{seed}-{'with' if more else 'alone'}"
        if not (run / "summary.json").exists():
            given = ["--few-labels", str(per_class), "--time", minutes, "--seed", str(seed), "--output", str(run)]
            given += ["--overwrite"] if run.exists() else []
            run_command(["train", source, *given, *(["--unlabelled", more] if more else [])])
        scores[name] = 100 * json.loads((run / "summary.json").read_text())["test_top1"]
    return scores


def arguments() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", help="labelled images with a test part of their own")
    parser.add_argument("--work", type=Path, required=True, help="folder for the features")
    parser.add_argument("--per-class", type=int, nargs="+", default=[10, 40])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--train", type=int, default=240, help="most images of a class to draw from")
    parser.add_argument("--test", type=int, default=300, help="most test images of a class")
    parser.add_argument(
        "--held-out", type=float, help="evaluate on this share of the training part, not on the test part"
    )
    parser.add_argument("--others", type=int, default=10_000, help="most images without labels")
    parser.add_argument("--strangers", help="set of other images to plant among those without labels")
    parser.add_argument("--ways", action="store_true", help="try soft targets for logistic regression too")
    parser.add_argument("--whole", metavar="TIME", help="compare whole commands that take this time, such as 8m")
    parser.add_argument("--name", help="of the stored result; without it nothing is stored")
    return parser.parse_args()


def main() -> None:
    """Measure all cells, store and print."""
    options = arguments()
    torch.set_num_threads(1)
    found = {}
    if options.whole is None:
        found = features(options.source, NETWORKS[0], options.work, options.train, options.test)
    strangers = None
    if options.strangers is not None:
        strangers = features(options.strangers, NETWORKS[0], options.work, 240, 300)
    rows: list[dict[str, Any]] = []
    for per_class in options.per_class:
        for seed in options.seeds:
            if options.whole is None:
                row = measured(found, per_class, seed, options, strangers)
            else:
                row = {"accuracy": commanded(options.source, options.work, per_class, options.whole, seed)}
            rows.append({"per_class": per_class, "seed": seed, **row})
            print(rows[-1], flush=True)
    cells = []
    for per_class in options.per_class:
        own = [row["accuracy"] for row in rows if row["per_class"] == per_class]
        for name in set(own[0]) - {LABELS_ALONE}:
            gains = [accuracy[name] - accuracy[LABELS_ALONE] for accuracy in own]
            spread = statistics.stdev(gains) if len(gains) > 1 else 0.0
            cell = {"per_class": per_class, "way": name, "alone": statistics.mean(one[LABELS_ALONE] for one in own)}
            cells.append(cell | {"gain": statistics.mean(gains), "deviation": spread, "worst_seed": min(gains)})
            print(cells[-1])
    if options.name:
        settings = {key: value for key, value in vars(options).items() if key not in ("work", "source", "strangers")}
        images = (
            {} if options.whole else {"in_all": len(found["labels"]), "in_the_test_part": int(found["is_test"].sum())}
        )
        facts = {"data": Path(options.source).name, "surroundings": surroundings("cpu"), "settings": settings}
        store(options.name, facts | {"images": images, "cells": cells, "runs": rows})


if __name__ == "__main__":
    main()
