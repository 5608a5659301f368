"""The classifier of a run judged on labelled images: what `paucal eval` does without --protocol."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from paucal.data.images import ImageSet
from paucal.data.loader import inference_batch_size, make_eval_loader
from paucal.data.splits.split_csv import read_split
from paucal.evaluation.predictions import Predictions, predict_all
from paucal.evaluation.real_labels import Answers, RealAccuracy, answers_of, read_real_labels, real_accuracy
from paucal.evaluation.record import due_line, record_classification, record_multi_label, report_table
from paucal.evaluation.results import Report, primary_metric
from paucal.evaluation.seen_images import seen_unlabelled
from paucal.models.trained import TrainedModel, load_trained
from paucal.runner.console import Console
from paucal.runner.images import load_images, open_again
from paucal.runner.memory_check import check_batch_memory
from paucal.runs import RunFolder, open_model_folder, write_text
from paucal.settings.groups import LabelledDataSettings
from paucal.settings.options import setting_fields
from paucal.tasks.classification.mistakes import draw_mistakes
from paucal.types import UserError
from paucal.verbs.eval.images import choose_images, is_same_place, report_folder, say_notes
from paucal.verbs.eval.settings import EvalSettings
from paucal.wording import counted, percent, was

Judged = tuple[ImageSet, NDArray[np.int64], torch.Tensor | None]  # images, positions, labels of training images


@dataclass(frozen=True)
class ClassifiedSet:
    """How a classifier does on one set of images.

    Attributes:
        data: name of the set.
        report: scores with intervals, by class, and the confusion of classes.
        folder: where tables and pictures lie.
        real: accuracy among the right answers of `real_labels`; None where none were given.
    """

    data: str
    report: Report
    folder: Path
    real: RealAccuracy | None = None


def evaluate_classifier(run: str, data: Sequence[str], settings: EvalSettings, console: Console) -> list[ClassifiedSet]:
    """Judge the classifier of a run on each data set, on its own images where there is none; print and store reports.

    Raises:
        UserError: there is no such run, it has no classifier, or it does not know a class of the images.
    """
    folder = open_model_folder(run)
    model = load_trained(folder, settings.device).require_classifier()
    if settings.mirror:
        model = model.mirrored()
    if settings.real_labels is not None and model.card.several:
        raise UserError(f"--real-labels judges one answer for each image, and {run} gives several: leave it out.")
    real = None if settings.real_labels is None else read_real_labels(settings.real_labels, len(model.classes))
    found = []
    for target in data or [None]:
        judged = _images(folder, target, settings, model, console)
        for text in seen_unlabelled(folder, *judged[:2]) if target or settings.part in (None, "test") else ():
            console.say(text)
        output = report_folder(folder, target, data, settings)
        found.append(_judge(model, judged, real, output, settings, console))
    return found


def _judge(
    model: TrainedModel, judged: Judged, real: Answers | None, output: Path, settings: EvalSettings, console: Console
) -> ClassifiedSet:
    images, _, train_labels = judged
    predictions = _predict(model, judged, settings, console)
    if model.card.several:
        report: Report = record_multi_label(output, output, predictions, images, model.card)
    else:
        report = record_classification(output, output, predictions, images, model.classes, train_labels)
        draw_mistakes(output, predictions, images, model, console.say)
    console.show(report_table(report))
    measure = primary_metric(model.card.several)
    value = report.scores[measure.score].value
    console.say(f"{images.name}: {measure.title} {percent(value)}; tables and pictures lie in {output}")
    if due := due_line(report, images.name):
        console.say(due)
    among = None if real is None else _judge_by_real_labels(predictions, real, images, output, console)
    return ClassifiedSet(images.name, report, output, among)


def _predict(model: TrainedModel, judged: Judged, settings: EvalSettings, console: Console) -> Predictions:
    images, indices, _ = judged
    fed = model.card.preprocessing
    together = settings.batch_size or inference_batch_size(fed.image_size, model.device.type)
    check_batch_memory(min(together, len(indices)), fed.image_size)
    on_gpu = model.device.type == "cuda"
    loader = make_eval_loader(images, indices, fed.transform(), together, settings.workers, pin_memory=on_gpu)
    with console.progress("evaluating") as advance:
        found = predict_all(model.module, loader, model.device, progress=lambda done: advance(done, len(indices)))
    return found.at_temperature(model.card.temperature)


def _judge_by_real_labels(
    predictions: Predictions, real: Answers, images: ImageSet, output: Path, console: Console
) -> RealAccuracy:
    answers = answers_of(real, [images.keys[int(position)] for position in predictions.ids])
    found = real_accuracy(predictions, answers)
    write_text(output / "real_labels.json", json.dumps(asdict(found), indent=2) + "\n")
    console.say(
        f"among the right answers of --real-labels: {percent(found.top1.value)} of {counted(found.images, 'image')} "
        f"({found.skipped} without any {was(found.skipped)} left out)"
    )
    return found


def _images(
    folder: RunFolder, target: str | None, settings: EvalSettings, model: TrainedModel, console: Console
) -> Judged:
    """Return images with labels in the model's order of classes, the positions to judge, and training labels."""
    reading = model.card.preprocessing.reading
    chosen = LabelledDataSettings(**{name: getattr(settings, name) for name in setting_fields(LabelledDataSettings)})
    with console.progress("reading images") as advance:
        if target is None or is_same_place(folder, target, chosen):
            images = open_again(folder, advance, settings.download, reading)
        else:
            images = load_images(replace(chosen, data=target), advance, reading=reading)
    train_labels = None
    if target is None:
        train_labels = torch.from_numpy(images.labels[read_split(folder.split, images).indices("train")])
    else:
        images = match_classes(images, model.classes)
    images = _alike(images, model)
    judged = choose_images(folder, images, settings.part, target)
    for note in images.notes if target is not None else ():
        console.say(f"note: {note}")
    say_notes(console, images, reading, judged)
    return images, judged.positions, train_labels


def _alike(images: ImageSet, model: TrainedModel) -> ImageSet:
    """Return images with as many labels as the model gives: one of several is a row of them.

    Raises:
        UserError: images have several labels, and the model gives one.
    """
    if model.card.several:
        return images.as_multi_hot()
    if images.multi_hot is not None:
        raise UserError(
            f"the images of {images.location} have several labels, and the model gives one: train one on such images, "
            "or give --label-separator none where a cell names one class."
        )
    return images


def match_classes(images: ImageSet, classes: Sequence[str]) -> ImageSet:
    """Renumber the labels of a set by the names of the model's classes.

    Raises:
        UserError: the set has a class that the model does not know.
    """
    unknown = [name for name in images.classes if name not in classes]
    if unknown:
        raise UserError(
            f"{images.location} has {counted(len(unknown), 'class', 'classes')} that the model does not know "
            f"({', '.join(unknown[:3])}); "
            f"it knows {', '.join(classes[:8])}{', ...' if len(classes) > 8 else ''}: "
            "rename or remove those, or choose classes with --classes."
        )
    return images.with_classes(tuple(classes))
