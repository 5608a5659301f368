"""How many labels different ways to choose images need, in simulated labelling on frozen features.

    python benchmarks/labelling.py CLOTHING --work /tmp/labelling --train 10000 --test 10000
    python benchmarks/labelling.py CLOTHING --work /tmp/labelling --held-out 0.3 --seeds 100 101 102   # to develop on

Three random images of each class are labelled at first. In each round a linear head is fitted to the labelled images,
as in the first model of `paucal train`, and each way chooses the next 50 from its probabilities and the features. What
counts is how many labels a way needs for 85 % of the accuracy of a head that is fitted to all images, over the mean of
what ten random choices need from the same start, since a single one needed 75 to 208 labels on clothing. Networks are
not tuned in the rounds, and probabilities are not calibrated.
`--held-out` evaluates on a share of the training part instead of the test part, for development with other seeds.
"""

import argparse
import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from few_shot_features import NETWORKS, features
from measuring import store, surroundings
from paucal.tasks.classification.auto_tune.heads import fit_mixture
from paucal.tasks.classification.auto_tune.probe import DEFAULT_STRENGTH, fit_logistic_regression
from paucal.verbs.next.selection import (
    choose_greedily,
    choose_images,
    margin_uncertainty,
    project_to_axes,
    similarities,
)

START, GOAL = 3, 0.85
RANDOM_ORDERS = 10  # random choices per seed
HEAD = {"logistic": lambda rows, labels, count: fit_logistic_regression(rows, labels, count, DEFAULT_STRENGTH)}


@dataclass(frozen=True)
class Pool:
    """What a way may know when it chooses.

    Attributes:
        shares: (N, K) probabilities of the unlabelled images.
        vectors: (N, D) features of the unlabelled images.
        known: (L, D) features of the labelled images.
        seed: Seed of the round.
    """

    shares: Tensor
    vectors: Tensor
    known: Tensor
    seed: int


Way = Callable[[Pool, int], list[int]]


def at_random(pool: Pool, count: int) -> list[int]:
    """Choose at random."""
    return np.random.default_rng(pool.seed).permutation(len(pool.shares))[:count].tolist()


def random_way(order: int) -> Way:
    """Return a random choice that differs for each order."""
    return lambda pool, count: at_random(replace(pool, seed=pool.seed + 100 * order), count)


def by_margin(pool: Pool, count: int) -> list[int]:
    """Choose where the two likeliest classes are closest."""
    return margin_uncertainty(pool.shares).argsort(descending=True)[:count].tolist()


def by_entropy(pool: Pool, count: int) -> list[int]:
    """Choose where the entropy is highest."""
    return torch.special.entr(pool.shares).sum(1).argsort(descending=True)[:count].tolist()


def by_centres(pool: Pool, count: int) -> list[int]:
    """Choose what is furthest from all labelled and chosen images (k-centre: Sener and Savarese, ICLR 2018)."""
    vectors, known = F.normalize(pool.vectors, dim=1), F.normalize(pool.known, dim=1)
    nearest, chosen = (vectors @ known.T).amax(1), []
    for _ in range(count):
        chosen.append(int(nearest.argmin()))
        nearest = torch.maximum(nearest, vectors @ vectors[chosen[-1]])
        nearest[chosen] = 2.0
    return chosen


def by_badge(pool: Pool, count: int) -> list[int]:
    """Choose by k-means++ on the gradients of the head (BADGE: Ash et al., ICLR 2020)."""
    draw = np.random.default_rng(pool.seed)
    errors = pool.shares - F.one_hot(pool.shares.argmax(1), pool.shares.shape[1])
    rows = (pool.vectors - pool.vectors.mean(0)) / pool.vectors.std(0).clamp(min=1e-8)
    norms = errors.square().sum(1) * rows.square().sum(1)
    chosen = [int(norms.argmax())]
    distances = torch.full_like(norms, torch.inf)
    while len(chosen) < count:
        last = chosen[-1]
        products = (errors @ errors[last]) * (rows @ rows[last])
        distances = torch.minimum(distances, (norms + norms[last] - 2 * products).clamp(min=0))
        weights = distances.double().numpy().copy()
        weights[chosen] = 0
        chosen.append(int(draw.choice(len(weights), p=weights / weights.sum())))
    return chosen


