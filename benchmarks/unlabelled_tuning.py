"""What unlabelled images add if the last stages of a network learn from them too, not only a head.

    python benchmarks/unlabelled_tuning.py CLOTHING --work W --seeds 0 1 2 --name unlabelled_tuning_clothing_10
    python benchmarks/unlabelled_tuning.py CLOTHING --work W --held-out 0.3 --seeds 100 101     # to develop on

Labelled images are drawn from the training part; some others of that part are used without their labels. The first
four of seven stages of EfficientNet-Lite0 stay as they are, so two augmented views of each image go through them once
and the other stages train on what they gave. All ways make the same number of steps of 32 images, and batch norms stay
still:

- "labels alone": cross-entropy of the labelled images, from logistic regression on the frozen features;
- "soft targets": half of each batch are unlabelled images, whose targets the head of `paucal train --unlabelled` gives;
- "DIET-CP" and "VISReg": no labels; heads are then fitted to the features of the labelled images.

Accuracies are in percent. "logistic" is logistic regression on the last features of labelled images, "Gaussian" the
Gaussian head of all images on the same features.
"""

import argparse
import copy
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from few_shot_features import NETWORKS, chosen_rows, features, frozen_network
from labelling import parts
from measuring import percent_right, store, surroundings
from paucal.data.images import ImageSet
from paucal.data.sources.opening import open_images
from paucal.data.views.augmentation import Augmentation
from paucal.data.views.normalisation import Normalisation
from paucal.data.views.transforms import TrainTransform, ViewTransform
from paucal.losses.diet import diet_loss
from paucal.losses.lejepa import unit_directions
from paucal.losses.visreg import visreg_loss
from paucal.tasks.classification.auto_tune.heads import HeadComparison, compare_heads
from paucal.tasks.classification.auto_tune.probe import fit_head
from paucal.tasks.classification.auto_tune.unlabelled_head import (
    GAUSSIAN_HEAD,
    compute_principal_axes,
    fit_heads,
    make_base_fit,
)
from unlabelled import staged_features

FROZEN, VIEWS, BATCH = 4, 2, 32  # stages, stored views of each image, images of a step
RATE, CONTINUED_RATE, WARM_UP = 3e-4, 1e-4, 0.1  # of tuning as in `paucal train`, of DIET-CP; share of the steps


