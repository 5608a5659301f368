"""Images per second that reach a model, compared with torchvision's ImageFolder (same transforms and processes).

Three kinds of folders, made of real images: camera photos of 12 megapixels (real photographs, enlarged), images of 224
and of 32 pixels. Ours is what a run does: a first pass that verifies, recognises, measures and caches all images, then
loading by a resumable sampler. A pass is a whole epoch of batches; our first pass starts with an empty cache. Passes of
the two alternate. The part "first-step" is the time from the call to the first optimizer step of a
run on 800 camera photos, the seconds of processor time in it, and the memory that it took.

    python benchmarks/data.py ../shared/data/clothing/train.parquet ../shared/data/cifar10/train.parquet \
        --workers 2 --parts camera 224 32 first-step
"""

import argparse
import io
import os
import resource
import shutil
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback
from PIL import Image
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from measuring import ratio, store, surroundings
from paucal.data.dataset import ViewDataset
from paucal.data.decode import DecodeOptions
from paucal.data.decoded.cache_folder import CACHE_VARIABLE
from paucal.data.decoded.prepare import prepare_images, stored_side
from paucal.data.loader import make_train_loader
from paucal.data.sampler import StepSampler
from paucal.data.sources.opening import open_images
from paucal.data.views.augmentation import Augmentation
from paucal.data.views.normalisation import Normalisation, compute_normalisation
from paucal.data.views.transforms import TrainTransform
from paucal.methods.training_settings import TrainSettings
from paucal.runner.console import SilentConsole
from paucal.runner.life import begin
from paucal.tasks.classification.job import TrainingJob

CAMERA = (4000, 3000)
PARTS = ("first-step", "camera", "224", "32")
DIFFERENT = 60  # photos; the others are copies with another end, which takes as long to read and to decode


def make_camera(source: str, count: int, folder: Path) -> None:
    """Write camera photos as JPEGs of 12 megapixels in class folders."""
    images = open_images(source)
    chosen = np.random.default_rng(0).permutation(len(images))[: min(count, DIFFERENT)].tolist()
    for number, index in enumerate(chosen):
        buffer = io.BytesIO()
        images.store.read(index).resize(CAMERA, Image.Resampling.BICUBIC).save(buffer, "JPEG", quality=92)
        target = folder / images.classes[images.labels[index]]
        target.mkdir(parents=True, exist_ok=True)
        for copy in range(number, count, len(chosen)):
            (target / f"{copy}.jpg").write_bytes(buffer.getvalue() + copy.to_bytes(8, "little"))


def make_small(source: str, count: int, side: int, folder: Path) -> None:
    """Write images of one size in class folders: JPEGs of photographs, PNGs of small ones."""
    images = open_images(source)
    for index in np.random.default_rng(0).permutation(len(images))[:count].tolist():
        target = folder / images.classes[images.labels[index]] / f"{index}.{'png' if side < 64 else 'jpg'}"
        target.parent.mkdir(parents=True, exist_ok=True)
        image = images.store.read(index)
        image.resize((side, side), Image.Resampling.BICUBIC).save(target, quality=90)


def changes(size: int) -> Augmentation:
    """Return what happens to an image: the customary crop of its size, and a mirror."""
    crop = "padded" if size < 64 else "random-resized"
    return Augmentation(crop=crop, padding=4, rand_augment=None, erase_prob=0.0)


