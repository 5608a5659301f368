"""`paucal eval`: judge a trained model on labelled images, or any frozen backbone by the papers' protocols."""

import json
from collections.abc import Sequence
from dataclasses import asdict, fields
from functools import partial
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import torch
from jsonargparse import Namespace
from numpy.typing import NDArray
from rich.console import Console

from paucal.cli.arguments import add_settings, new_parser, parse
from paucal.data.images import ImageSet
from paucal.data.loader import make_eval_loader
from paucal.data.split_file import read_split
from paucal.data.splits import PARTS
from paucal.evaluation.deployed import Deployed, load_deployed
from paucal.evaluation.predictions import Predictions, predict_all
from paucal.evaluation.protocols.judge import PROTOCOLS, Protocol
from paucal.evaluation.protocols.table import store_table
from paucal.evaluation.real_labels import Answers, answers_of, read_real_labels, real_accuracy
from paucal.evaluation.record import record_classification
from paucal.evaluation.tables import percent, report_table
from paucal.recipes.frozen import FrozenSettings, Machine, evaluate_frozen
from paucal.recipes.frozen_data import DataSettings
from paucal.recipes.judged_models import find_run
from paucal.recipes.prepare import Advance, load_images, open_again
from paucal.recipes.settings import TrainSettings, setting_fields
from paucal.recipes.voice import Voice
from paucal.runs import RunFolder, open_run, write_text
from paucal.types import UserError

DESCRIPTION = """Judge the model of a run on labelled images.
Without DATA it is judged on the run's own test images; other images are taken whole, or their test part where
they have one. With --protocol knn linear logistic correspondence few-labels a frozen backbone is judged instead: a
run, a weights file, or any timm model, beside the same architecture with random weights."""
DATA_FLAGS = ("classes", "data_root", "download", "on_bad_image")
Choice = Literal["classification", "knn", "linear", "logistic", "correspondence", "few-labels"]
CHOICES = ", ".join(get_args(Choice))
CUT_FLAGS = ("val_fraction", "test_fraction")
FROZEN_FOLDER = "frozen-features"


def run(argv: Sequence[str]) -> int:
    """Run the verb; returns the exit code."""
    parser = new_parser("eval", DESCRIPTION)
    parser.add_argument(
        "run", type=str, metavar="MODEL", help="run folder; for frozen features a file or timm model too"
    )
    parser.add_argument("data", nargs="*", type=str, help=f"labelled: {setting_fields()['data'].metadata['help']}")
    skip = [name for name in setting_fields() if name not in (*DATA_FLAGS, *CUT_FLAGS)]
    add_settings(parser, TrainSettings, skip=skip)
    parser.add_argument("--protocol", nargs="+", type=Choice, default=["classification"], help=f"any of {CHOICES}")
    parser.add_argument("--part", type=Literal["train", "val", "test"], default="test", help="of the run's own images")
    parser.add_argument(
        "--real-labels",
        type=str | None,
        metavar="FILE",
        help="JSON list of the right class numbers of each image, as published for ImageNet (ReaL); adds that accuracy",
    )
    parser.add_argument("--output", "--out", type=str | None, help="folder for the results; by default in the run")
    parser.add_argument("--batch-size", "-b", type=int, default=256, help="images per forward pass")
    parser.add_argument("--workers", "-j", type=int, default=0, help="processes that load images")
    parser.add_argument("--device", type=str, default="cpu", help="cpu, cuda or mps")
    add_settings(parser, FrozenSettings)
    values, _ = parse(parser, argv)
    if values.batch_size < 1 or values.workers < 0:
        raise UserError("--batch-size must be at least 1 and --workers at least 0; correct them.")
    if values.real_labels is not None and (len(values.data) > 1 or "classification" not in values.protocol):
        raise UserError("--real-labels goes with --protocol classification and the images of one DATA; give these.")
    voice = Voice(Console(highlight=False))
    if "classification" in values.protocol:
        _classify(values, voice)
    frozen: list[Protocol] = [name for name in PROTOCOLS if name in values.protocol]
    if frozen:
        _judge_frozen(values, frozen, voice)
    return 0


