"""`paucal eval` without --protocol: evaluation of a run's classifier on labelled images."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from paucal.data.images import ImageSet
from paucal.data.loader import inference_batch_size, make_eval_loader
from paucal.data.splits.split_csv import read_split
from paucal.evaluation.predictions import Predictions, predict_all
from paucal.evaluation.real_labels import RealAccuracy, RealLabels, match_labels, read_real_labels, real_accuracy
from paucal.evaluation.record import record_classification, record_multi_label, report_table, usual_metric_line
from paucal.evaluation.results import Report, primary_metric
from paucal.evaluation.seen_images import seen_unlabelled
from paucal.models.precision import EXPLICIT_CHOICES, MEASURED_IMAGES, bfloat16_flags
from paucal.models.trained import TrainedModel, load_trained
from paucal.runner.console import Console
from paucal.runner.images import load_images, open_again
from paucal.runner.inference import check_batch_memory, choose_precision_on_sample
from paucal.runs import RunFolder, open_model_folder
from paucal.tasks.classification.mistakes import draw_mistakes
from paucal.types import UserError
from paucal.verbs.eval.images import ChosenImages, choose_images, is_data_of_run, print_notes, report_folder
from paucal.verbs.eval.settings import EvalSettings
from paucal.wording import counted, join_first_few, percent, was_or_were
from paucal.writing import write_text

# All images of a set, the images to evaluate on, and the labels of the training images if the run's own set is used.
Selection = tuple[ImageSet, ChosenImages, torch.Tensor | None]


@dataclass(frozen=True)
class ClassifiedSet:
    """Result of a classifier on one set of images.

    Attributes:
        data: Name of the data set.
        report: Scores with intervals, scores by class, and the confusion matrix.
        folder: Folder of the tables and figures.
        real: Accuracy with the labels of the file `--real-labels`; None if no file was given.
    """

    data: str
    report: Report
    folder: Path
    real: RealAccuracy | None = None


def evaluate_classifier(run: str, data: Sequence[str], settings: EvalSettings, console: Console) -> list[ClassifiedSet]:
    """Evaluate the classifier of a run on each data set, by default its own; print and store the reports."""
    folder = open_model_folder(run)
    model = load_trained(folder, settings.device).require_classifier()
    if settings.mirror:
        model = model.mirrored()
    if settings.real_labels is not None and model.card.is_multi_label:
        raise UserError(
            f"--real-labels needs one predicted class per image, but {run} predicts several: remove --real-labels."
        )
    real_answers = None if settings.real_labels is None else read_real_labels(settings.real_labels, len(model.classes))
    results = []
    for target in data or [None]:
        is_own = target is None or is_data_of_run(folder, target, settings)
        # The run's own images are evaluated in float32, as at the end of training, so that the scores are the same.
        precision = "32-true" if is_own and settings.precision is None else settings.precision
        set_settings = replace(settings, precision=precision)
        selection = _choose_images(folder, target, is_own, set_settings, model, console)
        images, chosen, _ = selection
        if target or settings.part in (None, "test"):
            for text in seen_unlabelled(folder, images, chosen.positions):
                console.say(text)
        output = report_folder(folder, target, data, settings)
        results.append(_evaluate_set(model, selection, real_answers, output, set_settings, console))
    return results


def _evaluate_set(
    model: TrainedModel,
    selection: Selection,
    real_answers: RealLabels | None,
    output: Path,
    settings: EvalSettings,
    console: Console,
) -> ClassifiedSet:
    images, _, train_labels = selection
    predictions = _predict(model, selection, settings, console)
    if model.card.is_multi_label:
        report: Report = record_multi_label(output, output, predictions, images, model.card)
    else:
        report = record_classification(output, output, predictions, images, model.classes, train_labels)
        draw_mistakes(output, predictions, images, model, console.say)
    console.show(report_table(report))
    metric = primary_metric(model.card.is_multi_label)
    value = report.scores[metric.score].value
    console.say(f"{images.name}: {metric.title} {percent(value)}; tables and figures are in {output}")
    if metric_note := usual_metric_line(report, images.name):
        console.say(metric_note)
    real = None
    if real_answers is not None:
        answers = match_labels(real_answers, [images.keys[int(position)] for position in predictions.ids])
        real = real_accuracy(predictions, answers)
        write_text(output / "real_labels.json", json.dumps(asdict(real), indent=2) + "\n")
        console.say(
            f"accuracy by --real-labels: {percent(real.top1.value)} of {counted(real.images, 'image')} "
            f"({real.skipped} without a correct class {was_or_were(real.skipped)} left out)"
        )
    return ClassifiedSet(images.name, report, output, real)


def _predict(model: TrainedModel, selection: Selection, settings: EvalSettings, console: Console) -> Predictions:
    images, chosen, _ = selection
    indices, preprocessing = chosen.positions, model.card.preprocessing
    batch_size = inference_batch_size(preprocessing.image_size, model.device.type, settings.batch_size)
    check_batch_memory(min(batch_size, len(indices)), preprocessing.image_size)
    loading = (preprocessing.transform(), batch_size, settings.workers)
    loader = make_eval_loader(images, indices, *loading, pin_memory=model.device.type == "cuda")
    if settings.precision is None:
        sample = [images.store.read(int(index)) for index in indices[:MEASURED_IMAGES]] if bfloat16_flags() else []
        choice = choose_precision_on_sample(model, sample, len(indices), console)
    else:
        choice = EXPLICIT_CHOICES[settings.precision]
    with console.progress("evaluating") as advance:
        predictions = predict_all(
            model.module, loader, model.device, autocast=choice.dtype, progress=lambda done: advance(done, len(indices))
        )
    return predictions.at_temperature(model.card.temperature).in_groups(chosen.groups)


def _choose_images(
    folder: RunFolder, target: str | None, is_own: bool, settings: EvalSettings, model: TrainedModel, console: Console
) -> Selection:
    """Open a set and choose the images to evaluate on; the labels are numbered in the model's class order."""
    decode_options = model.card.preprocessing.decode_options
    with console.progress("reading images") as advance:
        if is_own:
            images = open_again(folder, advance, settings.download, decode_options)
        else:
            images = load_images(replace(settings, data=target), advance, decode_options=decode_options)
    train_labels = None
    if target is None:
        train_labels = torch.from_numpy(images.labels[read_split(folder.split, images).indices("train")]).long()
    else:
        if unknown := [name for name in images.classes if name not in model.classes]:
            raise UserError(
                f"{images.location} has {counted(len(unknown), 'class', 'classes')} that the model does not know "
                f"({', '.join(unknown[:3])}); the model knows {join_first_few(model.classes, 8)}: rename or remove "
                "unknown classes, or choose classes with --classes."
            )
        images = images.with_classes(tuple(model.classes))
    if model.card.is_multi_label:
        images = images.as_multi_hot()
    elif images.multi_hot is not None:
        raise UserError(
            f"the images of {images.location} have several labels, but the model predicts one label: train a model on "
            "such images, or give --label-separator none if each value in the table is the name of one class."
        )
    chosen = choose_images(folder, images, settings.part, target)
    for note in images.notes if target is not None else ():
        console.say(f"note: {note}")
    print_notes(console, images, decode_options, chosen)
    return images, chosen, train_labels