def plain(folder: Path, size: int, options: argparse.Namespace) -> Iterable[Any]:
    """Return torchvision's loader of one epoch."""
    crop = (
        v2.RandomCrop(size, padding=4)
        if size < 64
        else v2.RandomResizedCrop(size, interpolation=v2.InterpolationMode.BICUBIC)
    )
    statistics = Normalisation()
    transform = v2.Compose(
        [
            crop,
            v2.RandomHorizontalFlip(),
            v2.PILToTensor(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(list(statistics.mean), list(statistics.std)),
        ]
    )
    return DataLoader(
        ImageFolder(str(folder), transform),
        options.batch,
        shuffle=True,
        drop_last=True,
        num_workers=options.workers,
        persistent_workers=options.workers > 0,
    )


def plain_passes(folder: Path, size: int, options: argparse.Namespace) -> list[float]:
    """Return the images per second of torchvision's passes."""
    loader, speeds = plain(folder, size, options), []
    for _ in range(options.epochs):
        began, count = time.perf_counter(), 0
        for views, _ in loader:
            count += len(views)
        speeds.append(count / (time.perf_counter() - began))
    return speeds


def our_passes(folder: Path, size: int, options: argparse.Namespace) -> list[float]:
    """Return the images per second of our passes, from an empty cache on."""
    began, speeds = time.perf_counter(), []
    images, _ = prepare_images(open_images(folder), DecodeOptions(stored_side([size])))
    statistics = compute_normalisation(images, np.arange(len(images)))
    transform = TrainTransform((size, size), changes(size), statistics)
    steps = len(images) // options.batch
    sampler = StepSampler(np.arange(len(images)), options.batch, options.epochs * steps, seed=0)
    iterator = iter(make_train_loader(ViewDataset(images, [(transform, 1)], seed=0), sampler, options.workers))
    for _ in range(options.epochs):
        for _ in range(steps):
            next(iterator)
        now = time.perf_counter()
        speeds.append(steps * options.batch / (now - began))
        began = now
    return speeds


def compare(folder: Path, size: int, options: argparse.Namespace) -> dict[str, Any]:
    """Return the speeds of both in turns, and the ratios of their first and of their later passes."""
    found: dict[str, list[list[float]]] = {"plain": [], "ours": []}
    for _ in range(options.rounds):
        for name, passes in (("plain", plain_passes), ("ours", our_passes)):
            with tempfile.TemporaryDirectory() as cache:
                os.environ[CACHE_VARIABLE] = cache
                found[name].append(passes(folder, size, options))
    first = {name: [speeds[0] for speeds in rounds] for name, rounds in found.items()}
    later = {name: [speed for speeds in rounds for speed in speeds[1:]] for name, rounds in found.items()}
    result = {
        "images": sum(1 for _ in folder.rglob("*.*")),
        "first_pass_ratio": ratio(first, of="ours", to="plain"),
        "later_passes_ratio": ratio(later, of="ours", to="plain"),
        "images_per_second": found,
    }
    print(folder.name, {name: value for name, value in result.items() if name != "images_per_second"})
    return result


class FirstStep(Callback):
    """Notes when the first optimizer step is done, and ends the run there."""

    seconds, processor = 0.0, 0.0

    def __init__(self) -> None:
        self._began, self._used = time.perf_counter(), time.process_time()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Look at the clock."""
        self.seconds = self.seconds or time.perf_counter() - self._began
        self.processor = self.processor or time.process_time() - self._used
        trainer.should_stop = True


def first_step(folder: Path, options: argparse.Namespace) -> dict[str, float]:
    """Return the seconds from the call to the first step of a run, from an empty cache and again, and its memory."""
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as cache, tempfile.TemporaryDirectory() as work:
        os.environ[CACHE_VARIABLE] = cache
        for name in ("first", "again"):
            given = {"model": "resnet18", "img_size": [224], "init": None, "batch_size": 16, "epochs": 1, "workers": 2}
            settings = TrainSettings(data=str(folder), output=f"{work}/{name}", method="supervised", **given)
            callback = FirstStep()
            begin(TrainingJob(), settings, dict.fromkeys([*given, "method"], "given"), SilentConsole(), [callback])
            found[f"{name}_seconds"] = callback.seconds
            found[f"{name}_processor_seconds"] = callback.processor
        found["kept_mib"] = sum(file.stat().st_size for file in Path(cache).iterdir()) / 2**20
    found["peak_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print("first step", found)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photos", help="photographs, as paucal train takes them")
    parser.add_argument("small", help="images of 32 pixels")
    parser.add_argument("--camera-photos", type=int, default=60)
    parser.add_argument("--images", type=int, default=2000, help="of each of the other folders")
    parser.add_argument("--batch", type=int, default=20)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--first-step", type=int, default=800, help="camera photos of the run that is timed")
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=PARTS)
    parser.add_argument("--work", type=Path, help="folder for the images, which are made only once")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        for part in options.parts:
            measure(part, options.work or Path(temporary), options)


def measure(part: str, work: Path, options: argparse.Namespace) -> None:
    """Measure a part, and store what was found."""
    if part in ("first-step", "camera"):
        count = options.first_step if part == "first-step" else options.camera_photos
        _made(work / part, lambda folder: make_camera(options.photos, count, folder))
    else:
        source = options.photos if part == "224" else options.small
        _made(work / part, lambda folder: make_small(source, options.images, int(part), folder))
    size = int(part) if part.isdigit() else 224
    found = first_step(work / part, options) if part == "first-step" else compare(work / part, size, options)
    about = {name: value for name, value in vars(options).items() if name not in ("work", "photos", "small", "parts")}
    about |= {"processors": os.cpu_count(), "others": "the machine was shared: load " + f"{os.getloadavg()[1]:.1f}"}
    suffix = "" if options.workers == 2 else f"_workers{options.workers}"
    store(f"data_cpu_{part}{suffix}", {**found, "options": about, **surroundings("cpu")})


def _made(folder: Path, make: Any) -> None:
    if not folder.is_dir():
        unfinished = folder.with_name(f"{folder.name}.part")
        shutil.rmtree(unfinished, ignore_errors=True)
        make(unfinished)
        unfinished.rename(folder)


if __name__ == "__main__":
    main()
