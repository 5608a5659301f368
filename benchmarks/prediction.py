"""How fast a trained model answers: `paucal predict` and the exported files beside plain inference with timm.

    python benchmarks/prediction.py runs/1 runs/2 --data clothing/test.parquet
    python benchmarks/prediction.py runs/1 --data photos/ --images 500 --batch-size 64

All ways decode the same image files and give probabilities, in turns on the same number of threads: timm's own dataset,
transform and a loader in the same process; `paucal predict` as a function, and as the command line does it, with
everything it writes (answers, features, a contact sheet); and the exported ONNX files of 32 and of 8 bits. What the
exports cost in accuracy is measured on the run's own test images. The first round is not counted.
"""

import argparse
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from timm.data.dataset import ImageDataset
from timm.data.transforms_factory import create_transform
from torch import Tensor
from torch.utils.data import DataLoader

import paucal
from measuring import interleaved, ratio, spread, store, surroundings
from paucal.data.sources.opening import open_images
from paucal.export.onnx_model import read_onnx
from paucal.models.trained import TrainedModel, load_trained
from paucal.runner.console import SilentConsole
from paucal.verbs.predict.settings import OutputSettings, PredictSettings
from paucal.verbs.predict.writing import predict_to_files


def write_files(data: str, folder: Path, count: int) -> list[Path]:
    """Write images of a set as files, evenly spread over it, in a folder of one class as timm reads it."""
    images = open_images(data, labelled=False)
    (folder / "all").mkdir(parents=True)
    found = []
    for number, index in enumerate(images.sample(count).tolist()):
        found.append(folder / "all" / f"{number:05d}.jpg")
        images.store.read(int(index)).save(found[-1], quality=92)
    return found


def plain_timm(model: TrainedModel, folder: Path, batch_size: int) -> Tensor:
    """Return the (N, K) probabilities as timm's inference gives them."""
    fed = model.card.preprocessing
    transform = create_transform(
        (3, *fed.image_size),
        interpolation=fed.interpolation,
        mean=fed.mean,
        std=fed.std,
        crop_pct=fed.crop_ratio,
    )
    loader = DataLoader(ImageDataset(str(folder), transform=transform), batch_size)
    with torch.inference_mode():
        return torch.cat([model.card.probabilities(model.module(batch.to(model.device))).cpu() for batch, _ in loader])


def predicted(model: TrainedModel, folder: Path, batch_size: int) -> Tensor:
    """Return the same by `paucal.predict`."""
    return torch.stack([row.shares for row in paucal.predict(model, folder, batch_size=batch_size)])


def written(run: str, folder: Path, batch_size: int) -> None:
    """Answer as the command line does, loading the model and writing everything it can."""
    with tempfile.TemporaryDirectory() as place:
        answers, features, sheet = (str(Path(place, name)) for name in ("a.csv", "a.parquet", "a.jpg"))
        wanted = OutputSettings(output=answers, features=features, sheet=sheet)
        list(predict_to_files(run, [str(folder)], PredictSettings(batch_size=batch_size), wanted, SilentConsole()))


def measure(run: str, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Return the speeds of all ways for a run, and what its exports answer."""
    model, size = load_trained(run), options.batch_size
    with tempfile.TemporaryDirectory() as place:
        words: dict[str, Any] = {"format": ["pt2", "onnx"], "int8": True, "images": options.compared}
        export = paucal.export_model(run, output=str(Path(place, "export")), **words)
        whole, small = (read_onnx(export.folder / name) for name in ("model.onnx", "model.int8.onnx"))
        ways: dict[str, Callable[[], object]] = {
            "timm": partial(plain_timm, model, folder, size),
            "paucal.predict": partial(predicted, model, folder, size),
            "paucal predict, all files": partial(written, run, folder, size),
            "onnx": partial(predicted, whole, folder, size),
            "onnx of 8 bits": partial(predicted, small, folder, size),
        }
        seconds = interleaved(ways, options.repeats, "cpu")
        alike = plain_timm(model, folder, size).argmax(1) == predicted(model, folder, size).argmax(1)
    images = len(alike)
    return {
        "model": model.card.backbone.name,
        "image_size": model.card.preprocessing.image_size,
        "classes": len(model.classes),
        "images": images,
        "same_answer_as_timm": float(alike.double().mean()),
        "images_per_second": {name: spread([images / one for one in times]) for name, times in seconds.items()},
        "times_as_long_as_timm": {name: ratio(seconds, name, "timm") for name in ways if name != "timm"},
        "exports": {name: asdict(one) for name, one in export.comparisons.items()},
    }


def main() -> None:
    """Measure and store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", help="run folders")
    parser.add_argument("--data", required=True, help="images to answer for")
    parser.add_argument("--images", type=int, default=200, help="of them")
    parser.add_argument("--compared", type=int, default=372, help="test images of the run that exports are compared on")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--name", default="prediction_cpu", help="of the stored result")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        write_files(options.data, Path(place, "images"), options.images)
        found = [measure(run, options, Path(place, "images")) for run in options.runs]
    keep = {"batch_size": options.batch_size, "repeats": options.repeats}
    store(options.name, {**surroundings("cpu"), **keep, "runs": found})


if __name__ == "__main__":
    main()