def _judge_frozen(values: Namespace, protocols: list[Protocol], voice: Voice) -> None:
    settings = FrozenSettings(**{item.name: getattr(values, item.name) for item in fields(FrozenSettings)})
    opening = DataSettings(**{name: getattr(values, name) for name in (*DATA_FLAGS, *CUT_FLAGS)})
    machine = Machine(values.device, values.batch_size, values.workers)
    rows, about = evaluate_frozen(values.run, values.data, protocols, settings, opening, machine, voice)
    if values.output is not None:
        output = Path(values.output)
    elif folder := find_run(values.run):
        output = folder.evaluation(FROZEN_FOLDER)
    else:
        output = Path("evaluation") / Path(values.run).stem
    store_table(output, rows, about)
    voice.say(f"the table lies in {output}")


def _classify(values: Namespace, voice: Voice) -> None:
    folder = open_run(values.run)
    model = load_deployed(folder, values.device).require_classifier()
    real = None if values.real_labels is None else read_real_labels(values.real_labels, len(model.classes))
    for target in values.data or [None]:
        images, indices, train_labels = _images(folder, target, values, model, voice)
        output = _output(folder, target, values)
        with voice.progress("evaluating") as advance:
            predictions = predict_all(
                model.module,
                make_eval_loader(
                    images, indices, model.card.preprocessing.transform(), values.batch_size, values.workers
                ),
                model.device,
                progress=partial(_advance, advance, len(indices)),
            )
        report = record_classification(output, output, predictions, images, model.classes, train_labels)
        voice.show(report_table(report))
        top1 = report.scores["top1"]
        voice.say(f"{images.name}: accuracy {percent(top1.value)}; tables and pictures lie in {output}")
        if real is not None:
            _judge_by_real_labels(predictions, real, images, output, voice)


def _judge_by_real_labels(
    predictions: Predictions, real: Answers, images: ImageSet, output: Path, voice: Voice
) -> None:
    answers = answers_of(real, [images.keys[position] for position in predictions.ids.tolist()])
    found = real_accuracy(predictions, answers)
    write_text(output / "real_labels.json", json.dumps(asdict(found), indent=2) + "\n")
    voice.say(
        f"among the right answers of --real-labels: {percent(found.top1.value)} of {found.images} images "
        f"({found.skipped} without any were left out)"
    )


def _advance(advance: Advance, total: int, done: int) -> None:
    advance(done, total)


def _images(
    folder: RunFolder, target: str | None, values: Namespace, model: Deployed, voice: Voice
) -> tuple[ImageSet, NDArray[np.int64], torch.Tensor | None]:
    """Return images with labels in the model's order of classes, the positions to judge, and training labels."""
    with voice.progress("reading images") as advance:
        if target is None:
            images = open_again(folder, advance, values.download)
            split = read_split(folder.split, images)
            train_labels = torch.from_numpy(images.labels[split.indices("train")])
            return images, split.indices(values.part), train_labels
        chosen = TrainSettings(data=target, **{name: getattr(values, name) for name in DATA_FLAGS})
        images = match_classes(load_images(chosen, advance), model.classes)
    declared = np.asarray(images.declared)
    has_test = bool((declared == "test").any())
    return images, np.flatnonzero(declared == "test") if has_test else np.arange(len(images)), None


def match_classes(images: ImageSet, classes: Sequence[str]) -> ImageSet:
    """Renumber the labels of a set by the names of the model's classes.

    Raises:
        UserError: the set has a class that the model does not know.
    """
    unknown = [name for name in images.classes if name not in classes]
    if unknown:
        raise UserError(
            f"{images.location} has {len(unknown)} classes that the model does not know ({', '.join(unknown[:3])}); "
            f"it knows {', '.join(classes[:8])}{', ...' if len(classes) > 8 else ''}: "
            "rename or remove those, or choose classes with --classes."
        )
    return images.with_classes(tuple(classes))


def _name(target: str, targets: Sequence[str]) -> str:
    """Return a name for the results on a set: never that of a part of the run's own images, nor that of two sets."""
    path = Path(target).resolve()
    alike = sum(Path(other).resolve().stem == path.stem for other in targets) > 1
    return f"{path.parent.name}-{path.stem}" if alike or path.stem in PARTS else path.stem


def _output(folder: RunFolder, target: str | None, values) -> Path:
    name = values.part if target is None else _name(target, values.data)
    if values.output is None:
        return folder.evaluation(name)
    return Path(values.output) / name if len(values.data) > 1 else Path(values.output)
