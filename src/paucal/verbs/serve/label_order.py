"""The images of the labelling page in their order: the most useful first with a model, else random."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from paucal.data.images import ImageSet, without_decoded_copies
from paucal.data.sources.joining import SEPARATOR
from paucal.export.reading import task_of_model
from paucal.models.tasks import CLASSIFICATION, REGRESSION
from paucal.runner.console import Console
from paucal.runner.images import find_images, load_images
from paucal.runner.input_images import full_name
from paucal.runs import RunFolder
from paucal.runs.folder import MARKER
from paucal.settings.groups import DataSettings
from paucal.types import UserError
from paucal.verbs.next.answers import Classifier
from paucal.verbs.next.launch import describe_choice
from paucal.verbs.next.selection import Choice, choose
from paucal.verbs.serve.labelling import LabelFile, Labelling, Suggestion
from paucal.verbs.serve.settings import ServeSettings
from paucal.wording import counted

RANKED = 200  # images that a model ranks; after as many labels, a new model should rank the rest
TURN = 10  # one image in this many is drawn at random


def check_labelling(source: str | None, settings: ServeSettings) -> None:
    """Refuse settings that do not fit each other, before anything is loaded."""
    if settings.label is None:
        for name in ("save", "classes"):
            if getattr(settings, name) is not None:
                raise UserError(f"--{name} is for labels by people: give --label, the images, or leave it out.")
        if source is None:
            raise UserError("RUN is missing: give a model to try, or --label, --save and --classes to label images.")
        return
    if settings.save is None:
        raise UserError("--label needs --save, the CSV file that gets the labels.")
    classes = settings.classes
    if source is None and classes is None:
        raise UserError(
            "there is neither a RUN nor --classes: give one of them, so that there are classes to choose from."
        )
    if classes is not None and (len(classes) < 2 or len(set(classes)) < len(classes)):
        raise UserError(f"--classes is {' '.join(classes)!r}, expected two different names or more.")
    if source is not None and (task := task_of_model(source)) != CLASSIFICATION:
        advice = "'paucal next --to coco' writes its predictions for a labelling tool"
        raise UserError(
            f"{source} is a model for {task}, but the page collects classes of whole images: "
            f"{'give --classes in place of it' if task == REGRESSION else advice}."
        )


def open_labelling(source: str | None, settings: ServeSettings, saved: LabelFile, console: Console) -> Labelling:
    """Open the images to label, and ask the model about them if there is one."""
    data, classes = DataSettings(data=str(settings.label), on_bad_image="skip"), settings.classes
    suggestions: Mapping[int, Suggestion] = {}
    if source is None:
        images = find_images(data, labelled=False)
        order = np.random.default_rng(0).permutation(len(images)).tolist()
    else:
        model = Classifier(source, settings.device)
        if model.model.card.several:
            raise UserError(
                f"{source} gives an image several labels, but the page only one: label with 'paucal next --to'."
            )
        with console.progress("reading images") as advance:
            images = load_images(data, advance, labelled=False, reading=model.reading)
        order, suggestions = _rank_images(model, images, console)
        classes = model.model.classes if classes is None else classes
    paths = [full_name(images, key) for key in images.keys]
    if not all(Path(path).is_file() for path in paths[:1]):
        raise UserError(
            f"--label: {settings.label} holds no image files, and labels are saved by their paths: give a folder."
        )
    console.say(f"{counted(len(images), 'image')} to label; {counted(len(saved.labels), 'label')} in {saved.path}")
    assert classes is not None  # `check_labelling` requires them without a model
    originals = without_decoded_copies(images)
    return Labelling(originals, paths, order, tuple(classes), saved, suggestions, _training_command(source, saved))


def _rank_images(model: Classifier, images: ImageSet, console: Console) -> tuple[list[int], dict[int, Suggestion]]:
    answers = model.answer(images, console)
    choices = choose(answers.unsure, answers.features, answers.training_features, RANKED, 1 / TURN)
    suggestions = {index: Suggestion(top) for index, top in enumerate(answers.likeliest)}
    for choice in choices:
        suggestions[choice.index] = Suggestion(suggestions[choice.index].answers, describe_choice(answers, choice))
    order = in_turns(choices)
    unranked = np.setdiff1d(np.arange(len(images)), order)
    return [*order, *np.random.default_rng(0).permutation(unranked).tolist()], suggestions


def in_turns(choices: Sequence[Choice]) -> list[int]:
    """Return the images in order, with a random image after every nine.

    Example:
        >>> in_turns([Choice(n) for n in range(12)] + [Choice(20, is_random=True)])
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 20, 9, 10, 11]
    """
    order = [choice.index for choice in choices if not choice.is_random]
    for number, index in enumerate([choice.index for choice in choices if choice.is_random], 1):
        order.insert(TURN * number - 1, index)
    return order


def _training_command(source: str | None, saved: LabelFile) -> str:
    """Return the command that trains with the labels, beside the images of the run."""
    data = None
    if source is not None and ((run := RunFolder(Path(source))).path / MARKER).exists():
        data = run.settings.get("data")
    places = [str(place) for place in (data, saved.path) if place is not None]
    return f"paucal train {shlex.quote(SEPARATOR.join(places))}"