def by_typicality(pool: Pool, count: int) -> list[int]:
    """Choose the most typical image of the largest clusters without a label (TypiClust: Hacohen et al., ICML 2022)."""
    from sklearn.cluster import MiniBatchKMeans

    vectors, known = F.normalize(pool.vectors, dim=1), F.normalize(pool.known, dim=1)
    clusters = min(len(known) + count, 500)
    labels = MiniBatchKMeans(clusters, random_state=pool.seed).fit_predict(torch.cat([vectors, known]).numpy())
    own, taken = labels[: len(vectors)], np.bincount(labels[len(vectors) :], minlength=clusters)
    typical = (vectors @ vectors.T).topk(min(21, len(vectors)), dim=1).values.mean(1).numpy()
    sizes, free, chosen = np.bincount(own, minlength=clusters), np.ones(len(own), dtype=bool), []
    while len(chosen) < count:
        cluster = np.lexsort((-sizes, taken))[0]
        members = np.flatnonzero((own == cluster) & free)
        taken[cluster] += 1 if len(members) else len(own)
        if len(members):
            chosen.append(int(members[typical[members].argmax()]))
            free[chosen[-1]] = False
    return chosen


def by_coverage(pool: Pool, count: int) -> list[int]:
    """Choose what covers most images, whatever the model is sure of (MaxHerding: Bae et al., ECCV 2024)."""
    similar = similarities(*project_to_axes(pool.vectors, pool.known))
    return choose_greedily(torch.ones(len(pool.vectors)), *similar, count)[0]


def as_next(random_share: float) -> Way:
    """Return the choice of `paucal next`, with a share of random images."""
    return lambda pool, count: [
        one.index
        for one in choose_images(
            margin_uncertainty(pool.shares), pool.vectors, pool.known, count, random_share, seed=pool.seed
        )
    ]


WAYS: dict[str, Way] = {
    "random": at_random,
    "paucal next, a tenth at random": as_next(0.1),
    "paucal next, none at random": as_next(0.0),
    "coverage alone": by_coverage,
    "margin": by_margin,
    "entropy": by_entropy,
    "k-centre": by_centres,
    "BADGE": by_badge,
    "TypiClust": by_typicality,
}


def accuracy_after(
    found: dict[str, Tensor], labelled: NDArray[np.int64], judged: NDArray[np.int64]
) -> tuple[float, Callable[[Tensor], Tensor]]:
    """Return the accuracy of a head fitted to the labelled images, and a function that gives its probabilities."""
    values, labels = found["last"], found["labels"]
    weight, bias = fit_mixture(values[labelled], labels[labelled], int(labels.max()) + 1, {"logistic": 1.0}, HEAD)

    def scores(rows: Tensor) -> Tensor:
        return rows @ weight.T + bias

    right = scores(values[judged]).argmax(1) == labels[judged]
    return float(right.double().mean()), lambda rows: scores(rows).softmax(1)


def simulate(
    found: dict[str, Tensor], pool: NDArray[np.int64], judged: NDArray[np.int64], way: Way, seed: int, goal: float,
    step: int, most: int,
) -> list[tuple[int, float]]:  # fmt: skip
    """Label round by round until the goal is reached; return the labels and the accuracy of each round."""
    draw, labels = np.random.default_rng(seed), found["labels"].numpy()
    by_class = [draw.permutation(pool[labels[pool] == label])[:START] for label in range(int(labels.max()) + 1)]
    labelled = np.concatenate(by_class)
    curve: list[tuple[int, float]] = []
    while True:
        accuracy, shares = accuracy_after(found, labelled, judged)
        curve.append((len(labelled), accuracy))
        if accuracy >= goal or len(labelled) + step > min(most, len(pool)):
            return curve
        others = np.setdiff1d(pool, labelled)
        rows = found["last"][others]
        round_seed = 1000 * seed + len(curve)
        chosen = way(Pool(shares(rows), rows, found["last"][labelled], round_seed), step)
        labelled = np.concatenate([labelled, others[chosen]])


