"""What torchvision's own detector reaches from scratch in the time that a run of `paucal detect` took.

    python benchmarks/plain_detector.py RUN --name plain_bccd --seeds 0 1

The detector is `fasterrcnn_mobilenet_v3_large_320_fpn`, torchvision's for processors, with random weights, trained as
torchvision's reference program trains: SGD with momentum 0.9, 0.02 for 16 images, weight decay 1e-4, mirror images; a
warm-up of a tenth of the time, then a half cosine to its end. Images, parts, largest side, batch and the count of
average precision are those of the run, as are the regions that a step learns from; its seconds of training are the
time.
"""

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchvision import tv_tensors
from torchvision.models.detection import fasterrcnn_mobilenet_v3_large_320_fpn
from torchvision.transforms.v2 import functional as change

from measuring import store, surroundings
from paucal.data.splits.split_csv import read_split
from paucal.runner.resuming import stored_settings
from paucal.runs import RunFolder, open_run
from paucal.tasks.detection.detections import Detections
from paucal.tasks.detection.evaluation import evaluate_detections
from paucal.tasks.detection.images import BoxedImages, open_boxed_images
from paucal.tasks.detection.settings import DetectSettings

WARMUP = 0.1  # of the time: a number of steps would be most of a short run on a slow processor


def main() -> None:
    """Train with every seed, and store the scores."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--name", required=True, help="of the stored result")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    parser.add_argument("--seconds", type=float, help="of training, in the place of the run's")
    options = parser.parse_args()
    run = open_run(options.run)
    settings, _ = stored_settings(run, DetectSettings, "detect")
    seconds = options.seconds or json.loads((run.path / "summary.json").read_text())["seconds"]
    rows = [one(run, settings, seed, seconds) for seed in options.seeds]
    facts = {"data": Path(settings.data).name, "seconds": seconds, "side": max(settings.img_size or [0])}
    store(options.name, {"runs": rows} | facts | {"surroundings": surroundings("cpu")})


def one(run: RunFolder, settings: DetectSettings, seed: int, seconds: float) -> dict[str, Any]:
    """Return the scores of a detector on the test images."""
    boxed = open_boxed_images(settings.data, outlines=False)
    parts = read_split(run.path / "split.csv", boxed.images).parts
    side, batch = max(settings.img_size or [416]), int(settings.batch_size or 4)
    torch.manual_seed(seed)
    sides: dict[str, Any] = {"min_size": side, "max_size": side, "rpn_pre_nms_top_n_test": 1000}
    sides["box_batch_size_per_image"] = settings.regions or 512  # as many as the run learns from: most of a step's time
    detector = fasterrcnn_mobilenet_v3_large_320_fpn(
        weights=None, weights_backbone=None, num_classes=len(boxed.classes) + 1, **sides
    )
    steps = train(detector, boxed, np.flatnonzero(parts == "train"), seed, seconds, batch, side)
    tests = [int(index) for index in np.flatnonzero(parts == "test")]
    judged = evaluate_detections(
        answers(detector, boxed, tests, side), [boxed.boxes_of(index) for index in tests], boxed.classes
    )
    found = {"seed": seed, "steps": steps, "ap": judged.metrics["ap"], "ap50": judged.metrics["ap50"]}
    print(found, flush=True)
    return found


def train(detector: Any, boxed: BoxedImages, order: Any, seed: int, seconds: float, batch: int, side: int) -> int:
    """Train for some seconds, and return the steps."""
    draw = np.random.default_rng(seed)
    known = {int(index): read(boxed, int(index), side) for index in order}
    rate = 0.02 * batch / 16
    optimizer = torch.optim.SGD(detector.parameters(), lr=rate, momentum=0.9, weight_decay=1e-4)
    detector.train()
    steps, began = 0, time.monotonic()
    while (share := (time.monotonic() - began) / seconds) < 1:
        for group in optimizer.param_groups:
            group["lr"] = rate * min(1, share / WARMUP) * (1 + math.cos(math.pi * share)) / 2
        chosen = [known[int(index)] for index in draw.choice(order, batch, replace=False)]
        images, targets = zip(*(mirrored(*pair) if draw.random() < 0.5 else pair for pair in chosen), strict=True)
        loss = torch.stack(list(detector(list(images), list(targets)).values())).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        steps += 1
    return steps


def read(boxed: BoxedImages, index: int, side: int) -> tuple[Tensor, dict[str, Tensor]]:
    """Return an image of at most `side` pixels, from 0 to 1, and what torchvision learns from it."""
    picture = boxed.images.store.read(index)
    known = boxed.boxes_of(index)
    picture.thumbnail((side, side))
    scale = np.array([picture.width / known.size[1], picture.height / known.size[0]] * 2)
    kept = ~known.crowd
    boxes = torch.from_numpy((known.corners * scale)[kept]).float()
    return change.to_dtype(change.pil_to_tensor(picture), scale=True), {
        "boxes": boxes,
        "labels": torch.from_numpy(known.labels[kept]) + 1,  # 0 is the background
    }


def mirrored(image: Tensor, target: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the mirror image with its boxes."""
    size = (int(image.shape[-2]), int(image.shape[-1]))
    boxes = tv_tensors.BoundingBoxes(target["boxes"], format="XYXY", canvas_size=size)  # type: ignore[call-overload]
    turned = change.horizontal_flip(boxes).as_subclass(Tensor)
    return change.horizontal_flip(image), {**target, "boxes": turned}


@torch.inference_mode()
def answers(detector: Any, boxed: BoxedImages, indices: list[int], side: int) -> list[Detections]:
    """Return what is found, in pixels of the images as they were annotated."""
    detector.eval()
    found = []
    for index in indices:
        image, _ = read(boxed, index, side)
        answer = detector([image])[0]
        height, width = boxed.boxes_of(index).size
        scale = torch.tensor([width / image.shape[-1], height / image.shape[-2]] * 2)
        boxes = (answer["boxes"] * scale).numpy()
        found.append(Detections(boxes, answer["scores"].numpy(), (answer["labels"] - 1).numpy()))
    return found


if __name__ == "__main__":
    main()
