"""The order of the images on the labelling page: the most useful first if there is a model, else in random order."""

import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from paucal.data.images import ImageSet, without_decoded_copies
from paucal.data.sources.joining import SEPARATOR
from paucal.export.reading import task_of_model
from paucal.models.tasks import CLASSIFICATION, REGRESSION
from paucal.runner.console import Console
from paucal.runner.images import load_images, open_undecoded
from paucal.runner.input_images import path_of_image
from paucal.runs import RunFolder
from paucal.settings.shared import DataSettings
from paucal.types import UserError
from paucal.verbs.next.launch import describe_choice
from paucal.verbs.next.predictions import Classifier
from paucal.verbs.next.selection import choose_images
from paucal.verbs.serve.labelling import LabelFile, Labelling, Suggestion
from paucal.verbs.serve.settings import ServeSettings
from paucal.wording import counted

MAX_RANKED = 200  # largest number of images that a model ranks; for more, train a new model on the new labels first
RANDOM_EVERY = 10  # the last of this many consecutive images is drawn at random


def check_labelling(source: str | None, settings: ServeSettings) -> None:
    """Refuse settings that contradict each other, before anything is loaded."""
    if settings.label is None:
        for name in ("save", "classes"):
            if getattr(settings, name) is not None:
                raise UserError(f"--{name} is only for labelling: give --label with the images, or remove --{name}.")
        if source is None:
            raise UserError("RUN is missing: give a model to try, or --label, --save and --classes to label images.")
        return
    if settings.save is None:
        raise UserError("--label needs --save: give a CSV file for the labels as --save.")
    classes = settings.classes
    if source is None and classes is None:
        raise UserError("--label needs classes to choose from: give --classes, or a RUN whose classes are used.")
    if classes is not None and (len(classes) < 2 or len(set(classes)) < len(classes)):
        raise UserError(f"--classes is {' '.join(classes)!r}, but expected two or more different names.")
    if source is not None and (task := task_of_model(source)) != CLASSIFICATION:
        advice = "use 'paucal next --to coco', which writes its predictions for a labelling tool"
        raise UserError(
            f"{source} is a model for {task}, but the labelling page only supports one class per image: "
            f"{'give --classes instead of a RUN' if task == REGRESSION else advice}."
        )


def open_labelling(source: str | None, settings: ServeSettings, saved: LabelFile, console: Console) -> Labelling:
    """Open the images to label; if a model is given, rank the images and predict their classes."""
    data, classes = DataSettings(data=str(settings.label), on_bad_image="skip"), settings.classes
    suggestions: Mapping[int, Suggestion] = {}
    if source is None:
        images = open_undecoded(data, labelled=False)
        order = np.random.default_rng(0).permutation(len(images)).tolist()
    else:
        model = Classifier(source, settings.device)
        if model.model.card.is_multi_label:
            raise UserError(
                f"{source} predicts several labels per image, but the labelling page only supports one: use 'paucal "
                "next --to'."
            )
        with console.progress("reading images") as advance:
            images = load_images(data, advance, labelled=False, reading=model.reading)
        order, suggestions = _rank_images(model, images, console)
        classes = model.model.classes if classes is None else classes
    paths = [path_of_image(images, key) for key in images.keys]
    if not all(Path(path).is_file() for path in paths[:1]):
        raise UserError(
            f"--label: {settings.label} contains no image files, but labels are saved by image path: give a folder of "
            "image files."
        )
    console.say(f"{counted(len(images), 'image')} to label; {counted(len(saved.labels), 'label')} in {saved.path}")
    assert classes is not None  # without a model, `check_labelling` requires --classes
    originals = without_decoded_copies(images)
    # The command trains on the labels and, if there is a run, also on the run's training images.
    run_data = None if source is None else RunFolder(Path(source)).settings.get("data")
    sources = [str(source) for source in (run_data, saved.path) if source is not None]
    command = f"paucal train {shlex.quote(SEPARATOR.join(sources))}"
    return Labelling(originals, paths, order, classes, saved, suggestions, command)


def _rank_images(model: Classifier, images: ImageSet, console: Console) -> tuple[list[int], dict[int, Suggestion]]:
    """Return the positions of all images, the most useful first, and the model's suggestion for each image."""
    predictions = model.predict(images, console)
    choices = choose_images(
        predictions.unsure, predictions.features, predictions.training_features, MAX_RANKED, 1 / RANDOM_EVERY
    )
    suggestions = {index: Suggestion(top) for index, top in enumerate(predictions.likeliest)}
    for choice in choices:
        reason = describe_choice(predictions, choice)
        suggestions[choice.index] = replace(suggestions[choice.index], reason=reason)
    # The last of every `RANDOM_EVERY` consecutive images is a random choice.
    order = [choice.index for choice in choices if not choice.is_random]
    for number, index in enumerate([choice.index for choice in choices if choice.is_random], 1):
        order.insert(RANDOM_EVERY * number - 1, index)
    unranked = np.setdiff1d(np.arange(len(images)), order)
    return [*order, *np.random.default_rng(0).permutation(unranked).tolist()], suggestions
