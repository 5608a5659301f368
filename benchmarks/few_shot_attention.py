"""Attentive pooling of the last map, and the features of two networks, against the race of heads of `paucal train`.

    python benchmarks/few_shot_attention.py CLOTHING CIFAR10 --work /tmp/few --seeds 100 101 102

Images are drawn, and heads evaluated, as in `few_shot.py`. The attentive head pools the cells of the last map with the
softmax of their products with one learned query. It begins as the probe: the query is zero, which is the mean, and the
linear layer is logistic regression on it. Query and layer then learn together, the layer with the penalty of the probe.
Two networks are joined image by image: their last features, and what the race reads of each. A network computes one
view of each image once; its features are kept in --work.
"""

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor

from few_shot_features import BATCH, NETWORKS, chosen_rows, drawn_rows, frozen_network
from measuring import percent_right, store, surroundings
from paucal.data.sources.opening import open_images
from paucal.models.features import StageClassifierInputExtractor
from paucal.tasks.classification.auto_tune.heads import compare_heads
from paucal.tasks.classification.auto_tune.probe import Head, fit_head
from paucal.types import FeatureRequest

WIDTH = 1280  # of the last features, which the pooled stages follow
STEPS, QUERY_RATE, LAYER_RATE = 200, 1e-2, 1e-3
TODAY, RACE = "probe", "race"


def features(source: str, model: str, work: Path, train: int, test: int, cells: bool) -> dict[str, Tensor]:
    """Return staged features, labels and parts of a set's images, and the cells of the last map in float16."""
    kept = work / f"maps-{Path(source).name}-{model}-{train}-{test}.safetensors"
    if kept.exists():
        return load_file(kept)
    images = open_images(source)
    parts = {part: chosen_rows(images, part, most) for part, most in (("train", train), ("test", test))}
    rows = np.concatenate(list(parts.values()))
    backbone, preprocessing = frozen_network(model, classes=2)  # which features are read before
    transform, inputs = (
        preprocessing.transform(),
        StageClassifierInputExtractor(backbone.model, preprocessing.image_size),
    )
    found: dict[str, list[Tensor]] = {"staged": [], "cells": []}
    with torch.inference_mode():
        for start in range(0, len(rows), BATCH):
            batch = torch.stack([transform(images.store.read(int(row)))[0] for row in rows[start : start + BATCH]])
            found["staged"].append(inputs(batch).float())
            if cells:
                (last,) = backbone.extract(batch, [FeatureRequest("last")])
                found["cells"].append(last.grids[-1].flatten(2).transpose(1, 2).half())
    inputs.close()
    tensors = {name: torch.cat(values).contiguous() for name, values in found.items() if values}
    tested = np.concatenate([np.full(len(own), part != "train") for part, own in parts.items()])
    tensors |= {"labels": torch.from_numpy(images.labels[rows]), "is_test": torch.from_numpy(tested)}
    work.mkdir(parents=True, exist_ok=True)
    save_file(tensors, kept)
    return tensors


def attentive(cells: Tensor, labels: Tensor, probe: Head, others: Tensor) -> Tensor:
    """Return the (M, K) logits of the attentive head for other cells.

    Args:
        cells: (N, L, D) cells of the labelled images.
        labels: (N,) classes.
        probe: Logistic regression on their means.
        others: (M, L, D) cells to classify.
    """
    pooled = cells.float().mean(1)
    mean, deviation = pooled.mean(0), pooled.std(0) + 1e-3
    weight = (probe.weight * deviation).clone().requires_grad_()
    bias = (probe.bias + probe.weight @ mean).clone().requires_grad_()
    query = torch.zeros(cells.shape[2], requires_grad=True)

    def logits(values: Tensor) -> Tensor:
        standard = (values.float() - mean) / deviation
        shares = (standard @ query / cells.shape[2] ** 0.5).softmax(1)
        return torch.einsum("nl,nld->nd", shares, standard) @ weight.T + bias

    groups = [{"params": [query], "lr": QUERY_RATE}, {"params": [weight, bias], "lr": LAYER_RATE}]
    optimizer = torch.optim.Adam(groups)
    for _ in range(STEPS):
        optimizer.zero_grad()
        penalty = probe.strength * (weight.square().sum() / 2 + query.square().sum() / 2) / len(labels)
        (F.cross_entropy(logits(cells), labels) + penalty).backward()
        optimizer.step()
    with torch.no_grad():
        return torch.cat([logits(part) for part in others.split(200)])


