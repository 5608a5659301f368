"""Score the methods of attribution on photographs with trained models, and time them relative to a forward pass.

    python benchmarks/explaining.py runs/vit runs/dhvt runs/swin --data ../shared/data/clothing --images 200

Writes one JSON file per run into benchmarks/results/explaining/, named after its folder. `paucal explain --method auto`
follows what is stored there (paucal.explain.attribution.methods).
"""

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from paucal.data.images import ImageSet
from paucal.data.sources.opening import open_images
from paucal.explain.attribution.methods import attribute, methods_of
from paucal.explain.scores import as_table_rows, score_methods
from paucal.models.trained import TrainedModel, load_trained

RESULTS = Path(__file__).parent / "results" / "explaining"


def test_images(data: str, model: TrainedModel, count: int) -> tuple[ImageSet, np.ndarray]:
    """Return the set and the positions of `count` images of its test part, spread over it, the classes in turns."""
    images = open_images(data).with_classes(model.classes)
    held_out = np.flatnonzero(np.asarray(images.declared_splits) == "test")
    spread = held_out[np.linspace(0, len(held_out) - 1, count).round().astype(int)]
    return images, np.random.default_rng(0).permutation(spread)  # a batch of one class would have nothing to paste


def batches(images: ImageSet, positions: np.ndarray, model: TrainedModel, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield prepared images with their labels."""
    transform = model.card.preprocessing.transform()
    for start in range(0, len(positions), size):
        chosen = positions[start : start + size]
        pictures = [transform(images.store.read(int(place)))[0] for place in chosen]
        yield torch.stack(pictures), torch.from_numpy(images.labels[chosen]).long()


def seconds_per_image(model: nn.Module, images: Tensor, method: str | None, repeats: int = 3) -> float:
    """Return the least of some timings of a method, or of a plain forward pass."""
    classes, best = torch.zeros(len(images), dtype=torch.long), float("inf")
    for _ in range(repeats):
        start = time.process_time()
        if method is None:
            with torch.inference_mode():
                model(images)
        else:
            attribute(model, images, classes, method)
        best = min(best, time.process_time() - start)
    return best / len(images)


def merged(stored: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Return a stored result with some methods measured again."""
    again = {row["method"] for row in new["scores"]}
    rows = [row for row in stored["scores"] if row["method"] not in again] + new["scores"]
    times = {**stored["times_plain"], **new["times_plain"]}
    return {**new, "times_plain": times, "scores": sorted(rows, key=lambda row: -row["faithfulness"])}


def main() -> None:
    """Score and time every run given."""
    parser = argparse.ArgumentParser(description="Score and time methods of attribution.")
    parser.add_argument("runs", nargs="+")
    parser.add_argument("--data", required=True)
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--batch", type=int, default=50)
    parser.add_argument("--methods", nargs="+", help="some methods instead of all that the model has")
    options = parser.parse_args()
    torch.set_num_threads(1)
    RESULTS.mkdir(parents=True, exist_ok=True)
    for run in options.runs:
        model = load_trained(run)
        images, positions = test_images(options.data, model, options.images)
        methods = options.methods or methods_of(model.module)
        scores = score_methods(model.module, batches(images, positions, model, options.batch), methods, progress=print)
        sample, _ = next(batches(images, positions, model, 16))
        plain = seconds_per_image(model.module, sample, None)
        times = {name: seconds_per_image(model.module, sample, name) for name in methods}
        right = sum(
            int((model.module(x).argmax(1) == y).sum()) for x, y in batches(images, positions, model, options.batch)
        )
        result = {
            "model": model.card.backbone.name,
            "arguments": dict(model.card.backbone.arguments),
            "image_size": list(model.card.preprocessing.image_size),
            "images": options.images,
            "accuracy": right / options.images,
            "threads": 1,
            "plain_ms": 1000 * plain,
            "times_plain": {name: round(value / plain, 2) for name, value in times.items()},
            "scores": as_table_rows(scores),
        }
        path = RESULTS / f"{Path(run).name}.json"
        if options.methods and path.exists():
            result = merged(json.loads(path.read_text()), result)
        path.write_text(json.dumps(result, indent=2) + "\n")
        print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
