"""`paucal predict`: probabilities, objects and their boxes, or masks, for images, folders and patterns."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from paucal.cli.arguments import VerbParser, add_settings, parse, settings_among
from paucal.types import UserError
from paucal.verbs.predict.settings import MovingSettings, OutputSettings, PredictSettings

if TYPE_CHECKING:
    from pathlib import Path

    from paucal.runner.console import Console
    from paucal.runner.tables import TableForm

DESCRIPTION = """Classify images with the model of a run, find objects in them with a run of 'paucal detect', or write
masks of them with one of 'paucal segment'.
PATHS are image files, folders (searched to any depth), Parquet files, or patterns such as 'photos/*.jpg'.
With --output, repeating a call that was stopped continues it.
PATHS may also be videos or cameras (camera:0, rtsp://...), and --watch classifies each new picture in a folder."""
OF_CLASSIFIERS = ("top_k", "features", "sheet")  # settings that only classifiers have


class _Call(NamedTuple):
    """A call: the model, the pictures, the settings, the origin of those that were given, and the console."""

    run: str
    paths: Sequence[str]
    settings: PredictSettings
    wanted: OutputSettings
    given: Mapping[str, str]
    console: "Console"

    def table(self) -> "tuple[Path | None, TableForm | None]":
        """Return the output file and its format; None for standard output and for the default format."""
        from paucal.runner.tables import check_table

        wanted = self.wanted
        return (None, wanted.format) if wanted.output is None else check_table(wanted.output, wanted.format)


def run(argv: Sequence[str]) -> int:
    """Run the verb; returns the exit code."""
    parser = VerbParser("predict", DESCRIPTION)
    parser.add_argument("run", help="run folder")
    # An optional positional argument would end at a flag, and words after the flag would be unknown.
    n_paths = "*" if any(argument.partition("=")[0] == "--watch" for argument in argv) else "+"
    parser.add_argument("paths", nargs=n_paths, help="images, folders or patterns; or videos, or camera:0")
    add_settings(parser, OutputSettings)
    add_settings(parser, PredictSettings)
    add_settings(parser, MovingSettings)
    values, given = parse(parser, argv)
    from paucal.export.reading import task_of_model
    from paucal.models.tasks import DETECTION, REGRESSION, SEGMENTATION
    from paucal.runner.console import Console
    from paucal.runner.plain_console import PlainConsole
    from paucal.settings.options import check_ranges

    settings, wanted = settings_among(values, PredictSettings), settings_among(values, OutputSettings)
    check_ranges(settings)
    check_ranges(wanted)
    moving, in_motion = settings_among(values, MovingSettings), _is_for_streams(values.paths, values.watch, given)
    console, task = Console(PlainConsole(stderr=True)), task_of_model(values.run)
    if wanted.to is not None:
        from paucal.verbs.predict.layouts import predict_as_labels

        _refuse_flags(given, ("format", "pictures", *OF_CLASSIFIERS), "--{} is not supported with --to")
        if in_motion:
            raise UserError(
                "--to writes labels of images and is not supported for videos, cameras and --watch: leave one out."
            )
        predict_as_labels(values.run, values.paths, settings, wanted, console)
        return 0
    predictors = {DETECTION: _predict_boxes, SEGMENTATION: _predict_masks, REGRESSION: _predict_numbers}
    if task == REGRESSION:
        _refuse_flags(given, ("pictures", *OF_CLASSIFIERS), "--{} is for classifiers and detectors")
    if in_motion:
        from paucal.verbs.predict.moving import predict_moving

        predict_moving(values.run, values.paths, settings, wanted, moving, console)
    else:
        predict = predictors.get(task, _predict_classes)
        predict(_Call(values.run, values.paths, settings, wanted, given, console))
    return 0


def _is_for_streams(paths: Sequence[str], watch: str | None, given: Mapping[str, str]) -> bool:
    """Return whether a call is for videos, cameras or a watched folder."""
    from paucal.verbs.predict.video import is_moving

    moves = watch is not None or any(map(is_moving, paths))
    for name in ("every", "idle", "annotated"):
        if name in given and not moves:
            raise UserError(f"--{name} is for videos, cameras and --watch: leave it out, or give a video.")
    return moves


def _predict_classes(call: _Call) -> None:
    from paucal.verbs.predict.files import predict_to_files

    _refuse_flags(call.given, ["pictures"], "--{} draws detections, but this model is a classifier")
    for text in predict_to_files(call.run, call.paths, call.settings, call.wanted, call.console):
        _print_text(text)


def _predict_boxes(call: _Call) -> None:
    from paucal.verbs.predict.detection import find_objects

    _refuse_flags(call.given, OF_CLASSIFIERS, "--{} is for classifiers, but this model is a detector")
    output, table_format = call.table()
    answer_settings = replace(call.wanted, format=table_format)
    _write_table(find_objects(call.run, call.paths, call.settings, answer_settings, call.console), output)


def _predict_numbers(call: _Call) -> None:
    from paucal.export.reading import load_model
    from paucal.verbs.predict.launch import open_pictures
    from paucal.verbs.predict.regression import as_text, predict_numbers

    output, table_format = call.table()
    model = load_model(call.run, call.settings.device)
    prepared = open_pictures(model, list(call.paths), call.settings, call.console)
    _write_table(as_text(predict_numbers(*prepared, call.console), table_format or "csv"), output)


def _predict_masks(call: _Call) -> None:
    from paucal.reading import named_path
    from paucal.runner.tables import FORMS, OTHER_FORMS
    from paucal.verbs.predict.segmentation import MASKS, OVERLAYS, segment_all
    from paucal.wording import counted, percent

    output = call.wanted.output
    if output is None:
        raise UserError("this model predicts masks: give --output, a new folder for them.")
    flags = ("batch_size", "format", "pictures", *OF_CLASSIFIERS)
    _refuse_flags(call.given, flags, "--{} is for classifiers and detectors, but this model predicts masks")
    folder = named_path(output)
    if folder.suffix.lower() in {**FORMS, **OTHER_FORMS}:
        raise UserError(f"--output: {output!r} is a file name, but masks need a folder: give a new one.")
    predictions = segment_all(call.run, call.paths, folder, call.settings, call.console)
    count = len(predictions)
    call.console.say(f"{counted(count, 'mask')} in {folder / MASKS}, overlays in {folder / OVERLAYS}")
    if predictions:
        names = list(predictions[0].shares)[:8]
        means = {name: sum(prediction.shares[name] for prediction in predictions) / count for name in names}
        shares = ", ".join(f"{name} {percent(share)}" for name, share in means.items())
        call.console.say(f"share of the pixels: {shares}")


def _refuse_flags(given: Mapping[str, str], flags: Iterable[str], message: str) -> None:
    """Refuse flags that a model does not use, with a message in which {} is the flag's name."""
    for name in flags:
        if name in given:
            raise UserError(f"{message.format(name.replace('_', '-'))}: leave it out.")


def _write_table(text: str, output: "Path | None") -> None:
    from paucal.runs import write_text

    if output is None:
        _print_text(text)
    else:
        write_text(output, text)


def _print_text(text: str) -> None:
    from paucal.wording import showable

    # Control characters in names are escaped for terminals only: a pipe gets the names unchanged.
    sys.stdout.write(showable(text) if sys.stdout.isatty() else text)
