"""How often the interval of a cross-validated accuracy contains the true accuracy, on draws of few images per class.

    python benchmarks/few_images_interval.py CLOTHING --work /tmp/few --per-class 5 20 --draws 100

Images are drawn from the whole set, the head of `paucal train` is chosen and fitted to them, and its cross-validated
accuracy is compared with the accuracy on all images that were not drawn: as they are, and with every class counting
alike, as in the draws. Features are computed once (`few_shot_features.py`). A draw that is stored in the work folder is
not made again, so a stopped call can be resumed.
"""

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from few_shot import drawn
from few_shot_features import NETWORKS, features
from measuring import store, surroundings
from paucal.metrics.intervals import cross_validated
from paucal.tasks.classification.auto_tune.heads import compare_heads

MOST = 10_000  # images of a class in a part: all of them
TRUTHS = ("all other images", "all other images, classes alike")


def judged(found: dict[str, Tensor], per_class: int, seed: int) -> dict[str, Any]:
    """Return the cross-validated accuracy of one draw with its interval, and the true accuracies, all in percent."""
    draw = drawn(found, per_class, seed)
    race = compare_heads(
        draw.last()[draw.rows], draw.staged()[draw.rows], draw.labels, draw.n_classes, draw.probe.strength, seed
    )
    head, values = (draw.probe, draw.last()) if race.head is None else (race.head, draw.staged())
    truth = found["labels"][draw.others]
    right = (head.scores(values[draw.others]).argmax(1) == truth).double()
    alike = torch.stack([right[truth == label].mean() for label in range(draw.n_classes)]).mean()
    assert race.held_out is not None
    score = cross_validated(race.held_out.is_correct.numpy(), folds=race.held_out.folds)
    low, high = score.ends
    return {
        "per_class": per_class,
        "seed": seed,
        "head": race.name,
        "accuracy": 100 * score.value,
        "interval": [100 * low, 100 * high],
        "truth": dict(zip(TRUTHS, (100 * float(right.mean()), 100 * float(alike)), strict=True)),
    }


def summarised(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return coverage, width, and the mean and the deviation of the error, by images per class and truth."""
    cells = []
    for per_class in dict.fromkeys(row["per_class"] for row in rows):
        own = [row for row in rows if row["per_class"] == per_class]
        for truth in TRUTHS:
            errors = [row["accuracy"] - row["truth"][truth] for row in own]
            held = [row["interval"][0] <= row["truth"][truth] <= row["interval"][1] for row in own]
            cells.append(
                {
                    "per_class": per_class,
                    "truth": truth,
                    "draws": len(own),
                    "covered": sum(held),
                    "width": statistics.mean(row["interval"][1] - row["interval"][0] for row in own),
                    "mean_error": statistics.mean(errors),
                    "deviation": statistics.stdev(errors),
                    "mean_truth": statistics.mean(row["truth"][truth] for row in own),
                }
            )
    return cells


def main() -> None:
    """Make all draws, store and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", help="labelled images with a test part of their own")
    parser.add_argument("--work", type=Path, required=True, help="folder for the features and the draws")
    parser.add_argument("--per-class", type=int, nargs="+", default=[5, 20])
    parser.add_argument("--draws", type=int, default=100)
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = features(options.source, NETWORKS[0], options.work, MOST, MOST)
    found["is_test"] = torch.zeros_like(found["is_test"])  # every image may be drawn
    kept = options.work / f"interval-{Path(options.source).name}.jsonl"
    rows = [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []
    done = {(row["per_class"], row["seed"]) for row in rows}
    for per_class in options.per_class:
        for seed in range(options.draws):
            if (per_class, seed) in done:
                continue
            rows.append(judged(found, per_class, seed))
            with kept.open("a") as file:
                file.write(json.dumps(rows[-1]) + "\n")
    cells = summarised(rows)
    store("few_images_interval", {"surroundings": surroundings("cpu"), "cells": cells, "draws": rows})
    for cell in cells:
        print(cell)


if __name__ == "__main__":
    main()
