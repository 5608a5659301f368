"""`paucal predict` with a classifier: write predictions to files or standard output, and resume interrupted calls."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from paucal.export.reading import load_model, model_digest
from paucal.models.trained import TrainedModel
from paucal.runner.console import Console
from paucal.runner.input_images import InputImages
from paucal.runner.run_time import precise_duration
from paucal.settings.options import check_ranges
from paucal.types import UserError
from paucal.verbs.predict.answers import OutputBatch, predict_batches
from paucal.verbs.predict.journal import JOURNAL_SUFFIX, PRECISION, Journal, stored_precision
from paucal.verbs.predict.launch import open_pictures
from paucal.verbs.predict.settings import OutputSettings, PredictSettings
from paucal.verbs.predict.writing import Targets, check_output_files, format_predictions, write_all
from paucal.wording import counted


def predict_to_files(
    source: str, paths: Sequence[str], settings: PredictSettings, outputs: OutputSettings, console: Console
) -> Iterator[str]:
    """Classify images and write the requested files; a backbone without a classifier can only write features.

    Return the text for standard output in pieces; there are no pieces if the predictions are written to a file.
    """
    check_ranges(settings)
    check_ranges(outputs)
    targets = check_output_files(outputs, paths)
    trained = load_model(source, settings.device)
    if targets.features is None or not (outputs.output is None and outputs.sheet is None and outputs.top_k is None):
        trained.require_classifier()
    journal_folder = None if targets.first is None else targets.first.with_name(targets.first.name + JOURNAL_SUFFIX)
    if settings.precision is None and journal_folder is not None:  # keep the precision of the interrupted call
        settings = replace(settings, precision=stored_precision(journal_folder))
    model, pictures, settings = open_pictures(trained, paths, settings, console)
    if journal_folder is None:
        blocks = list(_predict_and_report(model, pictures, settings, console, 0, targets))
        write_all(lambda: iter(blocks), model.card, pictures, targets, console)
        return format_predictions(blocks, model.card, targets)
    facts = _prediction_facts(source, settings, targets)
    with Journal(journal_folder, len(model.classes), facts) as journal:
        _classify_missing(journal, model, pictures, settings, console, targets)
        write_all(journal.blocks, model.card, pictures, targets, console)
        if targets.output is not None or not model.classes:
            journal.remove()
            return iter(())
        pieces = list(format_predictions(journal.blocks(), model.card, targets))
        journal.remove()
    return iter(pieces)


def _prediction_facts(source: str, settings: PredictSettings, targets: Targets) -> dict[str, Any]:
    """Return a dict of the values that determine the exact predictions: the model's digest, and settings by flag."""
    return {
        "model": model_digest(source),
        "--mirror": settings.mirror,
        "--batch-size": settings.batch_size,
        "--device": settings.device,
        PRECISION: settings.precision,
        "--features": targets.features is not None,
    }


def _classify_missing(
    journal: Journal,
    model: TrainedModel,
    pictures: InputImages,
    settings: PredictSettings,
    console: Console,
    targets: Targets,
) -> None:
    start = journal.resume(pictures)
    if start:
        console.say(f"{start} of {counted(len(pictures), 'image')} have predictions in {journal.folder}: continuing")
    # Report the images that an earlier call skipped, or refuse them if this call must not skip any.
    for problem in (problem for block in journal.blocks() for problem in block.problems if problem is not None):
        if settings.on_bad_image == "refuse":
            raise UserError(f"{problem}; skip the image with --on-bad-image skip.")
        console.say(f"skipped: {problem}")
    try:
        for block in _predict_and_report(model, pictures, settings, console, start, targets):
            journal.add(block)
    except BaseException:
        if journal.done:
            console.say(
                f"{journal.done} of {counted(len(pictures), 'prediction')} are kept in {journal.folder}: repeat the "
                "same call to continue"
            )
        raise


def _predict_and_report(
    model: TrainedModel,
    pictures: InputImages,
    settings: PredictSettings,
    console: Console,
    start: int,
    targets: Targets,
) -> Iterator[OutputBatch]:
    start_time, n_read, n_skipped = time.monotonic(), 0, 0
    with_features = targets.features is not None
    for block in predict_batches(model, pictures, settings, console, start=start, features=with_features):
        n_read += len(block.shares)
        n_skipped += len(block) - len(block.shares)
        yield block
    seconds = max(time.monotonic() - start_time, 1e-9)
    speed = f"{n_read / seconds:.3g} images/s on {model.device}"
    console.say(f"classified {counted(n_read, 'image')} in {precise_duration(seconds)} ({speed})")
    if n_skipped:
        console.say(f"skipped {counted(n_skipped, 'image')} that cannot be read; their names are listed above")