class LastStages(nn.Module):
    """The stages of an EfficientNet that learn, from the stored activations to the pooled features."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.stages, self.head, self.norm, self.pool = (
            model.blocks[FROZEN:],
            model.conv_head,
            model.bn2,
            model.global_pool,
        )

    def forward(self, activations: Tensor) -> Tensor:
        """Return the (B, D) pooled features."""
        return self.pool(self.norm(self.head(self.stages(activations.float())))).flatten(1)


@dataclass(frozen=True)
class Stored:
    """Activations of one seed's images after the frozen stages, and what the ways know of them.

    Attributes:
        labelled: (V, L, C, H, W) float16 augmented views.
        unlabelled: (V, U, C, H, W) float16 augmented views.
        judged: (J, C, H, W) float16, as the deployed model sees them.
        labels: (L,) classes.
        truth: (J,) classes.
        targets: (U, K) probabilities of the head of `paucal train --unlabelled`.
        last: (L + U, D) last features of the untouched network: labelled images first.
        first_model: Accuracy of the head of `paucal train --unlabelled`, in percent.
    """

    labelled: Tensor
    unlabelled: Tensor
    judged: Tensor
    labels: Tensor
    truth: Tensor
    targets: Tensor
    last: Tensor
    first_model: float

    def accuracy(self, scores: Tensor) -> float:
        """Return the share of test images whose largest of (J, K) scores is right, in percent."""
        return percent_right(scores, self.truth)

    def of_heads(self, network: LastStages, seed: int) -> dict[str, float]:
        """Return the accuracy of two heads on the features of a network, which are fitted to stored views."""
        with torch.inference_mode():
            given, more, judged = (
                torch.cat([network(some) for some in views.split(64)])
                for views in (self.labelled.flatten(0, 1), self.unlabelled[0], self.judged)
            )
        labels, classes = self.labels.repeat(VIEWS), self.targets.shape[1]
        head = fit_head(given, labels, classes, seed)
        weight, bias = fit_heads(
            given, labels, classes, compute_principal_axes(more), make_base_fit(HeadComparison(), head, classes)
        )[GAUSSIAN_HEAD]
        return {"logistic": self.accuracy(head.scores(judged)), "Gaussian": self.accuracy(judged @ weight.T + bias)}


def shuffled(count: int, size: int, draw: np.random.Generator) -> Iterator[list[int]]:
    """Yield batches of positions without end, each position once in a pass."""
    queue: list[int] = []
    while True:
        while len(queue) < size:
            queue += draw.permutation(count).tolist()
        yield queue[:size]
        del queue[:size]


def train(modules: nn.Module, loss: Callable[[], Tensor], steps: int, rate: float) -> None:
    """Make steps of AdamW with a warm-up and a cosine."""
    solver = torch.optim.AdamW([each for each in modules.parameters() if each.requires_grad], weight_decay=0.05)
    for step in range(steps):
        rising, share = (step + 1) / max(1.0, WARM_UP * steps), step / steps
        for group in solver.param_groups:
            group["lr"] = rate * min(rising, 0.5 * (1 + float(np.cos(np.pi * share))))
        solver.zero_grad()
        loss().backward()
        solver.step()


def tuned(stored: Stored, network: LastStages, steps: int, seed: int, soft: bool) -> dict[str, float]:
    """Return the accuracy of the network tuned on labels, and on soft targets too."""
    classes, draw = stored.targets.shape[1], np.random.default_rng(seed)
    start = fit_head(stored.last[: len(stored.labels)], stored.labels, classes, seed)
    classifier = nn.Linear(start.weight.shape[1], classes)
    start.copy_to(classifier)
    real = BATCH // 2 if soft else BATCH
    own = shuffled(len(stored.labels), real, draw)
    others = shuffled(stored.unlabelled.shape[1], BATCH - real, draw) if soft else iter([])
    hard = F.one_hot(stored.labels, classes).float()

    def loss() -> Tensor:
        rows, view = next(own), int(draw.integers(VIEWS))
        images, targets = stored.labelled[view, rows], hard[rows]
        if soft:
            more = next(others)
            images = torch.cat([images, stored.unlabelled[view, more]])
            targets = torch.cat([targets, stored.targets[more]])
        return F.cross_entropy(classifier(network(images)), targets)

    train(nn.ModuleList([network, classifier]), loss, steps, RATE)
    with torch.inference_mode():
        return {"tuned": stored.accuracy(torch.cat([classifier(network(some)) for some in stored.judged.split(64)]))}


def continued(stored: Stored, network: LastStages, steps: int, seed: int, method: str) -> dict[str, float]:
    """Return the accuracy of heads on features that were trained further without labels."""
    views, draw = torch.cat([stored.labelled, stored.unlabelled], 1), np.random.default_rng(seed)
    count, width = views.shape[1], stored.last.shape[1]
    small = [nn.Linear(512, 2048), nn.BatchNorm1d(2048), nn.ReLU(), nn.Linear(2048, 512)]
    head = nn.Linear(width, count, bias=False) if method == "DIET-CP" else nn.Sequential(nn.Linear(width, 512), *small)
    rows = shuffled(count, BATCH // VIEWS, draw)

    def loss() -> Tensor:
        images = next(rows)
        out = head(network(views[:, images].flatten(0, 1))).unflatten(0, (VIEWS, len(images)))
        if method == "DIET-CP":
            return diet_loss(list(out), torch.tensor(images))
        generator = torch.Generator().manual_seed(int(draw.integers(1 << 30)))
        return visreg_loss(list(out), unit_directions(512, 256, generator)).total

    train(nn.ModuleList([network, head]), loss, steps, CONTINUED_RATE)
    return stored.of_heads(network, seed)


@torch.inference_mode()
def activations(model: Any, images: ImageSet, rows: NDArray[np.int64], transform: ViewTransform) -> Tensor:
    """Return the (N, C, H, W) float16 activations after the frozen stages."""
    found = []
    for some in np.array_split(rows, -(-len(rows) // 16)):
        pixels = torch.stack([transform(images.store.read(int(row)))[0] for row in some])
        found.append(model.blocks[:FROZEN](model.bn1(model.conv_stem(pixels))).half())
    return torch.cat(found)


def stored_images(
    options: argparse.Namespace, found: dict[str, Tensor], seed: int, model: Any, deployed: Any
) -> Stored:
    """Draw the images of a seed, and compute their activations and soft targets."""
    pool, judged = parts(found, options.held_out, seed)
    labels, draw = found["labels"], np.random.default_rng(seed)
    classes, own = int(labels.max()) + 1, labels[pool].numpy()
    drawn = np.concatenate(
        [draw.permutation(np.flatnonzero(own == k))[: options.per_class] for k in range(classes)]
    )  # as in unlabelled.py
    given, more = pool[drawn], draw.permutation(pool[np.setdiff1d(np.arange(len(pool)), drawn)])[: options.unlabelled]
    staged, last = staged_features(found), found["last"]
    head = fit_head(last[given], labels[given], classes, seed)
    race = compare_heads(last[given], staged[given], labels[given], classes, head.strength, seed)
    fit = make_base_fit(race, head, classes)
    weight, bias = fit_heads(staged[given], labels[given], classes, compute_principal_axes(staged[more]), fit)[
        GAUSSIAN_HEAD
    ]
    images = open_images(options.source)
    places = [chosen_rows(images, part, 10_000) for part in ("train", "val", "test") if part in images.declared_splits]
    rows = np.concatenate(places)
    change = Augmentation(crop="random-resized", scale=(0.5, 1.0), hflip=True)
    seen = TrainTransform(
        deployed.image_size, change, Normalisation(deployed.mean, deployed.std), False, deployed.resize
    )
    torch.manual_seed(seed)
    own_views, other_views = (
        torch.stack([activations(model, images, rows[some], seen) for _ in range(VIEWS)]) for some in (given, more)
    )
    return Stored(
        labelled=own_views,
        unlabelled=other_views,
        judged=activations(model, images, rows[judged], deployed.transform()),
        labels=labels[given],
        truth=labels[judged],
        targets=(staged[more] @ weight.T + bias).softmax(1).float(),
        last=last[np.concatenate([given, more])],
        first_model=percent_right(staged[judged] @ weight.T + bias, labels[judged]),
    )


def measured(options: argparse.Namespace, found: dict[str, Tensor], seed: int) -> dict[str, dict[str, float]]:
    """Return the accuracies of each way."""
    backbone, deployed = frozen_network(NETWORKS[0])
    model = backbone.model.eval()
    stored = stored_images(options, found, seed, model, deployed)
    scores = {"frozen": stored.of_heads(LastStages(model), seed) | {"paucal train": stored.first_model}}
    ways: dict[str, Callable[[LastStages], dict[str, float]]] = {
        "labels alone": lambda network: tuned(stored, network, options.steps, seed, soft=False),
        "soft targets": lambda network: tuned(stored, network, options.steps, seed, soft=True),
        "DIET-CP": lambda network: continued(stored, network, options.steps, seed, "DIET-CP"),
        "VISReg": lambda network: continued(stored, network, options.steps, seed, "VISReg"),
    }
    for name in options.ways:
        torch.manual_seed(seed)
        scores[name] = ways[name](LastStages(copy.deepcopy(model)).eval())
        print(seed, name, scores[name], flush=True)
    return scores


def main() -> None:
    """Measure all seeds, store and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", help="labelled images with a test part of their own")
    parser.add_argument("--work", type=Path, required=True, help="folder for the features")
    parser.add_argument("--per-class", type=int, default=10)
    parser.add_argument("--unlabelled", type=int, default=600, help="images without labels")
    parser.add_argument("--steps", type=int, default=60, help="of 32 images")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument(
        "--held-out", type=float, help="evaluate on this share of the training part, not on the test part"
    )
    parser.add_argument("--ways", nargs="+", default=["labels alone", "soft targets", "DIET-CP", "VISReg"])
    parser.add_argument("--name", help="of the stored result; without it nothing is stored")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = features(options.source, NETWORKS[0], options.work, 10_000, 10_000)
    rows = [{"seed": seed, "accuracy": measured(options, found, seed)} for seed in options.seeds]
    means = {
        way: {head: statistics.mean(row["accuracy"][way][head] for row in rows) for head in heads}
        for way, heads in rows[0]["accuracy"].items()
    }
    print(means)
    if options.name:
        settings = {key: value for key, value in vars(options).items() if key not in ("work", "source")}
        facts = {"data": Path(options.source).name, "surroundings": surroundings("cpu"), "settings": settings}
        store(options.name, facts | {"means": means, "runs": rows})


if __name__ == "__main__":
    main()
