"""Images per second of whole training epochs, beside timm's parts in a plain loop.

Both train the same model on the same images with the same augmentation (random resized crop, flip, RandAugment,
erasing, mixup and cutmix), AdamW, clipping, moving average and number of loader processes; ours also validates (on a
handful of images), records and saves. They take turns; the first epoch of each turn, which fills caches, is left out.
The loaders are also measured alone: an epoch on a fast device takes as long as its images take to load.

    python benchmarks/training.py ../shared/data/cifar10/train.parquet --size 32 --images 2000 \
        --model vit_tiny_patch16_224 --model-args patch_size=4 embed_dim=64 depth=6 num_heads=2
    python benchmarks/training.py ../shared/data/clothing/train.parquet --size 224 --images 256 --model resnet18
"""

import argparse
import gc
import itertools
import tempfile
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
from timm.data.auto_augment import RandAugment
from timm.data.dataset_factory import create_dataset
from timm.data.loader import create_loader
from timm.data.mixup import Mixup
from timm.loss.cross_entropy import SoftTargetCrossEntropy
from timm.optim._optim_factory import create_optimizer_v2
from timm.utils.clip_grad import dispatch_clip_grad
from timm.utils.model_ema import ModelEmaV3

import paucal
from measuring import ratio, store, surroundings, synchronize
from paucal.cores import count_usable_cores
from paucal.data.dataset import ViewDataset
from paucal.data.decoded.in_memory import cache_images
from paucal.data.loader import make_train_loader
from paucal.data.sampler import StepSampler
from paucal.data.sources.opening import open_images
from paucal.data.views.augmentation import Augmentation, build_rand_augment
from paucal.data.views.normalisation import Normalisation
from paucal.data.views.transforms import TrainTransform
from paucal.rules.resolve import model_arguments

POLICY = "rand-m9-mstd0.5-inc1"
DECAY = 0.99


def export(source: str, count: int, folder: Path) -> None:
    """Write images as class folders: what both loops read."""
    images = open_images(source)
    with ThreadPoolExecutor(count_usable_cores()) as pool:
        saved = []
        for index in np.random.default_rng(0).permutation(len(images))[:count].tolist():
            target = folder / images.classes[images.labels[index]] / f"{index}.png"
            target.parent.mkdir(parents=True, exist_ok=True)
            saved.append(pool.submit(images.store.read(index).save, target))
        for one in saved:
            one.result()


def ours(folder: Path, options: argparse.Namespace) -> list[float]:
    """Return the images per second of the epochs but the first."""
    with tempfile.TemporaryDirectory() as work:
        result = paucal.train(
            folder,
            output=f"{work}/run",
            **{
                "init": "none",
                "method": "supervised",
                "model": options.model,
                "model_args": options.model_args or None,
            },
            **{"img_size": [options.size], "batch_size": options.batch, "epochs": options.epochs, "average": DECAY},
            **{"crop": "random-resized", "rand_augment": POLICY, "erase": 0.25, "mixup": 0.8, "cutmix": 1.0},
            **{"val_fraction": 1e-6, "test_fraction": 1e-6, "workers": options.workers, "device": options.device},
            precision="bf16-mixed" if options.precision == "bf16" else "32-true",
        )
        lines = (result.run / "metrics.csv").read_text().splitlines()
    names, *table = [line.split(",") for line in lines]
    ends = [float(row[names.index("seconds")]) for row in table]
    images = float(table[0][names.index("step")]) * options.batch
    return [images / (after - before) for before, after in itertools.pairwise(ends)]


def plain_loader(folder: Path, options: argparse.Namespace) -> Any:
    """Return timm's loader of one epoch of (images, labels); on a GPU the one that copies ahead."""
    size, on_gpu = (3, options.size, options.size), options.device == "cuda"
    gc.collect()  # its processes would abort on pinned memory that is garbage; ours are guarded
    dataset: Any = create_dataset("", root=str(folder), split="train", is_training=True)
    loader = create_loader(
        dataset,
        input_size=size,
        batch_size=options.batch,
        is_training=True,
        re_prob=0.25,
        re_mode="pixel",
        auto_augment=POLICY,
        interpolation="bicubic",
        num_workers=options.workers,
        use_prefetcher=on_gpu,
        pin_memory=on_gpu,
        persistent_workers=options.workers > 0,
        device=torch.device(options.device),
    )
    for number, transform in enumerate(dataset.transform.transforms):
        if isinstance(transform, RandAugment):  # timm's own fails with Pillow 13 where it posterizes; ours is the same
            same = build_rand_augment(Augmentation(rand_augment=POLICY), size[1:], Normalisation())
            dataset.transform.transforms[number] = same
    return loader


