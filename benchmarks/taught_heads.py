"""What a smaller model gains from the run's probabilities: heads on frozen features of small images, with and without.

    python benchmarks/taught_heads.py ../shared/data/clothing --images 400 --seeds 4

Each seed has training images of its own. The teacher is a linear head on features of the network at its usual image
size, the student one at --side pixels, as the first model of `paucal export --max-ms` is; it learns from the labels
alone, or from the mean of the labels and the teacher's probabilities. Each head takes the penalty that is best on the
validation images; scores are those of the test images.
"""

import argparse
import io
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import torch
from PIL import Image
from torch import Tensor

import paucal
from measuring import store, surroundings
from paired import compare
from paucal.tasks.classification.auto_tune.probe import PENALTIES, Head
from paucal.tasks.classification.auto_tune.taught_head import fit_taught_head


def read(path: Path, rows: slice = slice(None)) -> tuple[list[Image.Image], Tensor]:
    """Return the images and labels of a Parquet file, in one random order."""
    table = pq.read_table(path)
    order = np.random.default_rng(0).permutation(len(table))[rows]
    entries = table.take(order).to_pylist()
    images = [Image.open(io.BytesIO(entry["image"]["bytes"])).convert("RGB") for entry in entries]
    return images, torch.tensor([entry["label"] for entry in entries])


def outputs(head: Head, features: Tensor) -> Tensor:
    """Return (N, K) logits."""
    return features @ head.weight.T + head.bias


def share_right(head: Head, features: Tensor, labels: Tensor) -> float:
    """Return the share of right answers."""
    return float((outputs(head, features).argmax(1) == labels).double().mean())


def main() -> None:
    """Fit all heads and store their scores."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="folder with train.parquet, validation.parquet and test.parquet")
    parser.add_argument("--model", default="tf_efficientnet_lite0")
    parser.add_argument("--side", type=int, default=96, help="of the student's images in pixels")
    parser.add_argument("--images", type=int, default=400, help="training images of a seed")
    parser.add_argument("--seeds", type=int, default=4)
    options = parser.parse_args()
    torch.set_num_threads(1)
    parts = {
        "train": read(options.source / "train.parquet", slice(options.images * options.seeds)),
        "val": read(options.source / "validation.parquet"),
        "test": read(options.source / "test.parquet"),
    }
    labels = {part: found for part, (_, found) in parts.items()}
    classes = int(labels["train"].max()) + 1
    large, small = (
        {
            part: torch.from_numpy(np.asarray(embedder.fit(images[:1]).transform(images)))
            for part, (images, _) in parts.items()
        }
        for embedder in (
            paucal.ImageEmbedder(options.model),
            paucal.ImageEmbedder(options.model, img_size=options.side),
        )
    )

    def fit(features: dict[str, Tensor], rows: slice, shares: Tensor) -> Head:
        heads = [fit_taught_head(features["train"][rows], labels["train"][rows], shares, each) for each in PENALTIES]
        return max(heads, key=lambda head: share_right(head, features["val"], labels["val"]))

    found = []
    for seed in range(options.seeds):
        rows = slice(seed * options.images, (seed + 1) * options.images)
        truth = torch.nn.functional.one_hot(labels["train"][rows], classes).double()
        teacher = fit(large, rows, truth)
        shares = outputs(teacher, large["train"][rows]).softmax(1).double()
        heads = {"supervised": fit(small, rows, truth), "taught": fit(small, rows, shares)}
        scores = {name: share_right(head, small["test"], labels["test"]) for name, head in heads.items()}
        scores["teacher"] = share_right(teacher, large["test"], labels["test"])
        found += [{"arm": name, "seed": seed, "test_top1": score} for name, score in scores.items()]
    settings = {name: value for name, value in vars(options).items() if name != "source"}
    store(
        f"taught_heads_{options.source.name}",
        {"settings": settings, "arms": compare(found), "runs": found, "surroundings": surroundings("cpu")},
    )


if __name__ == "__main__":
    main()