def judged(found: dict[str, Tensor], second: Tensor | None, per_class: int, seed: int) -> dict[str, Any]:
    """Return the accuracy of each head in percent, and the seconds of the attentive one."""
    (rows, others), n_classes = drawn_rows(found, per_class, seed), int(found["labels"].max()) + 1
    staged, targets = found["staged"], found["labels"][rows]
    probe = fit_head(staged[rows, :WIDTH], targets, n_classes, seed)
    answers = {TODAY: probe.scores(staged[others, :WIDTH])}

    def raced(last: Tensor, whole: Tensor, strength: float) -> Tensor | None:
        race = compare_heads(last[rows], whole[rows], targets, n_classes, strength, seed)
        return None if race.head is None else race.head.scores(whole[others])

    won = raced(staged[:, :WIDTH], staged, probe.strength)
    answers[RACE] = answers[TODAY] if won is None else won
    start_time = time.perf_counter()
    answers["attentive"] = attentive(found["cells"][rows], targets, probe, found["cells"][others])
    seconds = time.perf_counter() - start_time
    answers["attentive and race, mean of probabilities"] = answers["attentive"].softmax(1) + answers[RACE].softmax(1)
    if second is not None:
        last = torch.cat([staged[:, :WIDTH], second[:, :WIDTH]], 1)
        joined = fit_head(last[rows], targets, n_classes, seed)
        answers["two networks, last features"] = joined.scores(last[others])
        won = raced(last, torch.cat([last, staged[:, WIDTH:], second[:, WIDTH:]], 1), joined.strength)
        answers["two networks, race"] = answers["two networks, last features"] if won is None else won
    truth = found["labels"][others]
    right = {name: percent_right(scores, truth) for name, scores in answers.items()}
    return {"accuracy": right, "attentive_seconds": seconds}


def summarised(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the mean accuracies of each cell, and the differences to the race paired by seed."""
    cells = []
    for data, per_class in dict.fromkeys((row["data"], row["per_class"]) for row in rows):
        own = [row["accuracy"] for row in rows if (row["data"], row["per_class"]) == (data, per_class)]
        for head in own[0]:
            gains = [row[head] - row[RACE] for row in own]
            spread = statistics.stdev(gains) if len(gains) > 1 else 0.0
            cell = {"data": data, "per_class": per_class, "head": head}
            mean = statistics.mean(row[head] for row in own)
            cells.append(cell | {"accuracy": mean, "over_race": statistics.mean(gains), "deviation": spread})
    return cells


def main() -> None:
    """Evaluate the heads on all draws, store and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", nargs="+", help="labelled images with a test part of their own")
    parser.add_argument("--work", type=Path, required=True, help="folder for the features")
    parser.add_argument("--per-class", type=int, nargs="+", default=[20, 80])
    parser.add_argument("--seeds", type=int, nargs="+", default=[100, 101, 102])
    parser.add_argument("--train", type=int, default=110, help="most images of a class to draw from")
    parser.add_argument("--test", type=int, default=70, help="most test images of a class")
    parser.add_argument("--one-network", action="store_true", help="leave the second network out")
    parser.add_argument("--name", default="few_shot_attention", help="of the stored result")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for source in options.sources:
        found = features(source, NETWORKS[0], options.work, options.train, options.test, cells=True)
        second = None
        if not options.one_network:
            second = features(source, NETWORKS[1], options.work, options.train, options.test, cells=False)["staged"]
        for per_class in options.per_class:
            for seed in options.seeds:
                row = {"data": Path(source).name, "per_class": per_class, "seed": seed}
                rows.append(row | judged(found, second, per_class, seed))
                print(json.dumps(rows[-1]), flush=True)
    settings = {key: value for key, value in vars(options).items() if key not in ("work", "sources")}
    cells = summarised(rows)
    store(options.name, {"surroundings": surroundings("cpu"), "settings": settings, "cells": cells, "runs": rows})
    for cell in cells:
        print(f"{cell['data']} {cell['per_class']:3} {cell['head']:45} {cell['accuracy']:.1f} {cell['over_race']:+.2f}")


if __name__ == "__main__":
    main()