def our_batches(folder: Path, options: argparse.Namespace) -> Iterator[Any]:
    """Return our loader of several epochs in a row, as a run has it."""
    images, _ = cache_images(open_images(folder))
    transform = TrainTransform((options.size, options.size), Augmentation(rand_augment=POLICY), Normalisation())
    steps = options.epochs * (len(images) // options.batch)
    sampler = StepSampler(np.arange(len(images)), options.batch, steps, seed=0)
    pinned = options.device == "cuda"
    return iter(make_train_loader(ViewDataset(images, [(transform, 1)], seed=0), sampler, options.workers, pinned))


def loading_speeds(batches: Iterable[Any], steps: int, options: argparse.Namespace) -> list[float]:
    """Return the images per second of epochs of loading but the first."""
    speeds, iterator = [], iter(batches)
    for _ in range(options.epochs):
        begin = time.perf_counter()
        for _ in range(steps):
            next(iterator)
        speeds.append(steps * options.batch / (time.perf_counter() - begin))
    return speeds[1:]


def plain(folder: Path, options: argparse.Namespace) -> list[float]:
    """Return the images per second of the epochs but the first, of a loop made of timm's parts."""
    torch.manual_seed(0)
    device, loader = torch.device(options.device), plain_loader(folder, options)
    classes = len(loader.dataset.reader.class_to_idx)
    arguments = model_arguments(options.model_args or [])
    if "patch_size" in arguments:
        arguments["img_size"] = options.size
    model = timm.create_model(options.model, num_classes=classes, **arguments).to(device).train()
    average = ModelEmaV3(model, decay=DECAY)
    optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3, weight_decay=0.05)
    mixup = Mixup(mixup_alpha=0.8, cutmix_alpha=1.0, label_smoothing=0.1, num_classes=classes)
    criterion, speeds = SoftTargetCrossEntropy(), []
    autocast = torch.autocast(options.device, torch.bfloat16, enabled=options.precision == "bf16")
    for _ in range(options.epochs):
        begin = time.perf_counter()
        for images, labels in loader:
            images, labels = mixup(images.to(device), labels.to(device))
            with autocast:
                loss = criterion(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            dispatch_clip_grad(model.parameters(), 5.0)
            optimizer.step()
            average.update(model)
        synchronize(options.device)
        speeds.append(len(loader) * options.batch / (time.perf_counter() - begin))
    return speeds[1:]


def measure(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Return the speeds of both loops and of both loaders alone, which take turns."""
    speeds: dict[str, list[float]] = {"plain": [], "ours": []}
    loading: dict[str, list[float]] = {"plain": [], "ours": []}
    steps = options.images // options.batch
    for _ in range(options.turns):
        speeds["plain"] += plain(folder, options)
        speeds["ours"] += ours(folder, options)
        loader = plain_loader(folder, options)
        epochs = itertools.chain.from_iterable(itertools.repeat(loader))
        loading["plain"] += loading_speeds(epochs, steps, options)
        loading["ours"] += loading_speeds(our_batches(folder, options), steps, options)
    return {
        "speed_ratio": ratio(speeds, "ours", "plain"),
        "loading_ratio": ratio(loading, "ours", "plain"),
        "images_per_second": speeds,
        "images_per_second_loaded": loading,
    }


def main() -> None:
    """Measure and store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", help="images, as paucal train takes them")
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--model-args", nargs="+")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        export(options.source, options.images, Path(work))
        result = measure(Path(work), options)
    settings = {**vars(options), "source": Path(options.source).parent.name}
    name = f"training_{options.device}_{options.size}" + (f"_workers{options.workers}" if options.workers else "")
    store(name, {**result, "settings": settings, "surroundings": surroundings(options.device)})


if __name__ == "__main__":
    main()