def labels_needed(curve: list[tuple[int, float]], goal: float) -> float:
    """Return the number of labels at which the curve reaches the goal, between rounds on a straight line."""
    (count, accuracy) = curve[-1]
    if accuracy < goal or len(curve) == 1:
        return float(count)
    before, lower = curve[-2]
    return before + (count - before) * (goal - lower) / (accuracy - lower)


def parts(found: dict[str, Tensor], held_out: float | None, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the images to label and those to evaluate on: the test part, or a share of the training part."""
    is_test = found["is_test"].numpy()
    pool, judged = np.flatnonzero(~is_test), np.flatnonzero(is_test)
    if held_out:
        order = np.random.default_rng(seed).permutation(pool)
        cut = int(held_out * len(order))
        return np.sort(order[cut:]), np.sort(order[:cut])
    return pool, judged


def summarised(rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the labels that each way needed, over seeds, and their ratio to those of random choice."""
    ways = {}
    for name in dict.fromkeys(row["way"] for row in rows):
        own = [row for row in rows if row["way"] == name]
        ratios = [row["ratio"] for row in own]
        ways[name] = {
            "labels": statistics.mean(row["labels"] for row in own),
            "ratio": statistics.mean(ratios),
            "deviation": statistics.stdev(ratios) if len(ratios) > 1 else None,
            "worst": max(ratios),
            "reached": sum(row["reached"] for row in own),
        }
        print(f"{name}: {ways[name]}")
    return ways


def main() -> None:
    """Simulate every way on every set and seed, store and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", help="labelled images with a test part of their own")
    parser.add_argument("--work", type=Path, required=True, help="folder for the features")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=list(WAYS))
    parser.add_argument("--train", type=int, default=240, help="most images of a class to draw from")
    parser.add_argument("--test", type=int, default=300, help="most test images of a class")
    parser.add_argument(
        "--held-out", type=float, help="evaluate on this share of the training part, not on the test part"
    )
    parser.add_argument("--step", type=int, default=50, help="labels of a round")
    parser.add_argument("--most", type=int, default=730, help="labels at which a simulation ends")
    parser.add_argument("--name", help="of the stored result; without it nothing is stored")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = features(options.source, NETWORKS[0], options.work, options.train, options.test)
    rows: list[dict[str, Any]] = []
    for seed in options.seeds:
        pool, judged = parts(found, options.held_out, seed)
        whole = accuracy_after(found, pool, judged)[0]
        random = None
        for name in dict.fromkeys(("random", *options.ways)):
            ways = [random_way(order) for order in range(RANDOM_ORDERS)] if name == "random" else [WAYS[name]]
            settings = (seed, GOAL * whole, options.step, options.most)
            curves = [simulate(found, pool, judged, way, *settings) for way in ways]
            counts = [labels_needed(curve, GOAL * whole) for curve in curves]
            labels = statistics.mean(counts)
            random = labels if random is None else random
            row = {"seed": seed, "way": name, "of_all_labels": whole, "labels": labels, "ratio": labels / random}
            reached = all(curve[-1][1] >= GOAL * whole for curve in curves)
            rows.append(row | {"counts": counts, "reached": reached, "curve": curves[0]})
            print(rows[-1], flush=True)
    summary = summarised(rows)
    if options.name:
        images = {"in_all": len(found["labels"]), "in_the_test_part": int(found["is_test"].sum())}
        settings = {key: value for key, value in vars(options).items() if key not in ("work", "source")}
        facts = {"data": Path(options.source).name, "surroundings": surroundings("cpu"), "settings": settings}
        store(options.name, facts | {"images": images, "ways": summary, "runs": rows})


if __name__ == "__main__":
    main()
