"""`paucal.evaluate`: a trained model judged on labelled images, or any frozen backbone by the papers' protocols."""

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from paucal.data.arguments import path_text
from paucal.evaluation.protocols.judge import PROTOCOLS, Protocol
from paucal.models.tasks import CLASSIFICATION, DETECTION, SEGMENTATION, task_of
from paucal.runner.console import Console, RecordingConsole
from paucal.settings.options import check_ranges, flag
from paucal.settings.values import from_python, shows_settings
from paucal.types import UserError
from paucal.verbs.eval.classification import judge_classifier
from paucal.verbs.eval.findings import Evaluation
from paucal.verbs.eval.frozen import judge_frozen
from paucal.verbs.eval.places import MASKS, check_places, table_folder
from paucal.verbs.eval.settings import EvalSettings

Source = str | os.PathLike[str]


@shows_settings(EvalSettings)
def evaluate(subject: Source, /, data: Source | Sequence[Source] | None = None, **settings: Any) -> Evaluation:
    """Judge a model on labelled images, on boxes or on masks; the same as `paucal eval`.

    Args:
        subject: a run or its folder; for frozen features a weights file or the name of a timm model too.
        data: one or several sources of labelled images; by default the run's own test images.
        **settings: any field of `paucal.verbs.eval.settings.EvalSettings`, such as `protocol`, `device` or
            `output`.

    Returns:
        The reports and the table, which are stored as well.

    Raises:
        UserError: a model or a data set is not there, or does not suit a protocol.
        TypeError: a setting does not exist.

    Example:
        >>> found = paucal.evaluate("runs/1", "photos/", protocol=["classification", "knn"])  # doctest: +SKIP
        >>> found.metrics["top1"], found.score("knn")  # doctest: +SKIP
        (0.93, Score(value=0.88, low=0.85, high=0.91))
    """
    chosen = from_python(EvalSettings, settings, "paucal.evaluate", "eval")
    sources = [] if data is None else [data] if isinstance(data, str | os.PathLike) else data
    return judge_model(
        path_text(subject, "the model"), [os.fspath(one) for one in sources], chosen, console=RecordingConsole()
    )


def judge_model(model: str, data: Sequence[str], settings: EvalSettings, console: Console) -> Evaluation:
    """Judge a model by all protocols that are asked for, and say and store what is found; see `evaluate`."""
    check_ranges(settings)
    asked = settings.protocols
    if settings.real_labels is not None and (len(data) > 1 or "classification" not in asked):
        raise UserError("--real-labels goes with --protocol classification and the images of one DATA; give these.")
    if settings.part is not None and "classification" not in asked:
        raise UserError(
            f"--part {settings.part}: frozen features are judged on the test images, after learning from the others: "
            "leave --part out, or give --protocol classification."
        )
    if settings.mirror and "classification" not in asked:
        raise UserError(
            "--mirror averages the answers of a classifier: give --protocol classification, or leave it out."
        )
    task = task_of(model) if "classification" in asked else CLASSIFICATION
    if settings.scales is not None and task != SEGMENTATION:
        raise UserError(f"--scales averages the answers of a segmentation, and {model} is none: leave it out.")
    if task != CLASSIFICATION:
        return _judge_places(model, data, task, settings, console)
    check_places(model, data, settings)
    reports = judge_classifier(model, data, settings, console) if "classification" in asked else []
    frozen: list[Protocol] = [name for name in PROTOCOLS if name in asked]
    table = judge_frozen(model, data, frozen, settings, table_folder(model, settings), console) if frozen else None
    return Evaluation(model, reports, table, tuple(console.said) if isinstance(console, RecordingConsole) else ())


def _judge_places(model: str, data: Sequence[str], task: str, settings: EvalSettings, console: Console) -> Evaluation:
    """Judge a detector by boxes, or a segmentation network by masks."""
    if settings.protocol is not None:
        raise UserError(
            f"--protocol judges classifiers and frozen features, and {model} is for {task}: leave it out, or judge its "
            "features alone with knn, linear or logistic."
        )
    for name in ("real_labels",) if task == SEGMENTATION else ("mirror", "real_labels"):
        if getattr(settings, name):
            raise UserError(f"{flag(name)} is of classifiers, and {model} is for {task}: leave it out.")
    check_places(model, data, settings, [MASKS] if task == SEGMENTATION else [])
    # Loaded only now, because they bring what counts boxes and masks.
    if task == DETECTION:
        from paucal.verbs.eval.detection import evaluate_detector

        found = Evaluation(model, detection=evaluate_detector(model, data, settings, console))
    else:
        from paucal.verbs.eval.segmentation import evaluate_segmenter

        found = Evaluation(model, segmentation=evaluate_segmenter(model, data, settings, console))
    return replace(found, said=tuple(console.said) if isinstance(console, RecordingConsole) else ())
