"""What fastai's `fine_tune` gives with the same images, split, weights and minutes as a run of paucal.

fastai is no dependency: this file is run by the Python of an environment of its own, which has fastai and timm, and
imports nothing of paucal.

    PYTHON_OF_FASTAI benchmarks/fastai_minutes.py /tmp/minutes/data --split /tmp/minutes/ladder-0/split.csv \
        --weights efficientnet-lite0-57934424.pth --minutes 6

Everything is fastai's default (`vision_learner`, `fine_tune`, `Resize`, `aug_transforms`, its learning rate), but for
the number of epochs: after the frozen one, as many as the time that is left allows, measured on two batches.
"""

import argparse
import csv
import json
import time
from pathlib import Path

import timm
import torch
from fastai.vision import learner  # pyright: ignore[reportMissingImports]
from fastai.vision.all import (  # pyright: ignore[reportMissingImports]
    CategoryBlock,
    DataBlock,
    ImageBlock,
    Resize,
    accuracy,
    aug_transforms,
    parent_label,
    set_seed,
    vision_learner,
)

MODEL, SIDE, RATE = "tf_efficientnet_lite0", 224, 2e-3  # fastai's default rate


def carried(weights: Path):
    """Return timm's `create_model`, which takes published weights from a file in the place of the network."""
    original = timm.create_model

    def create(name, pretrained=False, **arguments):
        model = original(name, pretrained=False, **arguments)
        if pretrained:
            stored, own = torch.load(weights, weights_only=True), original(name).state_dict()
            named = dict(zip(own, stored.values(), strict=True))  # the entries come in timm's order
            assert all(own[key].shape == value.shape for key, value in named.items())
            wanted = model.state_dict()
            model.load_state_dict({key: named[key] for key in wanted})
        return model

    return create


def parts(data: Path, split: Path) -> dict[str, list[Path]]:
    """Return the files of each part, as a run of paucal has divided them."""
    found: dict[str, list[Path]] = {"train": [], "val": [], "test": []}
    with split.open() as file:
        for row in csv.DictReader(file):
            found[row["split"]].append(data / row["key"])
    return found


def batch_seconds(learn) -> float:
    """Return the seconds of a batch with all layers learning, the second of two; the weights stay."""
    images, labels = learn.dls.train.one_batch()
    learn.model.train()
    took = 0.0
    for _ in range(2):
        begin = time.monotonic()
        learn.loss_func(learn.model(images), labels).backward()
        took = time.monotonic() - begin
    learn.model.zero_grad()
    return took


def main() -> None:
    """Tune within the time, evaluate once on the test images, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--split", type=Path, required=True)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    begin, files = time.monotonic(), parts(options.data, options.split)
    set_seed(options.seed, reproducible=True)
    held = set(files["val"])
    block = DataBlock(
        (ImageBlock, CategoryBlock),
        get_items=lambda _: files["train"] + files["val"],
        get_y=parent_label,
        splitter=lambda items: (
            [n for n, item in enumerate(items) if item not in held],
            [n for n, item in enumerate(items) if item in held],
        ),
        item_tfms=Resize(SIDE),
        batch_tfms=aug_transforms(),
    )
    loaders = block.dataloaders(options.data, num_workers=0, bs=min(64, len(files["train"]) // 4))
    timm.create_model = carried(options.weights)
    learner.timm = timm
    learn = vision_learner(loaders, MODEL, metrics=accuracy)
    learn.freeze()  # what follows is `Learner.fine_tune`, with a look at the clock between its two halves
    learn.fit_one_cycle(1, slice(RATE), pct_start=0.99)
    learn.unfreeze()
    looks = 0.4 * batch_seconds(learn) * (len(files["val"]) + len(files["test"])) / loaders.train.bs
    epoch = batch_seconds(learn) * len(loaders.train) + looks
    left = 60 * options.minutes * 0.95 - (time.monotonic() - begin) - looks
    epochs = max(1, int(left / epoch))
    learn.fit_one_cycle(epochs, slice(RATE / 2 / 100, RATE / 2), pct_start=0.3, div=5.0)
    scores, labels = learn.get_preds(dl=loaders.test_dl(files["test"], with_labels=True))
    found = {
        "test": float((scores.argmax(1) == labels).float().mean()),
        "minutes": (time.monotonic() - begin) / 60,
        "epochs": f"1 + {epochs}",
        "model": MODEL,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
