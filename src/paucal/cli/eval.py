"""`paucal eval`: judge a trained model on labelled images, or any frozen backbone by the papers' protocols."""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, fields
from functools import partial
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import torch
from jsonargparse import Namespace
from numpy.typing import NDArray

from paucal.cli.arguments import add_settings, new_parser, parse
from paucal.data.images import ImageSet
from paucal.data.loader import make_eval_loader
from paucal.data.splits.file import read_split
from paucal.data.splits.split import PARTS, held_out_part
from paucal.evaluation.deployed import Deployed, load_deployed
from paucal.evaluation.predictions import Predictions, predict_all
from paucal.evaluation.protocols.judge import PROTOCOLS, Protocol
from paucal.evaluation.protocols.table import store_table
from paucal.evaluation.real_labels import Answers, answers_of, read_real_labels, real_accuracy
from paucal.evaluation.record import record_classification
from paucal.evaluation.tables import due_line, percent, report_table
from paucal.reading import named_path
from paucal.runs import RunFolder, open_run, write_text
from paucal.settings.groups import LABELLED, LabelledDataSettings
from paucal.settings.options import check_numbers
from paucal.types import UserError
from paucal.verbs.judging.frozen import FrozenSettings, Machine, evaluate_frozen
from paucal.verbs.judging.frozen_data import OpeningSettings
from paucal.verbs.judging.models import find_run
from paucal.verbs.run.images import Advance, load_images, open_again
from paucal.verbs.run.outputs import check_results
from paucal.verbs.run.room import check_batch
from paucal.verbs.run.seen import seen_unlabelled
from paucal.verbs.run.voice import Voice

DESCRIPTION = """Judge the model of a run on labelled images.
Without DATA it is judged on the run's own test images; other images are taken whole, or their test part where
they have one, which is a val part that has only a train part beside it, too. With --protocol knn linear logistic
correspondence few-labels a frozen backbone is judged instead: a run, a weights file, or any timm model, beside the
same architecture with random weights."""
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
    parser.add_argument("data", nargs="*", type=str, help=f"labelled images: {LABELLED}")
    add_settings(parser, OpeningSettings, skip=["data"])
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
    check_numbers(values, {"batch_size": (1, 1 << 20), "workers": (0, 64)})
    if values.real_labels is not None and (len(values.data) > 1 or "classification" not in values.protocol):
        raise UserError("--real-labels goes with --protocol classification and the images of one DATA; give these.")
    frozen: list[Protocol] = [name for name in PROTOCOLS if name in values.protocol]
    _check_output(values, bool(frozen))
    voice = Voice()
    if "classification" in values.protocol:
        _classify(values, voice)
    if frozen:
        _judge_frozen(values, frozen, voice)
    return 0


def _judge_frozen(values: Namespace, protocols: list[Protocol], voice: Voice) -> None:
    settings = FrozenSettings(**{item.name: getattr(values, item.name) for item in fields(FrozenSettings)})
    opening = OpeningSettings(**{name: getattr(values, name) for name in (*DATA_FLAGS, *CUT_FLAGS)})
    machine = Machine(values.device, values.batch_size, values.workers)
    rows, about = evaluate_frozen(values.run, values.data, protocols, settings, opening, machine, voice)
    output = _table_folder(values)
    store_table(output, rows, about)
    voice.say(f"the table lies in {output}")


def _check_output(values: Namespace, frozen: bool) -> None:
    """Look at all places for results before any work is done; a UserError where one will not do."""
    places = [_table_folder(values)] if frozen else []
    images = {"DATA": None}
    if "classification" in values.protocol:
        folder = open_run(values.run)
        places += [_output(folder, target, values) for target in values.data or [None]]
        if not values.data and (settings := folder.settings):
            images = {"DATA": settings.get("data")}
    for target in values.data or [None]:
        for place in places:
            check_results(place, images if target is None else {"DATA": target}, values.data_root)


def _table_folder(values: Namespace) -> Path:
    if values.output is not None:
        return named_path(values.output)
    folder = find_run(values.run)
    return folder.evaluation(FROZEN_FOLDER) if folder else Path("evaluation") / Path(values.run).stem


def _classify(values: Namespace, voice: Voice) -> None:
    folder = open_run(values.run)
    model = load_deployed(folder, values.device).require_classifier()
    real = None if values.real_labels is None else read_real_labels(values.real_labels, len(model.classes))
    for target in values.data or [None]:
        images, indices, train_labels = _images(folder, target, values, model, voice)
        for text in seen_unlabelled(folder, images, indices) if target or values.part == "test" else ():
            voice.say(text)
        check_batch(min(values.batch_size, len(indices)), model.card.preprocessing.image_size)
        output = _output(folder, target, values)
        with voice.progress("evaluating") as advance:
            predictions = predict_all(
                model.module,
                make_eval_loader(
                    images,
                    indices,
                    model.card.preprocessing.transform(),
                    values.batch_size,
                    values.workers,
                    pin_memory=model.device.type == "cuda",
                ),
                model.device,
                progress=partial(_advance, advance, len(indices)),
            )
        report = record_classification(output, output, predictions, images, model.classes, train_labels)
        voice.show(report_table(report))
        top1 = report.scores["top1"]
        voice.say(f"{images.name}: accuracy {percent(top1.value)}; tables and pictures lie in {output}")
        if due := due_line(report, images.name):
            voice.say(due)
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
        chosen = LabelledDataSettings(data=target, **{name: getattr(values, name) for name in DATA_FLAGS})
        images = match_classes(load_images(chosen, advance), model.classes)
    for note in images.notes:
        voice.say(f"note: {note}")
    part = held_out_part(images.declared)
    return images, np.flatnonzero(np.asarray(images.declared) == part) if part else np.arange(len(images)), None


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
    path = Path(os.path.realpath(target))
    alike = sum(Path(os.path.realpath(other)).stem == path.stem for other in targets) > 1
    return f"{path.parent.name}-{path.stem}" if alike or path.stem in PARTS else path.stem


def _output(folder: RunFolder, target: str | None, values) -> Path:
    name = values.part if target is None else _name(target, values.data)
    if values.output is None:
        return folder.evaluation(name)
    output = named_path(values.output)
    return output / name if len(values.data) > 1 else output
