"""`paucal predict`: classify images, detect objects in images, or predict segmentation masks, with a trained model."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from paucal.cli.arguments import CommandParser, add_settings, build_settings, parse_arguments
from paucal.types import UserError
from paucal.verbs.predict.settings import MovingSettings, OutputSettings, PredictSettings

if TYPE_CHECKING:
    from pathlib import Path

    from paucal.runner.console import Console
    from paucal.runner.tables import TableFormat

DESCRIPTION = """Classify images with a model of 'paucal train', detect objects with a model of 'paucal detect', or
write segmentation masks with a model of 'paucal segment'.
PATHS are image files, folders (searched to any depth), Parquet files, or patterns such as 'photos/*.jpg'.
If a command with --output was stopped, repeat the command to continue it.
PATHS may also be videos or cameras (camera:0, rtsp://...), and --watch classifies each new image in a folder."""
CLASSIFIER_SETTINGS = ("top_k", "features", "sheet")  # names of settings that are only for classifiers


class _PredictCall(NamedTuple):
    """The arguments of one `paucal predict` call.

    Attributes:
        run: Path of the run folder or exported model.
        paths: Paths or patterns of images, folders and Parquet files.
        settings: Settings of the prediction.
        output_settings: Settings of the output.
        given: Origin ("flag" or "config") of each setting that the user gave.
        console: Console for notes to the user, on standard error.
    """

    run: str
    paths: Sequence[str]
    settings: PredictSettings
    output_settings: OutputSettings
    given: Mapping[str, str]
    console: "Console"

    def table(self) -> "tuple[Path | None, TableFormat | None]":
        """Return the path of the output table (None for standard output) and its format (None for the default)."""
        from paucal.runner.tables import resolve_table

        output, table_format = self.output_settings.output, self.output_settings.format
        return (None, table_format) if output is None else resolve_table(output, table_format)


def run(argv: Sequence[str]) -> int:
    """Run the command and return the exit code."""
    parser = CommandParser("predict", DESCRIPTION)
    parser.add_argument("run", help="run folder")
    # PATHS are optional only with --watch, since argparse ends an optional list ("*") at the first flag and would
    # refuse paths after that flag.
    path_nargs = "*" if any(argument.partition("=")[0] == "--watch" for argument in argv) else "+"
    parser.add_argument("paths", nargs=path_nargs, help="images, folders or patterns; or videos, or camera:0")
    add_settings(parser, OutputSettings)
    add_settings(parser, PredictSettings)
    add_settings(parser, MovingSettings)
    values, given = parse_arguments(parser, argv)
    from paucal.export.reading import task_of_model
    from paucal.models.tasks import DETECTION, REGRESSION, SEGMENTATION
    from paucal.runner.console import Console
    from paucal.runner.plain_console import PlainConsole
    from paucal.settings.options import check_ranges

    settings, output_settings = build_settings(values, PredictSettings), build_settings(values, OutputSettings)
    check_ranges(settings)
    check_ranges(output_settings)
    stream_settings = build_settings(values, MovingSettings)
    has_streams = _has_streams(values.paths, values.watch, given)
    console, task = Console(PlainConsole(stderr=True)), task_of_model(values.run)
    if output_settings.to is not None:
        from paucal.verbs.predict.layouts import predict_as_labels

        _refuse_flags(given, ("format", "pictures", *CLASSIFIER_SETTINGS), "--{} is not supported with --to")
        if has_streams:
            raise UserError("--to is not supported for videos, cameras and --watch: remove --to, or give images.")
        predict_as_labels(values.run, values.paths, settings, output_settings, console)
        return 0
    predictors = {DETECTION: _predict_boxes, SEGMENTATION: _predict_masks, REGRESSION: _predict_target_values}
    if task == REGRESSION:
        _refuse_flags(given, ("pictures", *CLASSIFIER_SETTINGS), "--{} is for classifiers and detectors")
    if has_streams:
        from paucal.verbs.predict.moving import predict_moving

        predict_moving(values.run, values.paths, settings, output_settings, stream_settings, console)
    else:
        predict = predictors.get(task, _predict_classes)
        predict(_PredictCall(values.run, values.paths, settings, output_settings, given, console))
    return 0


def _has_streams(paths: Sequence[str], watch: str | None, given: Mapping[str, str]) -> bool:
    """Return whether the input is videos, cameras or a watched folder; if not, refuse flags for such input."""
    from paucal.verbs.predict.video import is_video_source

    has_streams = watch is not None or any(map(is_video_source, paths))
    for name in ("every", "idle", "annotated"):
        if name in given and not has_streams:
            raise UserError(f"--{name} is for videos, cameras and --watch: remove --{name}, or give a video.")
    return has_streams


def _predict_classes(call: _PredictCall) -> None:
    from paucal.verbs.predict.files import predict_to_files

    _refuse_flags(call.given, ["pictures"], "--{} draws detections, but this model is a classifier")
    for text in predict_to_files(call.run, call.paths, call.settings, call.output_settings, call.console):
        _print_text(text)


def _predict_boxes(call: _PredictCall) -> None:
    from paucal.verbs.predict.detection import find_objects

    _refuse_flags(call.given, CLASSIFIER_SETTINGS, "--{} is for classifiers, but this model is a detector")
    output, table_format = call.table()
    output_settings = replace(call.output_settings, format=table_format)
    _write_table(find_objects(call.run, call.paths, call.settings, output_settings, call.console), output)


def _predict_target_values(call: _PredictCall) -> None:
    from paucal.export.reading import load_model
    from paucal.verbs.predict.launch import open_pictures
    from paucal.verbs.predict.regression import as_text, predict_target_values

    output, table_format = call.table()
    model = load_model(call.run, call.settings.device)
    prepared = open_pictures(model, list(call.paths), call.settings, call.console)
    _write_table(as_text(predict_target_values(*prepared, call.console), table_format or "csv"), output)


def _predict_masks(call: _PredictCall) -> None:
    from paucal.reading import expand_user_path
    from paucal.runner.tables import FORMATS, UNSUPPORTED_FORMATS
    from paucal.verbs.predict.segmentation import MASKS, OVERLAYS, segment_all
    from paucal.wording import counted, percent

    output = call.output_settings.output
    if output is None:
        raise UserError("this model predicts masks: give a new folder for the masks with --output.")
    flags = ("batch_size", "format", "pictures", *CLASSIFIER_SETTINGS)
    _refuse_flags(call.given, flags, "--{} is for classifiers and detectors, but this model predicts masks")
    folder = expand_user_path(output)
    if folder.suffix.lower() in {**FORMATS, **UNSUPPORTED_FORMATS}:
        raise UserError(f"--output: {output!r} is a file name, but masks need a folder: give a new folder.")
    predictions = segment_all(call.run, call.paths, folder, call.settings, call.console)
    count = len(predictions)
    call.console.say(f"{counted(count, 'mask')} in {folder / MASKS}, overlays in {folder / OVERLAYS}")
    if predictions:
        names = list(predictions[0].shares)[:8]
        means = {name: sum(prediction.shares[name] for prediction in predictions) / count for name in names}
        shares = ", ".join(f"{name} {percent(share)}" for name, share in means.items())
        call.console.say(f"mean fraction of the pixels: {shares}")


def _refuse_flags(given: Mapping[str, str], flags: Iterable[str], message: str) -> None:
    """Raise a UserError for the first of `flags` that was given; the flag's name replaces {} in `message`."""
    for name in flags:
        if name in given:
            raise UserError(f"{message.format(name.replace('_', '-'))}: remove --{name.replace('_', '-')}.")


def _write_table(text: str, output: "Path | None") -> None:
    from paucal.writing import write_text

    if output is None:
        _print_text(text)
    else:
        write_text(output, text)


def _print_text(text: str) -> None:
    from paucal.wording import escape_controls

    # Control characters in file names are escaped only on a terminal. Other programs receive the names unchanged.
    sys.stdout.write(escape_controls(text) if sys.stdout.isatty() else text)
